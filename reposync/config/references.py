"""References to environment variables: `${VAR}` and `${VAR:-default}` in the registry file, credentials in addresses,
and references in place of secrets in the database. `$$` is a dollar sign.

Variables are resolved after the YAML is parsed, so that no value can change the structure of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_VARIABLE = r"\$\{[^{}]*\}"
_VARIABLES_ALONE = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*(?::-)?\})+")
# A default such as ${URL:-https://a@b} is one unit: the separators in it are not those of the address.
_USER_INFO = re.compile(
    rf"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>(?>{_VARIABLE}|[^/?#:])*)"
    rf"(?::(?P<password>(?>{_VARIABLE}|[^/?#])*))?@(?P<rest>.*)",
    re.DOTALL,
)


class InterpolationError(ValueError):
    """A reference with wrong syntax, or a variable that is not set. The message holds no value of a variable."""


class Interpolated(str):
    """A text that holds values of variables. `raw`: as written in the file; `values`: those from the environment, by
    name; `has_default`: a default in the file is part of the text."""

    raw: str
    values: Mapping[str, str]
    has_default: bool


class SecretText(str):
    """The text of a secret that is part of an address, and the reference to it."""

    reference: Reference


class ReferencedSecret(SecretStr):
    """A secret with the reference to it."""

    def __init__(self, text: str, reference: Reference) -> None:
        super().__init__(text)
        self.reference = reference


class MissingSecret(ReferencedSecret):
    """A secret that this process does not have. Reading its value raises SecretMissing, which names the variable."""

    def __init__(self, message: str, reference: Reference) -> None:
        super().__init__("***", reference)
        self.message = message

    def get_secret_value(self) -> str:
        raise SecretMissing(self.message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MissingSecret) and other.message == self.message

    def __hash__(self) -> int:
        return hash(self.message)


def known_text(secret: SecretStr | None) -> str | None:
    """The text of a secret that this process has."""
    return None if secret is None or isinstance(secret, MissingSecret) else secret.get_secret_value()


def interpolate(raw: str, environ: Mapping[str, str]) -> str:
    """`raw` with its references resolved: an `Interpolated` if it has any, else a plain text.

    As in a shell, `${VAR:-default}` is the default if the variable is not set or empty. A dollar sign before anything
    but `{` and `$` is literal. Raises InterpolationError.
    """
    values: dict[str, str] = {}
    defaults: list[str] = []

    def resolved(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        if match["open"]:
            raise InterpolationError(
                "`${` starts a reference that cannot be read: write ${NAME} or ${NAME:-default} (letters, digits and "
                "_; no braces in the default), or $${ for the characters themselves"
            )
        name, default = match["name"], match["default"]
        value = environ.get(name)
        if default is not None and not value:
            defaults.append(default)
            return str(default)
        if value is None:
            message = f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            raise InterpolationError(message)
        values[name] = value
        return value

    text = _REFERENCE.sub(resolved, raw)
    if not values and not defaults:
        return text
    interpolated = Interpolated(text)
    interpolated.raw, interpolated.values, interpolated.has_default = raw, values, any(defaults)
    return interpolated


def split_credentials(url: str) -> tuple[str, str | None, str | None]:
    """`url` without user info, the user (None: no user info) and the password (None: no password).

    Text from the file is percent-decoded. The value of a variable in the user info is used unchanged, so that a token
    with `@`, `/` or `%` neither breaks the address nor redirects it to a different host.
    """
    values = None
    # Split as it is written in the file, unless the whole address is the value of a variable.
    if isinstance(url, Interpolated) and "://" in re.sub(_VARIABLE, "", url.raw):
        values = url.values
    match = _USER_INFO.match(str(url) if values is None else url.raw)  # type: ignore[attr-defined]
    if not match:
        return str(url), None, None

    def decoded(text: str) -> str:
        if values is None:
            return unquote(text)
        pieces = re.split(f"({_VARIABLE})", text)
        return "".join(
            interpolate(piece, values) if number % 2 else unquote(piece.replace("$$", "$"))
            for number, piece in enumerate(pieces)
        )

    rest, password = match["scheme"] + match["rest"], match["password"]
    return (
        rest if values is None else str(interpolate(rest, values)),
        decoded(match["user"]),
        None if password is None else decoded(password),
    )


def reference_to(raw: str, file: str) -> Reference:
    """The reference to a secret that is written as `raw` in `file`."""
    return {"variable": raw} if _VARIABLES_ALONE.fullmatch(raw) else {"file": file}


def reference_to_credentials(raw: str, file: str) -> Reference:
    """The reference to the credentials in the address `raw` in `file`."""
    # A password in what remains without the variables is in the clear.
    _, user, password = split_credentials(re.sub(_VARIABLE, "", raw))
    return {"file": file} if (user if password is None else password) else {"address": raw}


def resolve_reference(
    reference: Reference, secret: str, environ: Mapping[str, str], clear: Mapping[str, SecretStr]
) -> MissingSecret | str | None:
    """The value; a `MissingSecret` if this process does not have it; None if the variable is empty by its default.

    `secret` names the secret in messages ("`token` of GitLab server 'main'"). `clear` holds the secrets, by that name,
    that this process read from its own registry file.
    """
    if "file" in reference:
        if secret in clear:
            return clear[secret].get_secret_value()
        return MissingSecret(
            f"This process does not have {secret}: it is in the clear in {reference['file']}. "
            "Write ${VARIABLE} there, and set the variable for every process.",
            reference,
        )
    raw = reference.get("variable") or reference["address"]
    try:
        text = interpolate(raw, environ)
    except InterpolationError:
        names = re.findall(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", raw)
        missing = " and ".join(name for name in names if name not in environ)
        message = f"This process does not have {secret}: the environment variable {missing} is not set."
        return MissingSecret(message, reference)
    if "address" in reference:
        _, user, password = split_credentials(text)
        return (user if password is None else password) or None
    return str(text) or None
