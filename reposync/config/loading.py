"""Loads the registry from its file, with warnings or all problems at once; and from the document in the database.

A document holds the sections of a registry file as JSON, with references in place of secrets, and without
`repositories` and `groups`: each of those is a row of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from reposync.config.document import MAX_BYTES, Document, Loc, Problem, RegistryErrors, read_document
from reposync.config.fields import AppliedDocument, RegistryFile
from reposync.config.references import Interpolated
from reposync.config.registry import Group, Registry, Repository, ResolvedRepository
from reposync.config.sections import EmbeddingConfig, prefixes_of
from reposync.errors import ConfigError
from reposync.words import nearest, suggestion

Finding = tuple[Loc, str]
"""The path to a value, and a sentence about it."""

_KEYS_OF_OTHER_PROGRAMS = {
    "cron": ("schedule", "write `schedule`, which takes a crontab, `@every 10m`, `every 6 hours` or `never`"),
    "url": ("git", "write `git` for an https:// address, or `gitlab` and `project` for a project of a listed server"),
}
"""Unknown key -> the key that is meant, if it is known at that place, and how to write it."""
_REMOVED_KEYS: Mapping[Loc, str] = {
    ("index", "gate"): "a new version replaces the live one when it is complete; measure both with `reposync eval`",
    ("index", "must_not_fall"): "it was a setting of `index.gate`",
}
"""Key of an earlier version -> what to do without it."""
_SECRET_KEYS = frozenset({"token", "webhook_secret", "webhook_signing", "api_key", "password"})
_KINDS = {
    "tuple_type": "must be a list, such as [one, two]",
    "model_type": "must be a mapping of keys to values",
    "string_type": "must be text: write it in quotes",
    "string_unicode": "is not valid Unicode text",
    "int_type": "must be a whole number, without quotes",
    "float_type": "must be a number, without quotes",
    "bool_type": "must be true or false",
    "finite_number": "must be a number",
    "string_too_long": "must have at most {:,} characters",
    "greater_than_equal": "must be at least {:,}",
    "greater_than": "must be more than {:,}",
    "less_than_equal": "must be at most {:,}",
    "less_than": "must be less than {:,}",
}
"""What is wrong, by pydantic's type of an error; with the number that it has in its context."""


@dataclass(frozen=True, slots=True)
class LoadedRegistry:
    """`path` is None if there is no file: an empty registry with the defaults."""

    registry: Registry
    warnings: tuple[Problem, ...] = ()
    path: Path | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    """What is written to the database."""
    digest: str = ""
    """Digest of the meaning of the file: comments and the order of keys do not change it."""


def load_registry(path: Path | None, environ: Mapping[str, str] = os.environ) -> LoadedRegistry:
    """Read and check the registry at `path`.

    Raises RegistryErrors with all problems of the file, ConfigError if it cannot be read.
    """
    if path is None:
        return LoadedRegistry(Registry())
    document = read_document(content_of(path), str(path), environ)
    # Not resolve(): a mounted ConfigMap is a symlink, and relative paths start at the folder that people see.
    context = RegistryFile(path.absolute().parent)
    try:
        registry = Registry.model_validate({} if document.data is None else document.data, context=context)
    except ValidationError as error:
        raise RegistryErrors([*document.problems, *validation_problems(error, document, Registry)]) from None
    if document.problems:
        raise RegistryErrors(document.problems)
    warnings = [document.problem_at(loc, message) for loc, message in _warnings(document, registry)]
    stored = registry.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"repositories"})
    entries = {each.name: each.definition for each in registry.resolved()}
    digest = hashlib.sha256(json.dumps([stored, entries], sort_keys=True, default=str).encode()).hexdigest()
    stored.pop("groups", None)
    ordered = tuple(sorted(warnings, key=lambda each: (each.line, each.column)))
    return LoadedRegistry(registry, ordered, path, stored, digest)


