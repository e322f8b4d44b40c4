"""The registry as JSON for the database, with references in place of secrets, and the registry made of such JSON.

A document holds the sections of a registry file without `repositories`: each of those is a row of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import SecretStr, ValidationError

from reposync.config.document import Document
from reposync.config.references import Reference, reference_to, reference_to_credentials, resolve_reference
from reposync.config.registry import Registry, Repository, ResolvedRepository
from reposync.config.schedule import NEVER

SERVER_SECRETS = ("token", "webhook_secret", "webhook_signing")
SECTIONS_WITH_API_KEY = ("embedding", "qdrant")
LISTS = ("gitlab", "groups")
SETTINGS = ("defaults", "embedding", "qdrant", "index", "daemon", "http")

Clear = Mapping[str, SecretStr]
"""Secrets in the clear in a registry file, by their name in messages."""


def _server_secret(name: str, key: str) -> str:
    return f"`{key}` of GitLab server {name!r}"


def _section_secret(section: str) -> str:
    return f"`api_key` of `{section}`"


def _password(repository: str) -> str:
    return f"`password` of repository {repository!r}"


def registry_document(registry: Registry, document: Document) -> dict[str, Any]:
    """`document`: the file that `registry` was made of."""
    stored = registry.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"repositories"})
    for index, server in enumerate(registry.gitlab):
        for key in SERVER_SECRETS:
            if getattr(server, key) is not None:
                stored["gitlab"][index][key] = reference_to(document.texts[("gitlab", index, key)], document.file)
    for section in SECTIONS_WITH_API_KEY:
        if getattr(registry, section).api_key is not None:
            stored[section]["api_key"] = reference_to(document.texts[(section, "api_key")], document.file)
    return stored


def password_references(registry: Registry, document: Document) -> dict[str, Reference]:
    """By name of the repository, for those that have a password."""
    found = {}
    for index, repository in enumerate(registry.repositories):
        if repository.password is not None:
            raw = document.texts.get(("repositories", index, "password"))
            found[repository.name] = (
                reference_to(raw, document.file)
                if raw is not None
                else reference_to_credentials(document.texts[("repositories", index, "git")], document.file)
            )
    return found


def clear_secrets(registry: Registry) -> dict[str, SecretStr]:
    """Every secret of a registry that was read from a file, by its name in messages."""

    def named() -> Iterator[tuple[str, SecretStr | None]]:
        for server in registry.gitlab:
            yield from ((_server_secret(server.name, key), getattr(server, key)) for key in SERVER_SECRETS)
        for section in SECTIONS_WITH_API_KEY:
            yield _section_secret(section), getattr(registry, section).api_key
        yield from ((_password(each.name), each.password) for each in registry.repositories)

    return {name: secret for name, secret in named() if secret is not None}


def registry_of(documents: Sequence[Mapping[str, Any]], environ: Mapping[str, str], clear: Clear) -> Registry:
    """The registry made of the documents of all applied files; a section of an earlier one wins.

    A secret that this process lacks becomes a `MissingSecret`. Keys that a newer version of the program wrote are
    dropped. Raises ValidationError for a document that no version could have written.
    """
    merged = merge_documents(documents)
    for server in merged.get("gitlab", ()):
        for key in SERVER_SECRETS:
            _resolve(server, key, _server_secret(server["name"], key), environ, clear)
    for section in SECTIONS_WITH_API_KEY:
        _resolve(merged.get(section, {}), "api_key", _section_secret(section), environ, clear)
    try:
        return Registry.model_validate(merged)
    except ValidationError as error:
        unknown = [each["loc"] for each in error.errors(include_url=False) if each["type"] == "extra_forbidden"]
        if not unknown:
            raise
    for loc in unknown:
        _remove(merged, loc)
    return Registry.model_validate(merged)


def _resolve(values: dict[str, Any], key: str, secret: str, environ: Mapping[str, str], clear: Clear) -> None:
    """Replace the reference under `key`, if there is one, by its value."""
    if isinstance(values.get(key), Mapping):
        values[key] = resolve_reference(values[key], secret, environ, clear)


def merge_documents(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for document in copy.deepcopy(list(documents)):
        for section, value in document.items():
            if section in LISTS and section in merged:
                known = {entry_key(section, each) for each in merged[section]}
                merged[section] += [each for each in value if entry_key(section, each) not in known]
            else:
                merged.setdefault(section, value)
    return merged


def entry_key(section: str, entry: Mapping[str, Any]) -> str:
    """The identity of a server or a group, as it is displayed."""
    return str(entry["name"]) if section == "gitlab" else f"{entry['gitlab']}/{entry['group']}"


def resolved_definition(resolved: ResolvedRepository, password: Reference | None) -> dict[str, Any]:
    """With the keys of the registry file, all defaults filled in, and a reference for the password."""
    source: dict[str, Any]
    if resolved.gitlab is not None:
        source = {"gitlab": resolved.gitlab.name, "project": resolved.project}
    elif resolved.git_url is not None:
        source = {"git": resolved.git_url, "username": resolved.username, "password": password}
    else:
        source = {"path": str(resolved.path)}
    return {
        "name": resolved.name,
        **{key: value for key, value in source.items() if value is not None},
        "branch": resolved.branch,
        "schedule": resolved.schedule.cron if resolved.schedule else NEVER,
        "timezone": resolved.timezone,
        "collection": resolved.collection,
        "chunk": {"size": resolved.chunk_size, "overlap": resolved.chunk_overlap},
        "max_file_bytes": resolved.max_file_bytes,
        "include": list(resolved.include),
        "exclude": list(resolved.exclude),
    }


def repository_of(
    registry: Registry, definition: Mapping[str, Any], environ: Mapping[str, str], clear: Clear
) -> ResolvedRepository:
    """The repository of a `resolved_definition`. Raises ConfigError if the registry lacks its server."""
    values = {key: value for key, value in definition.items() if key in Repository.model_fields}
    _resolve(values, "password", _password(str(values["name"])), environ, clear)
    return registry.resolve(Repository.model_validate(values))


def _remove(values: Any, loc: Sequence[int | str]) -> None:
    for part in loc[:-1]:
        values = values[part]
    del values[loc[-1]]
