"""Finds a repository by name, path or URL, and turns its row into a source and settings."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reposync.config.loading import checked_repository
from reposync.config.references import Reference
from reposync.config.registry import Registry, ResolvedRepository
from reposync.config.registry_document import Clear, repository_of, resolved_definition
from reposync.errors import ConfigError, Remedy, RepositoryNotFound, SourceElsewhere, UsageError
from reposync.outgoing import Timeouts
from reposync.sources.port import Commit
from reposync.sources.spec import GitLabProject, LocalGit, RemoteGit, SourceSpec
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration, Repository, definition_digest, is_registered

if TYPE_CHECKING:
    from reposync.sync.target import SyncSettings

CONFIG, COMMAND, GROUP = "config", "command", "group"


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
    password: Reference | None = None

    @property
    def name(self) -> str:
        return self.repository.name

    def registration(self) -> Registration:
        each = self.repository
        return Registration(
            name=each.name,
            # With the server's URL: GitLab's project numbers are unique on one server only.
            location=f"{each.gitlab.url}/{each.project}" if each.gitlab is not None else each.location,
            source=each.kind,
            origin=self.origin,
            branch=each.branch,
            collection=each.collection,
            cron_expression=None if self.by_hand or each.schedule is None else each.schedule.cron,
            timezone=each.timezone,
            definition=self.definition,
            group_key=self.group_key,
            resolved=resolved_definition(each, self.password),
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
            self.registration().location,
            each.gitlab.url if each.gitlab is not None else None,
            each.branch,
            each.include,
            each.exclude,
            ContentSettings(each.chunk_size, each.chunk_overlap, each.max_file_bytes),
        )

    def source(self, row: Repository | None) -> SourceSpec:
        """`row`: results of earlier runs (the numeric id of a GitLab project, the last commit). Raises SourceElsewhere
        for a folder of a different machine."""
        each = self.repository
        if each.gitlab is not None and each.project is not None:
            server = each.gitlab
            return GitLabProject(
                server.url,
                each.project,
                project_id=row.project_id if row else None,
                branch=each.branch,
                token=server.token,
                ca_file=server.ca_file,
                timeouts=Timeouts(server.connect_timeout_seconds, server.read_timeout_seconds),
            )
        if each.git_url is not None:
            known = None
            if row is not None and row.last_commit is not None and row.last_committed_at is not None:
                known = Commit(row.last_commit, row.last_committed_at)
            return RemoteGit(each.git_url, each.branch, each.username, each.password, known_commit=known)
        path = each.path or Path(each.location)
        here = socket.gethostname()
        if self.origin_host not in (None, here) and not path.exists():
            raise SourceElsewhere(
                f"The folder {path} is on {self.origin_host}; this is {here}, which does not have it."
            )
        return LocalGit(path, each.branch)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The registered repositories. `registry`: the sections of the applied registry files; `clear`: plain-text secrets
    that this process read from its own file."""

    registry: Registry
    repositories: Repositories
    clear: Clear = field(default_factory=dict)
    unapplied: Path | None = None
    """This process's registry file, if it was never applied."""

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
        password: Reference | None = None
        if row.resolved is not None and row.resolved_from == definition_digest(row.definition):
            try:
                resolved = repository_of(self.registry, row.resolved, os.environ, self.clear)
            except ValueError as error:  # pydantic's: a newer version of the program may have written more into it
                raise ConfigError(f"The definition of {row.name!r} cannot be read by this version.") from error
            password = row.resolved.get("password")
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
        return _of_row(row, resolved, password)

    def of_definition(self, row: Repository) -> SyncTarget:
        """As `of_row`, with the current defaults."""
        return _of_row(row, checked_repository(self.registry, row.definition or {}), None)

    def _unknown(self, word: str, names: Iterable[str]) -> RepositoryNotFound:
        near = difflib.get_close_matches(word, sorted(names), n=1)
        if self.unapplied is not None:
            remedy = f"{self.unapplied} was not applied yet: `reposync apply` does so."
        elif near:
            remedy = f"Did you mean {near[0]!r}?"
        else:
            remedy = "`reposync repos list` shows what is registered."
        return RepositoryNotFound(f"{word!r} is not a registered repository, a path or a URL.", remedy=remedy)

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


def _of_row(row: Repository, resolved: ResolvedRepository, password: Reference | None) -> SyncTarget:
    by_hand, origin = not is_registered(row), (row.group_key, row.origin_file, row.origin_host)
    return SyncTarget(resolved, row.origin, by_hand, row.definition, *origin, password)


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