def checked_repository(registry: Registry, values: Mapping[str, object]) -> ResolvedRepository:
    """A repository from a request or a command, with the keys of the file. Null is the same as leaving the key out:
    `never` has to be written.

    Raises ConfigError with all problems, one per line, without secrets.
    """
    try:
        given = {key: value for key, value in values.items() if value is not None}
        return registry.resolve(Repository.model_validate(given))
    except ValidationError as error:
        problems = sentences(error, within=("repositories", 0))
    raise ConfigError("\n".join(problems))


def checked_group(registry: Registry, values: Mapping[str, object]) -> Group:
    """A group from a request or a command, as `checked_repository`."""
    try:
        group = Group.model_validate({key: value for key, value in values.items() if value is not None})
    except ValidationError as error:
        problems = sentences(error, within=("groups", 0))
    else:
        registry.check(group)
        return group
    raise ConfigError("\n".join(problems))


def sentences(error: ValidationError, *, within: Loc = ()) -> list[str]:
    """The problems of values that are in no file. `within`: where in a registry they belong."""
    details = error.errors(include_url=False, include_input=False)
    return [_sentence(each, Document(""), Registry, within=within) for each in details]


def content_of(path: Path, what: str = "registry file", *, max_bytes: int = MAX_BYTES) -> bytes:
    """Raises ConfigError. One byte more than the limit shows that the file is too large, even if it is a pipe."""
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        raise ConfigError(f"There is no {what} {path}.", remedy="Create it, or name a different one.") from None
    except OSError as error:
        raise ConfigError(f"The {what} {path} cannot be read: {error.strerror}.") from None


# Warnings: what is accepted, but probably a mistake or unsafe. None of them holds a secret.


def _warnings(document: Document, registry: Registry) -> Iterator[Finding]:
    for loc, text in document.texts.items():
        if loc[-1:] and loc[-1] in _SECRET_KEYS and isinstance(text, Interpolated) and not text and text.values:
            yield loc, f"`{loc[-1]}` is empty, because {text.raw} is: nothing is sent"
    for index, server in enumerate(registry.gitlab):
        if server.token and _is_unencrypted(server.url):
            yield ("gitlab", index, "url"), "the token is sent unencrypted over http://"
    yield from _without_prefix(registry.embedding)
    for index, repository in enumerate(registry.repositories):
        if repository.git and repository.password and _is_unencrypted(repository.git):
            yield ("repositories", index, "git"), "the password is sent unencrypted over http://"
    yield from _missing((), registry)


def _missing(loc: Loc, value: object) -> Iterator[Finding]:
    """Files and folders that a different machine may have: whoever opens them reports that they are missing."""
    if isinstance(value, Path):
        with contextlib.suppress(OSError):  # a name that is too long
            if value.exists():
                return
        yield loc, f"there is no such {'folder' if loc[-1] == 'path' else 'file'} on this machine"
    elif isinstance(value, BaseModel):
        for name, each in value:
            yield from _missing((*loc, type(value).model_fields[name].alias or name), each)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _missing((*loc, index), each)


def _without_prefix(embedding: EmbeddingConfig) -> Iterator[Finding]:
    needed = prefixes_of(embedding.model)
    for kind in ("query", "document"):
        key, prefix = f"{kind}_prefix", getattr(needed, kind, "")
        is_replaced = any(getattr(embedding, f"{kind}_{name}") for name in ("prompt_name", "input_type", "task"))
        if prefix and getattr(embedding, key) == "" and not is_replaced:
            yield ("embedding", key), f"`{key}` is empty, but {embedding.model} needs {prefix!r}: leave `{key}` out"


def _is_unencrypted(url: str) -> bool:
    split = urlsplit(url)
    return split.scheme == "http" and split.hostname not in ("localhost", "127.0.0.1", "::1")


# Messages about what is wrong.


def validation_problems(error: ValidationError, document: Document, model: type[BaseModel]) -> list[Problem]:
    """The problems of `document`, checked as `model`. Values with a problem already are left out."""
    found = error.errors(include_url=False, include_input=False)
    return [
        document.problem_at(details["loc"], _sentence(details, document, model))
        for details in found
        if details["type"] != "default_factory_not_called"  # the overlap of no size
        and (details["type"] == "extra_forbidden" or not document.is_unusable(details["loc"]))
    ]


