"""Which repository a word means (a name, a path, a URL), and how its configuration becomes a source and settings."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reposync.config.loading import checked_repository
from reposync.config.registry import Registry, ResolvedRepository
from reposync.errors import RepositoryNotFound, UsageError
from reposync.sources.spec import GitLabProject, LocalGit, RemoteGit, SourceSpec, Timeouts
from reposync.store.repositories import Registration, Repositories, Repository
from reposync.sync.prepare import ContentSettings
from reposync.sync.target import SyncSettings

CONFIG, COMMAND = "config", "command"


@dataclass(frozen=True, slots=True)
class Target:
    """A repository to sync: everything that the configuration, or the command line, says about it."""

    repository: ResolvedRepository
    origin: str
    is_scheduled: bool = True
    """What was synced by hand once is not."""
    definition: Mapping[str, Any] | None = None
    group_key: str | None = None

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
            cron_expression=each.schedule.cron if self.is_scheduled else None,
            timezone=each.schedule.timezone,
            definition=self.definition,
            group_key=self.group_key,
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
        """`row`: what earlier runs found out (the numeric id of a GitLab project, the last commit)."""
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
        return LocalGit(each.path or Path(each.location), each.branch)


class Catalog:
    """The repositories of the registry file and, beside them, those that were synced by path or URL."""

    def __init__(self, registry: Registry, repositories: Repositories) -> None:
        self._registry = registry
        self._configured = {each.name: each for each in registry.resolved()}
        self._repositories = repositories

    def configured(self) -> list[Target]:
        return [Target(each, CONFIG) for each in self._configured.values()]

    async def find(self, word: str) -> Target:
        """A registered name, an https URL, or a path inside a git repository, in this order.

        Raises RepositoryNotFound, and UsageError for an address that cannot be used.
        """
        if word in self._configured:
            return Target(self._configured[word], CONFIG)
        rows = await self._repositories.list()
        for row in rows:
            if row.name == word:
                return self.of_row(row)
        if "://" in word:
            return self._named(*_name_of_url(word), "git", rows)
        root = await asyncio.to_thread(_repository_root, word)
        if root is not None:
            for each in self._configured.values():
                if each.path == root:
                    return Target(each, CONFIG)
            return self._named(_name(root.name) or "repository", str(root), "path", rows)
        raise self._unknown(word, rows)

    def of_row(self, row: Repository) -> Target:
        """The target of a registered row. Raises RepositoryNotFound for one that the configuration no longer has."""
        if row.name in self._configured:
            return Target(self._configured[row.name], CONFIG)
        if row.origin == CONFIG:
            raise RepositoryNotFound(
                f"Repository {row.name!r} is no longer in the configuration.",
                remedy="Its index and its history are kept; register it again to sync it.",
            )
        if row.definition is None:
            return self._by_hand(row.name, row.location, row.source)
        resolved = checked_repository(self._registry, row.definition)
        return Target(resolved, row.origin, row.cron_expression is not None, row.definition, row.group_key)

    def _named(self, name: str, location: str, kind: str, rows: Sequence[Repository]) -> Target:
        """Two repositories of one name at different places both get in: the second is told apart by its place."""
        taken = {row.name: row.location for row in rows} | dict.fromkeys(self._configured)
        if taken.get(name, location) != location:
            name = f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:6]}"
        return self._by_hand(name, location, kind)

    def _by_hand(self, name: str, location: str, kind: str) -> Target:
        definition = {"name": name, "path" if kind == "path" else "git": location}
        return Target(checked_repository(self._registry, definition), COMMAND, False, definition)

    def _unknown(self, word: str, rows: Sequence[Repository]) -> RepositoryNotFound:
        near = difflib.get_close_matches(word, sorted({*self._configured, *(row.name for row in rows)}), n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else "`reposync repos list` shows what is registered."
        return RepositoryNotFound(f"{word!r} is no registered repository, no path and no URL.", remedy=remedy)


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
    is itself. What is no repository at all is left for the source to refuse, in its own words. None: no such path."""
    path = Path(word).expanduser()
    if not path.exists():
        return None
    path = path.resolve()
    if (path / "HEAD").is_file() and (path / "objects").is_dir():
        return path
    return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), path)
