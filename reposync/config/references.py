"""References to environment variables: `${VAR}` and `${VAR:-default}` in the registry file, credentials in addresses,
and references in place of secrets in the database. `$$` is a dollar sign.

Variables are resolved after the YAML is parsed, so that no value can change the structure of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pydantic import SecretStr

from reposync.errors import SecretMissing

Reference = Mapping[str, str]
"""What the database holds in place of a secret: `{"variable": "${GITLAB_TOKEN}"}`, `{"address": "https://${T}@host/x"}`
for credentials in an address, or `{"file": path}` for a secret in the clear, which only a process that read the file
has."""

_REFERENCE = re.compile(
    r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|(?P<open>\{))"
)
_VARIABLES_ALONE = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*(?::-)?\})+")
_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user_info>[^/?#]*)@(?P<rest>.*)", re.DOTALL)
_PLACEHOLDER = 0xF0000  # a private character that no file holds


class InterpolationError(ValueError):
    """A reference with wrong syntax, or a variable that is not set. The message holds no value of a variable."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a text; a literal if `variable` is None. `defaulted`: the text is the default in the file."""

    text: str
    variable: str | None = None
    defaulted: bool = False


class Interpolated(str):
    """A text that holds values of variables. `raw` is the text in the file, `parts` are its pieces."""

    raw: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, raw: str, parts: tuple[Part, ...]) -> Interpolated:
        text = cls("".join(part.text for part in parts))
        text.raw, text.parts = raw, parts
        return text

    @property
    def from_environment(self) -> tuple[Part, ...]:
        """The parts that are values of variables, without defaults from the file."""
        return tuple(part for part in self.parts if part.variable and not part.defaulted)


class MissingSecret(SecretStr):
    """A secret that this process does not have. Reading its value raises SecretMissing, which names the variable."""

    def __init__(self, message: str) -> None:
        super().__init__("***")
        self.message = message

    def get_secret_value(self) -> str:
        raise SecretMissing(self.message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MissingSecret) and other.message == self.message

    def __hash__(self) -> int:
        return hash(self.message)


def interpolate(raw: str, environ: Mapping[str, str]) -> str:
    """`raw` with its references resolved: an `Interpolated` if it has any, else a plain text.

    As in a shell, `${VAR:-default}` is the default if the variable is not set or empty. A dollar sign before anything
    but `{` and `$` is literal. Raises InterpolationError.
    """
    parts: list[Part] = []
    at = 0
    for match in _REFERENCE.finditer(raw):
        if match.start() > at:
            parts.append(Part(raw[at : match.start()]))
        parts.append(_part(match, environ))
        at = match.end()
    if at < len(raw):
        parts.append(Part(raw[at:]))
    if all(part.variable is None for part in parts):
        return "".join(part.text for part in parts)
    return Interpolated.of(raw, tuple(parts))


def _part(match: re.Match[str], environ: Mapping[str, str]) -> Part:
    if match["dollar"]:
        return Part("$")
    if match["open"]:
        raise InterpolationError(
            "`${` starts a reference that cannot be read: write ${NAME} or ${NAME:-default} (letters, digits and _; "
            "no braces in the default), or $${ for the characters themselves"
        )
    name, default = match["name"], match["default"]
    value = environ.get(name)
    if value is None and default is None:
        raise InterpolationError(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    if default is not None and not value:
        return Part(default, name, defaulted=True)
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise InterpolationError(f"the environment variable {name} is not valid UTF-8") from None
    return Part(value or "", name)


def split_credentials(url: str) -> tuple[str, str | None, str | None]:
    """`url` without user info, the user (None: no user info) and the password (None: no password).

    Text from the file is percent-decoded. The value of a variable in the user info is used unchanged, so that a token
    with `@`, `/` or `%` neither breaks the address nor redirects it to a different host.
    """
    # Each variable is replaced by one character, so that the address is split as it is written in the file.
    parts = url.parts if isinstance(url, Interpolated) else (Part(url),)
    values = {chr(_PLACEHOLDER + number): part.text for number, part in enumerate(parts) if part.variable is not None}
    written = "".join(
        part.text if part.variable is None else chr(_PLACEHOLDER + number) for number, part in enumerate(parts)
    )
    if values and "://" not in written:  # the whole address is the value of a variable
        return split_credentials(str(url))
    match = _USER_INFO.match(written)
    if not match:
        return str(url), None, None

    def filled(text: str, *, decode: bool = True) -> str:
        pieces = re.split(f"([{''.join(values)}])", text) if values else [text]
        return "".join(values.get(piece, unquote(piece) if decode else piece) for piece in pieces)

    user, colon, password = match["user_info"].partition(":")
    return (
        filled(match["scheme"] + match["rest"], decode=False),
        filled(user),
        filled(password) if colon else None,
    )


def reference_to(raw: str, file: str) -> Reference:
    """The reference to a secret that is written as `raw` in `file`."""
    return {"variable": raw} if _VARIABLES_ALONE.fullmatch(raw) else {"file": file}


def reference_to_credentials(raw: str, file: str) -> Reference:
    """The reference to the credentials in the address `raw` in `file`."""
    text = interpolate(raw, _AllSet())
    parts = text.parts if isinstance(text, Interpolated) else (Part(raw),)
    # A password in what remains without the variables is in the clear.
    literal = "".join(part.text for part in parts if part.variable is None or part.defaulted)
    _, user, password = split_credentials(literal)
    return {"file": file} if (user if password is None else password) else {"address": raw}


class _AllSet(dict[str, str]):
    """An environment in which every variable is set."""

    def get(self, key: str, default: Any = None) -> str:
        return "x"


def resolve_reference(
    reference: Reference, secret: str, environ: Mapping[str, str], clear: Mapping[str, SecretStr]
) -> SecretStr | str | None:
    """The value; a `MissingSecret` if this process does not have it; None if the variable is empty by its default.

    `secret` names the secret in messages ("`token` of GitLab server 'main'"). `clear` holds the secrets, by that name,
    that this process read in the clear from its own registry file.
    """
    if "file" in reference:
        return clear.get(secret) or MissingSecret(
            f"This process does not have {secret}: it is in the clear in {reference['file']}. "
            "Write ${VARIABLE} there, and set the variable for every process."
        )
    raw = reference.get("variable") or reference["address"]
    try:
        text = interpolate(raw, environ)
    except InterpolationError:
        names = re.findall(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", raw)
        missing = " and ".join(name for name in names if name not in environ)
        return MissingSecret(f"This process does not have {secret}: the environment variable {missing} is not set.")
    if "address" in reference:
        _, user, password = split_credentials(text)
        return (user if password is None else password) or None
    return text or None
