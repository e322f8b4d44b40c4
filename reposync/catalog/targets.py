"""Repositories of the catalogue: found by name, path or URL, turned into a source and settings; added, changed and
removed outside the registry file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reposync.config.loading import Clear, checked_repository, repository_of
from reposync.config.registry import Registry, ResolvedRepository
from reposync.config.schedule import NEVER
from reposync.errors import (
    ConfigError,
    Remedy,
    RepositoryChanged,
    RepositoryExists,
    RepositoryNotFound,
    RepositoryReadOnly,
    SourceElsewhere,
    UsageError,
)
from reposync.sources.port import Commit, GitLabProject, LocalGit, RemoteGit, SourceSpec
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration, Repository
from reposync.store.run import Ask, Run
from reposync.store.runs import Runs
from reposync.words import nearest

if TYPE_CHECKING:
    from reposync.sync.target import SyncSettings

CONFIG, COMMAND, GROUP = "config", "command", "group"
# Retries of a change that conflicts with a concurrent one.
_TRIES = 10


@dataclass(frozen=True, slots=True)
class SyncTarget:
    """A repository to sync, and where its definition comes from (see `Registration`)."""

    repository: ResolvedRepository
    origin: str
    by_hand: bool = False
    definition: Mapping[str, Any] | None = None
    group_key: str | None = None
    origin_file: str | None = None
    origin_host: str | None = None

    @property
    def name(self) -> str:
        return self.repository.name

    def registration(self) -> Registration:
        each = self.repository
        return Registration(
            name=each.name,
            location=each.location,
            source=each.kind,
            origin=self.origin,
            branch=each.branch,
            collection=each.collection,
            cron_expression=None if self.by_hand or each.schedule == NEVER else each.schedule,
            timezone=each.timezone,
            definition=self.definition,
            group_key=self.group_key,
            resolved=each.definition,
            origin_file=self.origin_file,
            origin_host=self.origin_host or socket.gethostname(),
            by_hand=self.by_hand,
        )

    def settings(self) -> SyncSettings:
        # Only for a sync: a search knows the targets too, and needs neither path rules nor readers of files.
        from reposync.sync.prepare import ContentSettings
        from reposync.sync.target import SyncSettings

        each = self.repository
        return SyncSettings(
            each.location,
            each.server.url if each.server is not None else None,
            each.branch,
            each.include,
            each.exclude,
            ContentSettings(each.chunk.size, each.chunk.overlap, each.max_file_bytes),
        )

    def source(self, row: Repository | None) -> SourceSpec:
        """`row`: results of earlier runs (the numeric id of a GitLab project, the last commit). Raises SourceElsewhere
        for a folder of a different machine."""
        each = self.repository
        if each.server is not None and each.project is not None:
            return GitLabProject(each.server, each.project, row.project_id if row else None, each.branch)
        if each.git is not None:
            known = None
            if row is not None and row.last_commit is not None and row.last_committed_at is not None:
                known = Commit(row.last_commit, row.last_committed_at)
            return RemoteGit(each.git, each.branch, each.username, each.password, known_commit=known)
        path = each.path or Path(each.location)
        here = socket.gethostname()
        if self.origin_host not in (None, here) and not path.exists():
            raise SourceElsewhere(
                f"The folder {path} is on {self.origin_host}; this is {here}, which does not have it."
            )
        return LocalGit(path, each.branch)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The registered repositories. `registry`: the sections of the applied document; `clear`: plain-text secrets
    that this process read from its own file."""

    registry: Registry
    repositories: Repositories
    clear: Clear = field(default_factory=dict)
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
        if row.resolved is not None:
            try:
                resolved = repository_of(self.registry, row.resolved, os.environ, self.clear)
            except ValueError as error:  # pydantic's: a newer version of the program may have written more into it
                raise ConfigError(f"The definition of {row.name!r} cannot be read by this version.") from error
        elif row.definition is not None:
            return self.of_definition(row)
        elif row.origin == CONFIG:
            raise RepositoryNotFound(
                f"Repository {row.name!r} is from a registry file that was not applied since an upgrade.",
                remedy=Remedy(
                    "`reposync apply FILE` applies it; so does `reposync serve`.",
                    "The operator of this server has to apply the file.",
                ),
            )
        else:
            return self._by_hand(row.name, row.location, row.source)
        return _of_row(row, resolved)

    def of_definition(self, row: Repository) -> SyncTarget:
        """As `of_row`, with the current defaults."""
        return _of_row(row, checked_repository(self.registry, row.definition or {}))

    def _unknown(self, word: str, names: Iterable[str]) -> RepositoryNotFound:
        near = nearest(word, names)
        listed = Remedy("`reposync repos list` shows all of them.", "`GET /api/v1/repositories` shows all of them.")
        text = f"{word!r} is not a registered repository, a path or a URL."
        if self.unapplied is not None:
            unapplied = f"{self.unapplied} was not applied yet"
            remedy = Remedy(f"{unapplied}: `reposync apply` does so.", f"{unapplied}.")
            return RepositoryNotFound(text, remedy=remedy)
        return RepositoryNotFound(text, remedy=f"Did you mean {near!r}?" if near else listed)

    async def _at_place(self, name: str, location: str, kind: str) -> SyncTarget:
        """The repository at that location. A second repository of the same name gets a suffix made from its
        location."""
        for row in await self.repositories.find(source=kind, location=location):
            return self.of_row(row)
        if await self.repositories.list([name]):
            name = f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:6]}"
        return self._by_hand(name, location, kind)

    def _by_hand(self, name: str, location: str, kind: str) -> SyncTarget:
        definition = {"name": name, "path" if kind == "path" else "git": location}
        return SyncTarget(checked_repository(self.registry, definition), COMMAND, True, definition)


