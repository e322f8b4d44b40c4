"""Loads a registry file: a checked registry with warnings, or all problems of the file at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from reposync.config.document import MAX_BYTES, Document, read_document
from reposync.config.problems import Loc, Problem, RegistryErrors, dotted, nearest, unknown_key
from reposync.config.references import Interpolated, Reference, interpolate, split_credentials
from reposync.config.registry import Registry, Repository, ResolvedRepository
from reposync.config.registry_document import password_references, registry_document, resolved_definition
from reposync.config.schedule import uneven_step
from reposync.config.settings import qdrant_api_key, qdrant_url
from reposync.errors import ConfigError

Finding = tuple[Loc, str]
"""The path to a value, and a sentence about it."""

_SECRET_KEYS = frozenset({"token", "webhook_secret", "webhook_signing", "api_key", "password"})
_KINDS = {
    "tuple_type": "must be a list, such as [one, two]",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
}
_BOUNDS = {"greater_than_equal": "at least", "greater_than": "more than", "less_than_equal": "at most"}


@dataclass(frozen=True, slots=True)
class LoadedRegistry:
    """`path` is None if there is no file: an empty registry with the defaults."""

    registry: Registry
    warnings: tuple[Problem, ...] = ()
    path: Path | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    """What is written to the database (see `registry_document`)."""
    passwords: Mapping[str, Reference] = field(default_factory=dict)
    digest: str = ""
    """Digest of the meaning of the file: comments and the order of keys do not change it."""


def load_registry(path: Path | None, environ: Mapping[str, str] = os.environ) -> LoadedRegistry:
    """Read and check the registry at `path`; QDRANT_URL and QDRANT_API_KEY of `environ` override it.

    Raises RegistryErrors with all problems of the file, ConfigError if it cannot be read.
    """
    loaded = LoadedRegistry(Registry()) if path is None else _load(path, environ)
    qdrant = loaded.registry.qdrant.with_environment(qdrant_url(environ), qdrant_api_key(environ))
    return replace(loaded, registry=loaded.registry.model_copy(update={"qdrant": qdrant}))


def checked_repository(registry: Registry, values: Mapping[str, object]) -> ResolvedRepository:
    """A repository from a request or a command, with the keys of the file. Null is the same as leaving the key out:
    `never` has to be written.

    Raises ConfigError with all problems, one per line, without secrets.
    """
    try:
        given = {key: value for key, value in values.items() if value is not None}
        return registry.resolve(Repository.model_validate(given))
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = [_sentence(each, Document(""), Registry, within=("repositories", 0)) for each in details]
    raise ConfigError("\n".join(problems))


def _load(path: Path, environ: Mapping[str, str]) -> LoadedRegistry:
    document = read_document(_content(path), str(path), environ)
    problems = list(document.problems)
    registry = None
    try:
        # Not resolve(): a mounted ConfigMap is a symlink, and relative paths start at the folder that people see.
        base = path.absolute().parent
        registry = Registry.model_validate({} if document.data is None else document.data, context={"base": base})
    except ValidationError as error:
        problems += validation_problems(error, document, Registry)
    if problems or registry is None:
        raise RegistryErrors(problems)
    warnings = [document.problem_at(loc, message) for loc, message in _warnings(document, registry)]
    stored, passwords = registry_document(registry, document), password_references(registry, document)
    entries = {each.name: resolved_definition(each, passwords.get(each.name)) for each in registry.resolved()}
    digest = hashlib.sha256(json.dumps([stored, entries], sort_keys=True, default=str).encode()).hexdigest()
    ordered = tuple(sorted(warnings, key=lambda each: (each.line, each.column)))
    return LoadedRegistry(registry, ordered, path, stored, passwords, digest)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # One byte more than the limit shows that the file is too large, even if it is a pipe.
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"There is no registry file {path}.", remedy="Create it, or name a different one.") from None
    except OSError as error:
        raise ConfigError(f"The registry file {path} cannot be read: {error.strerror}.") from None


# Warnings: what is accepted, but probably a mistake or unsafe. None of them holds a secret.


def _warnings(document: Document, registry: Registry) -> Iterator[Finding]:
    for loc, raw in document.texts.items():
        yield from _secret_in_the_clear(loc, raw, document.interpolated.get(loc))
    for index, server in enumerate(registry.gitlab):
        if server.token and _is_unencrypted(server.url):
            yield ("gitlab", index, "url"), "the token is sent unencrypted over http://"
        if server.ca_file and not server.ca_file.is_file():
            yield ("gitlab", index, "ca_file"), "there is no such file on this machine"
    for section, service in (("embedding", registry.embedding), ("qdrant", registry.qdrant)):
        if service.ca_file and not service.ca_file.is_file():
            yield (section, "ca_file"), "there is no such file on this machine"
    for index, repository in enumerate(registry.repositories):
        if repository.git and repository.password and _is_unencrypted(repository.git):
            yield ("repositories", index, "git"), "the password is sent unencrypted over http://"
        if repository.path and not Path(repository.path).is_dir():
            yield ("repositories", index, "path"), "there is no such folder on this machine"
    yield from _same_source_twice(registry)
    yield from _uneven_schedules(registry)


def _secret_in_the_clear(loc: Loc, raw: str, value: Interpolated | None) -> Iterator[Finding]:
    key = loc[-1] if loc else None
    if key == "git" and value is None and split_credentials(interpolate(raw, {}))[1] is not None:
        yield loc, "the address holds credentials in the clear; write https://user:${VARIABLE}@..."
    if key not in _SECRET_KEYS or not raw:
        return
    if re.fullmatch(r"\$[A-Za-z_][A-Za-z0-9_]*", raw):
        yield loc, f"`{key}` is used literally; for the value of a variable write ${{{raw[1:]}}}"
    elif value is None:
        yield loc, f"`{key}` is in the clear; write ${{VARIABLE}} and set it in the environment"
    elif not value and value.from_environment:
        yield loc, f"`{key}` is empty, because {raw} is: nothing is sent"
    elif any(part.defaulted and part.text for part in value.parts):
        yield loc, f"the default of `{key}` is in the clear; leave it out"


def _is_unencrypted(url: str) -> bool:
    split = urlsplit(url)
    return split.scheme == "http" and split.hostname not in ("localhost", "127.0.0.1", "::1")


def _same_source_twice(registry: Registry) -> Iterator[Finding]:
    seen: dict[tuple[str, str | None, str], str] = {}
    for index, repository in enumerate(registry.resolved()):
        source = (repository.location, repository.branch, repository.collection)
        first = seen.setdefault(source, repository.name)
        if first != repository.name:
            yield ("repositories", index), f"the same source as {first!r}, in the same collection: it is indexed twice"


def _uneven_schedules(registry: Registry) -> Iterator[Finding]:
    written: list[tuple[Loc, str | None]] = [(("defaults", "schedule"), registry.defaults.schedule)]
    written += [
        (("repositories", index, "schedule"), each.schedule) for index, each in enumerate(registry.repositories)
    ]
    for index, group in enumerate(registry.groups):
        written += [(("groups", index, "schedule"), group.schedule), (("groups", index, "discover"), group.discover)]
    for loc, text in written:
        if text and (uneven := uneven_step(text)):
            yield loc, uneven


def validation_problems(error: ValidationError, document: Document, model: type[BaseModel]) -> list[Problem]:
    """The problems of `document`, checked as `model`. Values with a problem already are left out."""
    found = error.errors(include_url=False, include_input=False)
    found = [details for details in found if details["type"] != "default_factory_not_called"]  # the overlap of no size
    extra = {details["loc"] for details in found if details["type"] == "extra_forbidden"}
    # The message about `url` already says that the source is missing, which the model reports at `path`.
    reported = {(*loc[:-1], "path") for loc in extra if loc[-1] == "url"}
    return [
        document.problem_at(details["loc"], _sentence(details, document, model))
        for details in found
        if details["loc"] in extra or not (details["loc"] in reported or document.is_unusable(details["loc"]))
    ]


def _sentence(details: ErrorDetails, document: Document, model: type[BaseModel], within: Loc = ()) -> str:
    """One sentence that names the key and, if a name is unknown, the nearest known one.

    `within`: where in a `model` the checked value belongs. The sentence holds no secret, but it may hold values of
    variables, which `Document.without_values` removes.
    """
    loc, kind, context = details["loc"], details["type"], details.get("ctx", {})
    key, around = dotted(loc), dotted(loc[:-1])
    prefix = f"{around}: " if around else ""
    if kind == "extra_forbidden":
        return unknown_key(loc, within, model)
    if kind == "missing":
        return f"{prefix}`{loc[-1]}` is missing"
    if kind == "contradiction":
        other = context.get("other")
        return f"{key}: {context['message']}{f', in line {document.place_of(other).line}' if other else ''}"
    if kind == "value_error":
        error = context["error"]
        text = document.interpolated.get(loc)
        if getattr(error, "quotes_value", False) and text and text.from_environment:
            # The message would show parts of the value, which may be a secret in the wrong place.
            return f"{key}: the value of {text.raw} cannot be read"
        return f"{prefix}{error}" if getattr(error, "is_sentence", False) else f"{key} {error}"
    if kind == "literal_error":
        expected = str(context["expected"])
        near = nearest(document.texts.get(loc, ""), re.findall(r"'([^']*)'", expected))
        return f"{key} must be {expected}{f'; did you mean `{near}`?' if near else ''}"
    if kind in _BOUNDS or kind == "less_than":
        bound = next(iter(context.values()))
        return f"{key} must be {_BOUNDS.get(kind, 'less than')} {int(bound) if float(bound).is_integer() else bound:,}"
    if kind in _KINDS:
        return f"{key} {_KINDS[kind]}" if loc else f"the file {_KINDS[kind]}, such as `repositories:`"
    return f"{key}: {details['msg']}"
