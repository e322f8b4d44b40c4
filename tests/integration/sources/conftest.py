"""A GitLab with one project, and what sources are asked for in these tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr

from reposync.config.gitlab_instance import GitLabInstance
from reposync.outgoing import RequestObserver, RetryPolicy
from reposync.sources.gitlab import GitLabSource
from reposync.sources.local import LocalGitSource
from reposync.sources.port import Commit, GitLabProject, LocalGit, RemoteGit, Source, TreeEntry
from reposync.sources.remote import RemoteGitSource
from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.repositories import GitRepository

AnySource = TypeVar("AnySource", bound=Source)
TOKEN = "glpat-reposync-secret"
PATH = "platform/payments-api"
# As patient as the real one, a hundred times as quick.
QUICK = RetryPolicy(first_delay_seconds=0.005, max_delay_seconds=0.02, max_wait_seconds=5)


class Watched:
    """A RequestObserver that keeps its calls."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.waits: list[float] = []

    def request(self, kind: str) -> None:
        self.requests.append(kind)

    def rate_limited(self, seconds: float) -> None:
        self.waits.append(seconds)


async def contents(source: Source, entries: Sequence[TreeEntry], *, max_bytes: int = 10**6) -> dict[str, bytes | None]:
    """Sha -> content of what the source reads; each sha must come once."""
    found: dict[str, bytes | None] = {}
    async with aclosing(source.read(entries, max_bytes=max_bytes)) as blobs:
        async for blob in blobs:
            assert blob.sha not in found
            assert blob.content is None or len(blob.content) == blob.size_bytes
            found[blob.sha] = blob.content
    return found


def same_tree(entries: Sequence[TreeEntry], repository: GitRepository, revision: str = "HEAD") -> bool:
    """Whether the entries are what `git ls-tree` lists."""
    listed = sorted((row.path, row.mode, row.sha) for row in repository.ls_tree(revision))
    return sorted((entry.path, entry.mode, entry.sha) for entry in entries) == listed


def expected(repository: GitRepository, entries: Sequence[TreeEntry]) -> dict[str, bytes]:
    """Sha -> content as git itself gives it."""
    return {entry.sha: repository.read(entry.sha) for entry in entries if not entry.is_submodule}


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    return GitRepository.create(tmp_path / "payments.git")


@pytest.fixture
def server() -> Iterator[GitLabServer]:
    with GitLabServer() as server:
        server.add_token(TOKEN, scopes=("read_api", "read_repository"))
        yield server


@pytest.fixture
def project(server: GitLabServer, repository: GitRepository) -> Project:
    return server.add_project(PATH, repository.path, id=42)


def instance(url: str, token: str | None = TOKEN) -> GitLabInstance:
    return GitLabInstance(name="main", url=url, token=SecretStr(token) if token else None, read_timeout_seconds=120)


@dataclass(slots=True)
class Site:
    """A GitLab with one project, and the sources that a test opens on it."""

    server: GitLabServer
    project: Project
    repository: GitRepository
    opened: list[Source] = field(default_factory=list)

    def gitlab(
        self,
        path: str = PATH,
        *,
        token: str | None = TOKEN,
        project_id: int | None = 42,
        observer: RequestObserver | None = None,
        **changes: Any,
    ) -> GitLabSource:
        """A source of the project; `project_id=None` makes one that has to find it."""
        spec = GitLabProject(instance(self.server.url, token), path, project_id, **{"retry": QUICK, **changes})
        source = GitLabSource(spec, observer=observer)
        self.opened.append(source)
        return source

    def remote(
        self, url: str | None = None, *, observer: RequestObserver | None = None, **changes: Any
    ) -> RemoteGitSource:
        """A plain git source of the project's URL."""
        arguments: dict[str, Any] = {"username": "oauth2", "password": SecretStr(TOKEN), "retry": QUICK}
        spec = RemoteGit(url or f"{self.server.url}/{PATH}.git", **(arguments | changes))
        source = RemoteGitSource(spec, observer=observer)
        self.opened.append(source)
        return source

    def local(self, branch: str | None = None) -> LocalGitSource:
        source = LocalGitSource(LocalGit(self.repository.path, branch))
        self.opened.append(source)
        return source

    async def at_head(self, *arguments: Any, **changes: Any) -> tuple[GitLabSource, Commit]:
        source = self.gitlab(*arguments, **changes)
        return source, await source.head()

    async def listed(self, *arguments: Any, **changes: Any) -> tuple[GitLabSource, list[TreeEntry]]:
        return await listed(self.gitlab(*arguments, **changes))


async def listed(source: AnySource) -> tuple[AnySource, list[TreeEntry]]:
    return source, await entries_of(source)


async def entries_of(source: Source) -> list[TreeEntry]:
    """The tree of the head."""
    return (await source.tree(await source.head())).entries


@pytest.fixture
async def site(server: GitLabServer, project: Project, repository: GitRepository) -> AsyncGenerator[Site, None]:
    site = Site(server, project, repository)
    yield site
    for source in site.opened:
        await source.close()