def _of_row(row: Repository, resolved: ResolvedRepository) -> SyncTarget:
    by_hand, origin = row.by_hand, (row.group_key, row.origin_file, row.origin_host)
    return SyncTarget(resolved, row.origin, by_hand, row.definition, *origin)


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
    path = Path(word).expanduser()
    if not path.exists():
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
    target = SyncTarget(resolved, origin, definition=definition)
    for row in await catalog.repositories.list([resolved.name]):
        if row.origin == CONFIG and not row.has_left:
            raise _read_only(row.name, f"is in {row.origin_words}")
        if not row.by_hand or row.location != resolved.location:
            raise RepositoryExists(
                f"There is a repository {row.name!r} already: {row.location}.",
                remedy=Remedy(
                    f"Choose another name, or `reposync repos remove {row.name}` first.",
                    f"Choose another name, or `DELETE /api/v1/repositories/{row.name}` first.",
                ),
            )
    return await catalog.repositories.register(target.registration())


async def change_repository(
    catalog: Catalog, name: str, changes: Mapping[str, Any], *, expected: Repository | None = None
) -> Repository:
    """Change keys of a registered definition; None resets a key to the default. Setting `schedule`, also to the
    default, makes a repository that was synced by hand a scheduled one. Concurrent changes are merged. `expected`: the
    row as the caller read it; if it was changed since, RepositoryChanged is raised.

    Raises RepositoryNotFound, RepositoryReadOnly if it was not registered by command or over HTTP, ConfigError,
    UsageError for a password, and RepositoryChanged.
    """
    for tries_left in reversed(range(1 if expected is not None else _TRIES)):
        row = expected or await catalog.repositories.get(name)
        try:
            return await catalog.repositories.register(_changed(catalog, row, changes).registration(), expected=row)
        except RepositoryChanged:
            if not tries_left:
                raise
    raise AssertionError  # the last try returned or raised


def _changed(catalog: Catalog, row: Repository, changes: Mapping[str, Any]) -> SyncTarget:
    if row.origin == CONFIG:
        raise _read_only(row.name, f"is in {row.origin_words}")
    if row.definition is None or row.group_key is not None:
        raise _read_only(row.name, "was registered by a group or by a different version of reposync")
    definition = {key: value for key, value in {**row.definition, **changes}.items() if value is not None}
    resolved = _without_password(catalog, definition)
    by_hand = row.by_hand and "schedule" not in changes
    return SyncTarget(resolved, row.origin, by_hand, definition, origin_host=row.origin_host)


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
            remedy="Add its path to the group's `exclude` in the registry file first.",
        )
    return (await runs.enqueue(row.name, ask))[0]


async def syncable(repositories: Repositories, name: str) -> Repository:
    """The repository, if it can be synced. Raises RepositoryNotFound, RepositoryInactive."""
    row = await repositories.get(name)
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
