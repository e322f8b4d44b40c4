"""The registry as JSON for the database, with references in place of secrets, and back.

A document holds the sections that a registry file has, without `repositories`: each of those is a row of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import SecretStr, ValidationError

from reposync.config.document import Document
from reposync.config.references import Reference, reference_to, reference_to_credentials, resolve_reference
from reposync.config.registry import Registry, Repository, ResolvedRepository
from reposync.config.schedule import NEVER

SERVER_SECRETS = ("token", "webhook_secret", "webhook_signing")
SECTION_SECRETS = {"embedding": ("api_key",), "qdrant": ("api_key",)}
LISTS = ("gitlab", "groups")
SETTINGS = ("defaults", "embedding", "qdrant", "index", "daemon", "http")

Clear = Mapping[str, SecretStr]
"""Secrets that stand in the clear in a registry file, by what they are called in messages."""


def secret_of_server(name: str, key: str) -> str:
    return f"`{key}` of GitLab server {name!r}"


def secret_of_section(section: str, key: str) -> str:
    return f"`{key}` of `{section}`"


def password_of(repository: str) -> str:
    return f"`password` of repository {repository!r}"


def registry_document(registry: Registry, read: Document) -> dict[str, Any]:
    """`read`: the file that `registry` was made of."""
    said = registry.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"repositories"})
    for index, server in enumerate(registry.gitlab):
        for key in SERVER_SECRETS:
            if getattr(server, key) is not None:
                said["gitlab"][index][key] = reference_to(read.texts[("gitlab", index, key)], read.file)
    for section, keys in SECTION_SECRETS.items():
        for key in keys:
            if getattr(getattr(registry, section), key) is not None:
                said[section][key] = reference_to(read.texts[(section, key)], read.file)
    return said


def password_references(registry: Registry, read: Document) -> dict[str, Reference]:
    """By name of the repository, of those that have a password."""
    found = {}
    for index, repository in enumerate(registry.repositories):
        if repository.password is not None:
            raw = read.texts.get(("repositories", index, "password"))
            found[repository.name] = (
                reference_to(raw, read.file)
                if raw is not None
                else reference_to_credentials(read.texts[("repositories", index, "git")], read.file)
            )
    return found


def clear_secrets(registry: Registry) -> dict[str, SecretStr]:
    """Every secret of a registry that was read from a file, under the name that messages have for it."""
    held: dict[str, SecretStr | None] = {}
    for server in registry.gitlab:
        held |= {secret_of_server(server.name, key): getattr(server, key) for key in SERVER_SECRETS}
    for section, keys in SECTION_SECRETS.items():
        held |= {secret_of_section(section, key): getattr(getattr(registry, section), key) for key in keys}
    held |= {password_of(each.name): each.password for each in registry.repositories}
    return {name: secret for name, secret in held.items() if secret is not None}


def registry_of(documents: Sequence[Mapping[str, Any]], environ: Mapping[str, str], clear: Clear) -> Registry:
    """One registry made of the documents of all applied files; of two that have the same section, the first counts.

    A secret that this process lacks becomes a `MissingSecret`. What a newer version of the program wrote and this one
    does not know is left out. Raises ValidationError for a document that no version could have written.
    """
    merged = merge_documents(documents)
    for server in merged.get("gitlab", ()):
        for key in SERVER_SECRETS:
            if isinstance(server.get(key), Mapping):
                server[key] = resolve_reference(server[key], secret_of_server(server["name"], key), environ, clear)
    for section, keys in SECTION_SECRETS.items():
        for key in keys:
            if isinstance(merged.get(section, {}).get(key), Mapping):
                reference = merged[section][key]
                merged[section][key] = resolve_reference(reference, secret_of_section(section, key), environ, clear)
    try:
        return Registry.model_validate(merged)
    except ValidationError as error:
        unknown = [each["loc"] for each in error.errors(include_url=False) if each["type"] == "extra_forbidden"]
        if not unknown:
            raise
    for loc in unknown:
        _remove(merged, loc)
    return Registry.model_validate(merged)


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
    """What tells one server or group from another, as a person writes it."""
    return str(entry["name"]) if section == "gitlab" else f"{entry['gitlab']}/{entry['group']}"


def resolved_definition(resolved: ResolvedRepository, password: Reference | None) -> dict[str, Any]:
    """With the keys of the registry file, nothing left to defaults, and a reference for the password."""
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
    registry: Registry, resolved: Mapping[str, Any], environ: Mapping[str, str], clear: Clear
) -> ResolvedRepository:
    """The way back. Raises ConfigError if the registry lacks its server."""
    values = {key: value for key, value in resolved.items() if key in Repository.model_fields}
    if isinstance(values.get("password"), Mapping):
        what = password_of(str(values["name"]))
        values["password"] = resolve_reference(values["password"], what, environ, clear)
    return registry.resolve(Repository.model_validate(values))


def _remove(values: Any, loc: Sequence[int | str]) -> None:
    for part in loc[:-1]:
        values = values[part]
    del values[loc[-1]]
