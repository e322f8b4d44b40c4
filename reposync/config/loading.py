"""From a YAML file to a checked registry, or to everything that is wrong with it at once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reposync.config.complaints import REPOSITORY, complaint, complaints, problem
from reposync.config.document import MAX_BYTES, Document, read_document
from reposync.config.problems import Problem, RegistryErrors
from reposync.config.references import Reference
from reposync.config.registry import Registry, Repository, ResolvedRepository
from reposync.config.registry_document import password_references, registry_document, resolved_definition
from reposync.config.settings import qdrant_api_key, qdrant_url
from reposync.config.suspicions import suspicions
from reposync.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadedRegistry:
    """`path` is None where there is no file: an empty registry with the defaults."""

    registry: Registry
    warnings: tuple[Problem, ...] = ()
    path: Path | None = None
    document: Mapping[str, Any] = field(default_factory=dict)
    """What goes into the database (see `registry_document`)."""
    passwords: Mapping[str, Reference] = field(default_factory=dict)
    digest: str = ""
    """Of what the file says, whatever it looks like: comments and the order of keys do not count."""


def load_registry(path: Path | None, environ: Mapping[str, str] = os.environ) -> LoadedRegistry:
    """Read and check the registry at `path`; QDRANT_URL and QDRANT_API_KEY of `environ` win over it.

    Raises RegistryErrors with all problems of the file, ConfigError where it cannot be read.
    """
    loaded = LoadedRegistry(Registry()) if path is None else _loaded(path, environ)
    qdrant = loaded.registry.qdrant.with_environment(qdrant_url(environ), qdrant_api_key(environ))
    return replace(loaded, registry=loaded.registry.model_copy(update={"qdrant": qdrant}))


def checked_repository(registry: Registry, values: Mapping[str, object]) -> ResolvedRepository:
    """A repository that does not come from the file but from a request or a command, with the same keys. Null is what
    is left out: `never` has to be written.

    Raises ConfigError with everything that is wrong with it, a line each, and no secret in it.
    """
    try:
        given = {key: value for key, value in values.items() if value is not None}
        return registry.resolve(Repository.model_validate(given))
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        wrong = [complaint(each, Document(""), within=REPOSITORY) for each in details]
    raise ConfigError("\n".join(wrong))


def _loaded(path: Path, environ: Mapping[str, str]) -> LoadedRegistry:
    document = read_document(_content(path), str(path), environ)
    problems = list(document.problems)
    registry = None
    try:
        # Not resolve(): a mounted ConfigMap is a symlink, and relative paths mean the folder that people see.
        base = path.absolute().parent
        registry = Registry.model_validate({} if document.data is None else document.data, context={"base": base})
    except ValidationError as error:
        problems += complaints(error, document)
    if problems or registry is None:
        raise RegistryErrors(problems)
    warnings = [problem(document, loc, message) for loc, message in suspicions(document, registry)]
    said, passwords = registry_document(registry, document), password_references(registry, document)
    return LoadedRegistry(
        registry,
        tuple(sorted(warnings, key=lambda each: (each.line, each.column))),
        path,
        said,
        passwords,
        _digest(registry, said, passwords),
    )


def _digest(registry: Registry, document: Mapping[str, Any], passwords: Mapping[str, Reference]) -> str:
    entries = {each.name: resolved_definition(each, passwords.get(each.name)) for each in registry.resolved()}
    return hashlib.sha256(json.dumps([document, entries], sort_keys=True, default=str).encode()).hexdigest()


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            # One byte more than allowed tells that there is more, also where the size is not known (a pipe).
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"There is no registry file {path}.", remedy="Make it, or name another one.") from None
    except OSError as error:
        raise ConfigError(f"The registry file {path} cannot be read: {error.strerror}.") from None
