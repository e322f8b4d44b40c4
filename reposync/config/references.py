"""Secrets as references: the catalogue names a variable, and the process that needs the value reads it.

A reference is `{"variable": "${GITLAB_TOKEN}"}`, `{"address": "https://oauth2:${TOKEN}@host/x.git"}` for credentials in
an address, or `{"file": path}` for a secret in the clear, which only a process that read that file has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from reposync.config.addresses import split_credentials
from reposync.config.interpolation import Interpolated, InterpolationError, interpolate
from reposync.errors import SecretMissing

Reference = Mapping[str, str]

_VARIABLES_ALONE = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*(?::-)?\})+")


class MissingSecret(SecretStr):
    """A secret that this process does not have. Reading its value raises SecretMissing, which names what is missing."""

    def __init__(self, message: str) -> None:
        super().__init__("***")
        self.message = message

    def get_secret_value(self) -> str:
        raise SecretMissing(self.message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MissingSecret) and other.message == self.message

    def __hash__(self) -> int:
        return hash(self.message)


def reference_to(raw: str, file: str) -> Reference:
    """`raw`: the secret's text as it stands in `file`."""
    return {"variable": raw} if _VARIABLES_ALONE.fullmatch(raw) else {"file": file}


def reference_to_credentials(raw: str, file: str) -> Reference:
    """`raw`: an address with credentials as it stands in `file`."""
    text = interpolate(raw, _Anything())
    parts = text.parts if isinstance(text, Interpolated) else ()
    # What is left without the variables: a password in it stands in the clear.
    written = "".join(part.text for part in parts if part.variable is None or part.defaulted) if parts else raw
    _, user, password = split_credentials(written)
    return {"file": file} if (user if password is None else password) else {"address": raw}


class _Anything(dict[str, str]):
    """Every variable is set."""

    def get(self, key: str, default: Any = None) -> str:
        return "x"


def resolve_reference(
    reference: Reference, what: str, environ: Mapping[str, str], clear: Mapping[str, SecretStr]
) -> SecretStr | str | None:
    """The value; a `MissingSecret` if this process does not have it; None if the variable is empty by its default.

    `what` names the secret for people ("the token of GitLab server 'main'"). `clear`: the secrets, by `what`, that this
    process read in the clear from its own registry file.
    """
    if "file" in reference:
        return clear.get(what) or MissingSecret(
            f"This process does not know {what}: it stands in the clear in {reference['file']}. "
            "Write ${VARIABLE} there, and set the variable for every process."
        )
    raw = reference.get("variable") or reference["address"]
    try:
        text = interpolate(raw, environ)
    except InterpolationError:
        names = re.findall(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", raw)
        missing = " and ".join(name for name in names if name not in environ)
        return MissingSecret(f"This process does not know {what}: the environment variable {missing} is not set.")
    if "address" in reference:
        _, user, password = split_credentials(text)
        return (user if password is None else password) or None
    return text or None
