"""The types of secrets in the registry: references to variables, in the file and in the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, SecretStr, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from reposync.config.fields import CONTROL, CONTROL_WORDS, AppliedDocument, InvalidValue, RegistryFile
from reposync.config.references import (
    Interpolated,
    InterpolationError,
    Reference,
    first_variable,
    is_reference,
    resolve_reference,
)
from reposync.errors import SecretMissing

SHORTEST_TOKEN_CHARS = 16
LONGEST_TOKEN_CHARS = 1024

_EMPTY_WORDS = "must not be empty; leave it out if none is needed"


class ReferencedSecret(SecretStr):
    """A secret with the reference to it. If this process cannot use it, reading its value raises SecretMissing with
    `problem`."""

    def __init__(self, text: str, reference: Reference, problem: str = "") -> None:
        super().__init__("***" if problem else text)
        self.reference = reference
        self.problem = problem

    def get_secret_value(self) -> str:
        if self.problem:
            raise SecretMissing(self.problem)
        return super().get_secret_value()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReferencedSecret) and (
            (self._secret_value, self.reference, self.problem) == (other._secret_value, other.reference, other.problem)
        )

    def __hash__(self) -> int:
        return hash(self._secret_value)


def known_text(secret: SecretStr | None) -> str | None:
    """The text of a secret that this process has."""
    if secret is None or (isinstance(secret, ReferencedSecret) and secret.problem):
        return None
    return secret.get_secret_value()


def header_problem(text: str) -> str | None:
    return None if re.fullmatch(r"[\x21-\x7e]+", text) else "must be printable ASCII without spaces"


def api_token_problem(text: str) -> str | None:
    if header_problem(text) is None and SHORTEST_TOKEN_CHARS <= len(text) <= LONGEST_TOKEN_CHARS:
        return None
    return (
        f"must be printable ASCII without spaces, {SHORTEST_TOKEN_CHARS} to {LONGEST_TOKEN_CHARS} characters; `openssl "
        "rand -hex 24` makes a good one"
    )


@dataclass(frozen=True, slots=True)
class EnvironmentSecret:
    """Annotation of a secret: a reference to variables in a registry file and in the database.

    `variable`: the usual name of its variable, for messages. `problem_of`: why a text cannot be this secret, or None.
    """

    variable: str
    problem_of: Callable[[str], str | None] = lambda text: None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        reference = core_schema.plain_serializer_function_ser_schema(
            lambda secret: getattr(secret, "reference", None), when_used="json"
        )
        return core_schema.with_info_before_validator_function(self._read, handler(source), serialization=reference)

    def _read(self, value: Any, info: ValidationInfo) -> Any:
        if isinstance(info.context, AppliedDocument) and isinstance(value, Mapping):
            return self._resolved(value, info, info.context.environ)
        reference: Reference | None = None
        if isinstance(value, ReferencedSecret):  # from an address
            value, reference = value.get_secret_value(), value.reference
        elif isinstance(info.context, RegistryFile) and value is not None:
            raw = value.raw if isinstance(value, Interpolated) else ""
            if not is_reference(raw):
                name = first_variable(raw) or self.variable
                words = f"write ${{{name}}} and nothing else, and set {name} in the environment"
                raise InvalidValue(f"is in the clear: {words}")
            reference = {"variable": raw}
        if not isinstance(value, str):
            return value
        # A secret from a mounted file ends in the line break of the file.
        text = value.rstrip("\r\n")
        if problem := self._problem(text):
            raise InvalidValue(problem)
        return SecretStr(text) if reference is None else ReferencedSecret(text, reference)

    def _resolved(self, reference: Reference, info: ValidationInfo, environ: Mapping[str, str]) -> SecretStr | None:
        if "file" in reference:
            return lacking_secret(
                info,
                f"it is in the clear in {reference['file']}, and is not read from there. Write ${{{self.variable}}} "
                f"there, set {self.variable} for every process, and apply the file (`reposync apply`)",
                reference,
            )
        try:
            text = resolve_reference(reference, environ).rstrip("\r\n")
        except InterpolationError as error:
            return lacking_secret(info, error.problem, reference)
        if not text:
            return None
        if problem := self._problem(text):
            (written,) = reference.values()
            return lacking_secret(info, f"the value of {written} {problem}", reference)
        return ReferencedSecret(text, reference)

    def _problem(self, text: str) -> str | None:
        if CONTROL.search(text):
            return CONTROL_WORDS
        return self.problem_of(text) if text else _EMPTY_WORDS


def lacking_secret(info: ValidationInfo, problem: str, reference: Reference) -> ReferencedSecret:
    """A secret that this process does not have. The applied registry is usable all the same: whoever needs the secret
    reports the `problem`."""
    name = info.data.get("name")
    owner = f" of {name!r}" if name else ""
    return ReferencedSecret("", reference, f"This process cannot use `{info.field_name}`{owner}: {problem}.")


Password = Annotated[SecretStr | None, EnvironmentSecret("GIT_PASSWORD")]
# Those that are sent in an HTTP header.
Token = Annotated[SecretStr | None, EnvironmentSecret("GITLAB_TOKEN", header_problem)]
EmbeddingKey = Annotated[SecretStr | None, EnvironmentSecret("EMBEDDING_API_KEY", header_problem)]
QdrantKey = Annotated[SecretStr | None, EnvironmentSecret("REPOSYNC_QDRANT_API_KEY", header_problem)]
ServiceSecret = Annotated[SecretStr | None, EnvironmentSecret("SEARCH_TOKEN", api_token_problem)]
SignInSecret = Annotated[SecretStr | None, EnvironmentSecret("GITLAB_SIGN_IN_SECRET", header_problem)]
