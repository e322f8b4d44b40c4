"""References to environment variables: `${VAR}` and `${VAR:-default}` in the registry file, credentials in addresses,
and references in place of secrets in the database. `$$` is a dollar sign.

Variables are resolved after the YAML is parsed, so that no value can change the structure of the file. NAME_FILE may be
the path of a file with the value of NAME.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

Reference = Mapping[str, str]
"""What the database holds in place of a secret: `{"variable": "${GITLAB_TOKEN}"}`, or `{"address": "https://${T}@host/x"}`
for credentials in an address. Up to 0.2.1 also `{"file": path}`, for a secret in the clear in that file."""

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

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


class Interpolated(str):
    """A text that holds values of variables. `raw`: as written in the file; `values`: those from the environment, by
    name."""

    raw: str
    values: Mapping[str, str]


def file_content(path: str) -> str:
    """The value that a variable `..._FILE` stands for. Raises ValueError."""
    try:
        return Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"names a file that cannot be read ({path}: {reason})") from None


def interpolate(raw: str, environ: Mapping[str, str]) -> str:
    """`raw` with its references resolved: an `Interpolated` if it has any, else a plain text.

    As in a shell, `${VAR:-default}` is the default if the variable is not set or empty. A dollar sign before anything
    but `{` and `$` is literal. Raises InterpolationError.
    """
    values: dict[str, str] = {}
    is_plain = True

    def resolved(match: re.Match[str]) -> str:
        nonlocal is_plain
        if match["dollar"]:
            return "$"
        if match["open"]:
            raise InterpolationError(
                "`${` starts a reference that cannot be read",
                "write ${NAME} or ${NAME:-default} (letters, digits and _; no braces in the default), or $${ for the "
                "characters themselves",
            )
        is_plain = False
        name, default = match["name"], match["default"]
        value = _value(name, environ)
        if default is not None and not value:
            return str(default)
        if value is None:
            problem = f"the environment variable {name} is not set"
            raise InterpolationError(problem, f"set it, or write ${{{name}:-default}}")
        values[name] = value
        return value

    text = _REFERENCE.sub(resolved, raw)
    if is_plain:
        return text
    interpolated = Interpolated(text)
    interpolated.raw, interpolated.values = raw, values
    return interpolated


def _value(name: str, environ: Mapping[str, str]) -> str | None:
    value, path = environ.get(name), environ.get(f"{name}_FILE")
    if value or not path:
        return value
    try:
        return file_content(path)
    except ValueError as error:
        raise InterpolationError(f"the environment variable {name}_FILE {error}", "correct it") from None


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


def is_reference(raw: str) -> bool:
    """Whether a secret that is written as `raw` is nothing but variables, without a default."""
    return _VARIABLES_ALONE.fullmatch(raw) is not None


def has_clear_credentials(raw: str) -> bool:
    """Whether the address `raw` holds a password or, without one, a user that is not only made of variables."""
    if re.search(r":-[^{}]*@", raw):  # a default that is an address
        return True
    _, user, password = split_credentials(re.sub(r"\$\{[^{}:]*(?::-)?\}", "", raw))
    return bool(user if password is None else password)


def first_variable(raw: str) -> str | None:
    """The name of the first variable in `raw`."""
    return next((match["name"] for match in _REFERENCE.finditer(raw) if match["name"]), None)


def resolve_reference(reference: Reference, environ: Mapping[str, str]) -> str:
    """The text of a secret; it is empty if its variable is. Raises InterpolationError."""
    if "address" in reference:
        _, user, password = split_credentials(interpolate(reference["address"], environ))
        return (user if password is None else password) or ""
    return str(interpolate(reference["variable"], environ))
