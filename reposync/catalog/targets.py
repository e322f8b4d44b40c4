"""Repositories of the catalogue: found by name, path or URL, turned into a source and settings; added, changed and
removed outside the registry file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reposync.config.loading import checked_repository, repository_of
from reposync.config.registry import Registry, ResolvedRepository
from reposync.config.schedule import NEVER
from reposync.errors import (
    ConfigError,
    RepositoryChanged,
    RepositoryExists,
    RepositoryNotFound,
    RepositoryReadOnly,
    SourceElsewhere,
    UsageError,
)
from reposync.next_steps import ApplyRegistry, ListRepositories, RemoveRepository
from reposync.paths import existing_path
from reposync.sources.port import Commit, GitLabProject, LocalGit, RemoteGit, SourceSpec
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration, Repository, unregistered
from reposync.store.run import Ask, Run
from reposync.store.runs import Runs
from reposync.words import nearest

if TYPE_CHECKING:
    from reposync.sync.target import SyncSettings

CONFIG, COMMAND, GROUP = "config", "command", "group"


def registration_of(resolved: ResolvedRepository, origin: str, **columns: Any) -> Registration:
    """`columns`: others of `Registration`, which depend on the origin."""
    is_scheduled = resolved.schedule != NEVER and not columns.get("by_hand")
    return Registration(
        name=resolved.name,
        location=resolved.location,
        source=resolved.kind,
        origin=origin,
        branch=resolved.branch,
        collection=resolved.collection,
        cron_expression=resolved.schedule if is_scheduled else None,
        timezone=resolved.timezone,
        resolved=resolved.definition,
        **({"origin_host": socket.gethostname()} | columns),
    )


def redefined(row: Repository, resolved: ResolvedRepository, **columns: Any) -> Registration:
    """A different definition of a repository that was registered by command or over HTTP."""
    same = {"definition": row.definition, "by_hand": row.by_hand, "origin_host": row.origin_host}
    return registration_of(resolved, row.origin, **(same | columns))


def server_at(registry: Registry, location: str) -> str | None:
    """The address of the server that has the project. One server's URL may start with another's."""
    urls = (server.url for server in registry.gitlab)
    return max((url for url in urls if location.lower().startswith(f"{url}/".lower())), key=len, default=None)


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """The row of a repository, and its definition with the servers and secrets of this process."""

    repository: ResolvedRepository
    row: Repository

    @property
    def name(self) -> str:
        return self.row.name

    def settings(self, fingerprint_key: bytes = b"") -> SyncSettings:
        """`fingerprint_key`: of the fingerprints of secrets."""
        # Only for a sync: a search knows the targets too, and needs neither path rules nor readers of files.
        from reposync.content.secret_policy import SecretAction, SecretPolicy
        from reposync.sync.prepare import ContentSettings
        from reposync.sync.target import SyncSettings

        resolved, policy = self.repository, self.repository.policy
        return SyncSettings(
            resolved.location,
            resolved.server.url if resolved.server is not None else None,
            resolved.branch,
            resolved.include,
            resolved.exclude,
            ContentSettings(resolved.chunk.size, resolved.chunk.overlap, resolved.max_file_bytes),
            SecretPolicy(
                SecretAction(policy.action),
                SecretAction(policy.generic),
                policy.allow,
                policy.allow_values,
                fingerprint_key,
            ),
        )

    def source(self) -> SourceSpec:
        """With results of earlier runs: the numeric id of a GitLab project, the last commit. Raises SourceElsewhere for
        a folder of a different machine."""
        resolved, row = self.repository, self.row
        if resolved.server is not None and resolved.project is not None:
            return GitLabProject(resolved.server, resolved.project, row.project_id, resolved.branch)
        if resolved.git is not None:
            known = None
            if row.last_commit is not None and row.last_committed_at is not None:
                known = Commit(row.last_commit, row.last_committed_at)
            return RemoteGit(resolved.git, resolved.branch, resolved.username, resolved.password, known_commit=known)
        path = resolved.path or Path(resolved.location)
        here = socket.gethostname()
        if row.origin_host not in (None, here) and not path.exists():
            raise SourceElsewhere(f"The folder {path} is on {row.origin_host}; this is {here}, which does not have it.")
        return LocalGit(path, resolved.branch)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The registered repositories. `registry`: the sections of the applied document."""

    registry: Registry
    repositories: Repositories
    unapplied: Path | None = None
    """This process's registry file, if a different one, or none, was applied."""

    async def find(self, word: str) -> SyncTarget:
        """A registered name, an https URL, or a path inside a git repository, in this order.

        Raises RepositoryNotFound, and UsageError for an address that cannot be used.
        """
        for row in await self.repositories.list([word]):
            return self.of_row(row)
        if "://" in word:
            return await self._at_place(*_name_of_url(word), "git")
        root = await asyncio.to_thread(_repository_root, word)
        if root is not None:
            return await self._at_place(_name(root.name) or "repository", str(root), "path")
        raise self._unknown(word, await self.repositories.names())

    def of_row(self, row: Repository) -> SyncTarget:
        """Raises RepositoryNotFound if an earlier version registered it from a file that was not applied since, and
        ConfigError if its GitLab server is in no applied file."""
        definition = row.resolved or row.definition
        if definition is None and row.origin == CONFIG:
            raise RepositoryNotFound(
                f"Repository {row.name!r} is from a registry file that was not applied since an upgrade.",
                next_steps=[ApplyRegistry()],
            )
        definition = definition or _place(row.name, row.location, row.source)
        try:
            return SyncTarget(repository_of(self.registry, definition, os.environ), row)
        except ValueError as error:  # pydantic's: a newer version of the program may have written more into it
            raise ConfigError(f"The definition of {row.name!r} cannot be read by this version.") from error

    def _unknown(self, word: str, names: Iterable[str]) -> RepositoryNotFound:
        near = nearest(word, names)
        text = f"{word!r} is not a registered repository, a path or a URL."
        if self.unapplied is not None:
            return RepositoryNotFound(f"{text} {self.unapplied} was not applied yet.", next_steps=[ApplyRegistry()])
        if near:
            return RepositoryNotFound(text, remedy=f"Did you mean {near!r}?")
        return RepositoryNotFound(text, next_steps=[ListRepositories()])

    async def _at_place(self, name: str, location: str, kind: str) -> SyncTarget:
        """The repository at that location. A second repository of the same name gets a suffix made from its
        location."""
        for row in await self.repositories.find(source=kind, location=location):
            return self.of_row(row)
        if await self.repositories.list([name]):
            name = f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:6]}"
        definition = _place(name, location, kind)
        resolved = checked_repository(self.registry, definition)
        return SyncTarget(
            resolved, unregistered(registration_of(resolved, COMMAND, definition=definition, by_hand=True))
        )


