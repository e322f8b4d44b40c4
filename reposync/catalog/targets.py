"""Which repository a word means (a name, a path, a URL), and how its row becomes a source and settings."""

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
from typing import Any
from urllib.parse import urlsplit

from reposync.config.loading import checked_repository
from reposync.config.references import Reference
from reposync.config.registry import Registry, ResolvedRepository
from reposync.config.registry_document import Clear, repository_of, resolved_definition
from reposync.errors import ConfigError, Remedy, RepositoryNotFound, SourceElsewhere, UsageError
from reposync.outgoing import Timeouts
from reposync.sources.spec import GitLabProject, LocalGit, RemoteGit, SourceSpec
from reposync.store.repositories import Registration, Repositories, Repository
from reposync.store.repository import definition_digest, is_registered
from reposync.sync.prepare import ContentSettings
from reposync.sync.target import SyncSettings

CONFIG, COMMAND, GROUP = "config", "command", "group"


@dataclass(frozen=True, slots=True)
class Target:
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
            # With the server's address: a number that GitLab gave a project holds on that server alone.
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
        """`row`: what earlier runs found out (the numeric id of a GitLab project, the last commit). Raises
        SourceElsewhere for a folder of another machine."""
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
            known = row.last_commit if row else None
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
    """The registered repositories, as their rows say. `registry`: the sections of the applied registry files; `clear`:
    secrets that this process read in the clear from its own file."""

    registry: Registry
    repositories: Repositories
    clear: Clear = field(default_factory=dict)
    unapplied: Path | None = None
    """A registry file that this process would read, and that nobody has applied."""

    async def find(self, word: str) -> Target:
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

    def of_row(self, row: Repository) -> Target:
        """Raises RepositoryNotFound for one that an earlier version registered from a file that was not applied since,
        ConfigError for one whose GitLab server is in no applied file."""
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
                    "Whoever runs this server has to apply the file.",
                ),
            )
        else:
            return self._by_hand(row.name, row.location, row.source)
        return Target(
            resolved,
            row.origin,
            not is_registered(row),
            row.definition,
            row.group_key,
            row.origin_file,
            row.origin_host,
            password,
        )

    def of_definition(self, row: Repository) -> Target:
        """As `of_row`, with the defaults of now."""
        resolved = checked_repository(self.registry, row.definition or {})
        return Target(
            resolved,
            row.origin,
            not is_registered(row),
            row.definition,
            row.group_key,
            row.origin_file,
            row.origin_host,
        )

    def _unknown(self, word: str, names: Iterable[str]) -> RepositoryNotFound:
        near = difflib.get_close_matches(word, sorted(names), n=1)
        if self.unapplied is not None:
            remedy = f"{self.unapplied} was not applied yet: `reposync apply` does so."
        elif near:
            remedy = f"Did you mean {near[0]!r}?"
        else:
            remedy = "`reposync repos list` shows what is registered."
        return RepositoryNotFound(f"{word!r} is no registered repository, no path and no URL.", remedy=remedy)

    async def _at_place(self, name: str, location: str, kind: str) -> Target:
        """The repository of that place. Two of one name at different places both get in: the second is told apart by
        its place."""
        for row in await self.repositories.find(source=kind, location=location):
            return self.of_row(row)
        if await self.repositories.list([name]):
            name = f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:6]}"
        return self._by_hand(name, location, kind)

    def _by_hand(self, name: str, location: str, kind: str) -> Target:
        definition = {"name": name, "path" if kind == "path" else "git": location}
        return Target(checked_repository(self.registry, definition), COMMAND, True, definition)


def _name(stem: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem.removesuffix(".git")).strip("-.")


def _name_of_url(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{parts.scheme}:// is no address that can be synced.", remedy="Use an https:// address.")
    if parts.password or parts.username:
        raise UsageError(
            "A password on the command line would stay in the shell's history.",
            remedy="Register the repository in the configuration, with ${VARIABLE} in its address.",
        )
    return _name(parts.path.rstrip("/").rpartition("/")[2]) or parts.hostname, url


def _repository_root(word: str) -> Path | None:
    """The repository that this path is in, found as git finds it: the nearest folder upward with a `.git`; a bare one
    is itself. None: no such path. Raises UsageError for a path that is in no repository."""
    path = Path(word).expanduser()
    if not path.exists():
        return None
    path = path.resolve()
    if is_bare_repository(path):
        return path
    for folder in (path, *path.parents):
        if (folder / ".git").exists():
            return folder
    raise UsageError(f"{path} is in no git repository.", remedy="`git init` makes one; an empty one needs a commit.")


def is_bare_repository(path: Path) -> bool:
    return (path / "HEAD").is_file() and (path / "objects").is_dir()