def _sentence(details: ErrorDetails, document: Document, model: type[BaseModel], within: Loc = ()) -> str:
    """One sentence that names the key and, if a name is unknown, the nearest known one.

    `within`: where in a `model` the checked value belongs. The sentence holds no secret, but it may hold values of
    variables, which `Document.without_values` removes.
    """
    loc, kind, context = details["loc"], details["type"], details.get("ctx", {})
    key, around = dotted(loc) or "the file", dotted(loc[:-1])
    prefix = f"{around}: " if around else ""
    if kind == "extra_forbidden":
        return unknown_key(loc, within, model)
    if kind == "missing":
        return f"{prefix}`{loc[-1]}` is missing"
    if kind == "contradiction":
        return f"{key}: {context['message']}"
    if kind == "value_error":
        error = context["error"]
        text = document.texts.get(loc)
        if getattr(error, "quotes_value", False) and isinstance(text, Interpolated) and text.values:
            # The message would show parts of the value, which may be a secret in the wrong place.
            return f"{key}: the value of {text.raw} cannot be read"
        return f"{prefix}{error}" if getattr(error, "is_sentence", False) else f"{key} {error}"
    if kind == "literal_error":
        expected = str(context["expected"])
        near = nearest(document.texts.get(loc, ""), re.findall(r"'([^']*)'", expected))
        return f"{key} must be {expected}{f'; did you mean `{near}`?' if near else ''}"
    if kind in _KINDS:
        numbers = [value for value in context.values() if isinstance(value, int | float)]
        return f"{key} {_KINDS[kind].format(*(int(each) if each == int(each) else each for each in numbers))}"
    return f"{key}: {details['msg']}"


def dotted(loc: Loc) -> str:
    """`repositories[2].chunk.size`"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def known_keys(loc: Loc, model: type[BaseModel]) -> tuple[str, ...]:
    """The keys that a mapping at this place of a `model` may have."""
    for part in loc:
        if isinstance(part, str):
            model = next(_models(model.model_fields[part].annotation))
    return tuple(field.alias or name for name, field in model.model_fields.items())


def unknown_key(loc: Loc, within: Loc, model: type[BaseModel]) -> str:
    """The sentence about it. `within`: where in a `model` the checked value belongs."""
    key, around = str(loc[-1]), dotted(loc[:-1])
    # A whole line pasted in the wrong place may be the key: it is cut, because a secret may follow a space.
    shown = key if re.fullmatch(r"[\w.-]{1,40}", key) else f"{key.split()[0][:20] if key.split() else ''}…"
    if (instead := _REMOVED_KEYS.get((*within, *loc))) is not None:
        return f"unknown key `{key}` in {around}: it was removed, delete it; {instead}"
    known = known_keys((*within, *loc[:-1]), model)
    meant, how = _KEYS_OF_OTHER_PROGRAMS.get(key, ("", ""))
    hint = f"; {how}" if meant in known else suggestion(key, known)
    return f"unknown key `{shown}`{f' in {around}' if around else ''}{hint}"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation such as `tuple[Repository, ...]` or `Chunk | None`."""
    if hasattr(annotation, "model_fields"):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


# The registry in the database.


def registry_of(document: Mapping[str, Any], environ: Mapping[str, str]) -> Registry:
    """The registry of an applied document.

    Whoever needs a secret that this process lacks gets SecretMissing. Keys that a newer version of the program wrote
    are dropped. Raises ValidationError for a document that no version could have written.
    """
    return Registry.model_validate(document, extra="ignore", context=AppliedDocument(environ))


def repository_of(registry: Registry, definition: Mapping[str, Any], environ: Mapping[str, str]) -> ResolvedRepository:
    """The repository of a `ResolvedRepository.definition`. Raises ConfigError if the registry lacks its server."""
    values = {key: value for key, value in definition.items() if key in Repository.model_fields}
    return registry.resolve(Repository.model_validate(values, context=AppliedDocument(environ)))


def group_of(definition: Mapping[str, Any]) -> Group:
    """The group of the definition in its row. Raises ValidationError for one that no version could have written."""
    return Group.model_validate(definition, extra="ignore", context=AppliedDocument({}))