def _place(name: str, location: str, kind: str) -> dict[str, Any]:
    """The definition of a repository that is known only by its location."""
    return {"name": name, "path" if kind == "path" else "git": location}


def _name(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem.removesuffix(".git")).strip("-.")


def _name_of_url(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{parts.scheme}:// URLs cannot be synced.", remedy="Use an https:// address.")
    if parts.password or parts.username:
        raise UsageError(
            "A password on the command line would stay in the shell's history.",
            remedy="Register the repository in the configuration, with ${VARIABLE} in its address.",
        )
    return _name(parts.path.rstrip("/").rpartition("/")[2]) or parts.hostname, url


def _repository_root(word: str) -> Path | None:
    """The repository that contains this path, found as git does: the nearest parent folder with `.git`, or a bare
    repository itself. None: no such path. Raises UsageError for a path outside a repository."""
    path = existing_path(word)
    if path is None:
        return None
    path = path.resolve()
    if is_bare_repository(path):
        return path
    for folder in (path, *path.parents):
        if (folder / ".git").exists():
            return folder
    raise UsageError(f"{path} is not in a git repository.", remedy="`git init` makes one; an empty one needs a commit.")


def is_bare_repository(path: Path) -> bool:
    return (path / "HEAD").is_file() and (path / "objects").is_dir()


# Changes outside the registry file -----------------------------------------------------------------------------------


async def add_repository(catalog: Catalog, definition: Mapping[str, Any], *, origin: str = COMMAND) -> Repository:
    """Register `definition`, which has the keys of the registry file. A repository that was synced by hand becomes
    scheduled. Raises ConfigError for an invalid definition, UsageError for a password, RepositoryReadOnly and
    RepositoryExists if the name is taken."""
    resolved = _without_password(catalog, definition)
    if resolved.path is not None:
        if not await asyncio.to_thread(
            lambda path: (path / ".git").exists() or is_bare_repository(path), resolved.path
        ):
            remedy = "Name the folder that has `.git`."
            raise UsageError(f"{resolved.path} is not a git repository on this machine.", remedy=remedy)
        definition = {**definition, "path": str(resolved.path)}
    for row in await catalog.repositories.list([resolved.name]):
        if row.origin == CONFIG and not row.has_left:
            raise _read_only(row.name, f"is in {row.origin_words}")
        if not row.by_hand or row.location != resolved.location:
            raise RepositoryExists(
                f"There is a repository {row.name!r} already: {row.location}.",
                remedy="Choose another name, or remove that one first.",
                next_steps=[RemoveRepository(row.name)],
            )
    return await catalog.repositories.register(registration_of(resolved, origin, definition=definition))


async def change_repository(
    catalog: Catalog, name: str, changes: Mapping[str, Any], *, expected: Repository | None = None
) -> Repository:
    """Change keys of a registered definition; None resets a key to the default. Setting `schedule`, also to the
    default, makes a repository that was synced by hand a scheduled one. Concurrent changes are merged. `expected`: the
    row as the caller read it; if it was changed since, RepositoryChanged is raised.

    Raises RepositoryNotFound, RepositoryReadOnly if it was not registered by command or over HTTP, ConfigError,
    UsageError for a password, and RepositoryChanged.
    """
    while True:
        row = expected or await catalog.repositories.get(name)
        try:
            return await catalog.repositories.register(_changed(catalog, row, changes), expected=row)
        except RepositoryChanged:
            if expected is not None:
                raise


def changeable_definition(row: Repository) -> Mapping[str, Any]:
    """Raises RepositoryReadOnly if it was not registered by command or over HTTP."""
    if row.origin == CONFIG:
        raise _read_only(row.name, f"is in {row.origin_words}")
    if row.definition is None or row.group_key is not None:
        raise _read_only(row.name, "was registered by a group or by a different version of reposync")
    return row.definition


def _changed(catalog: Catalog, row: Repository, changes: Mapping[str, Any]) -> Registration:
    definition = {key: value for key, value in {**changeable_definition(row), **changes}.items() if value is not None}
    resolved = _without_password(catalog, definition)
    return redefined(row, resolved, definition=definition, by_hand=row.by_hand and "schedule" not in changes)


async def request_removal(repositories: Repositories, runs: Runs, name: str, ask: Ask) -> Run:
    """Queue the run that removes the repository, whose active run is requested to end. A repeated request returns the
    same run.

    Raises RepositoryNotFound, and RepositoryReadOnly if it would be registered again.
    """
    row = await repositories.get(name)
    again = "and would be registered again."
    if row.origin == CONFIG and not row.has_left:
        raise RepositoryReadOnly(f"{row.name!r} is in {row.origin_words}, {again}", remedy="Remove it there first.")
    if row.group_key is not None and row.is_active:
        raise RepositoryReadOnly(
            f"{row.name!r} belongs to the group {row.group_key}, {again}",
            remedy="Add its path to the group's `exclude` first.",
        )
    return (await runs.enqueue(row.name, ask))[0]


async def syncable(repositories: Repositories, name: str, identity: str | None = None) -> Repository:
    """The repository, if it can be synced; by its `identity`, if given. Raises RepositoryNotFound,
    RepositoryInactive."""
    row = await repositories.get(name, identity)
    row.require_registered()
    return row


def _without_password(catalog: Catalog, definition: Mapping[str, Any]) -> ResolvedRepository:
    """Raises ConfigError for an invalid definition, UsageError for a password."""
    resolved = checked_repository(catalog.registry, definition)
    if resolved.password is not None:
        raise UsageError(
            "Passwords are not stored in the database.",
            remedy="Register this repository in the registry file, with ${VARIABLE} in its address.",
        )
    return resolved


def _read_only(name: str, why: str) -> RepositoryReadOnly:
    return RepositoryReadOnly(f"{name!r} {why}.", remedy="Change it there.")
