"""A GitLab with one project, and what sources are asked for in these tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from reposync.outgoing import RequestObserver, RetryPolicy
from reposync.sources.gitlab import GitLabSource
from reposync.sources.port import Blob, Source, TreeEntry
from reposync.sources.remote import RemoteGitSource
from reposync.sources.smart_http import MAX_SPOOL_BYTES
from reposync.sources.spec import GitLabProject, RemoteGit
from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.repositories import GitRepository

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


async def first(blobs: AsyncGenerator[Blob, None]) -> Blob:
    return await anext(blobs)


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


@pytest.fixture
async def gitlab(server: GitLabServer, project: Project) -> AsyncGenerator[Callable[..., GitLabSource], None]:
    """Makes sources of the project; `project_id=None` makes one that has to find it."""
    made: list[GitLabSource] = []

    def make(
        path: str = PATH, *, project_id: int | None = 42, observer: RequestObserver | None = None, **changes: Any
    ) -> GitLabSource:
        arguments: dict[str, Any] = {"token": SecretStr(TOKEN), "retry": QUICK, "project_id": project_id}
        made.append(GitLabSource(GitLabProject(server.url, path, **(arguments | changes)), observer=observer))
        return made[-1]

    yield make
    for source in made:
        await source.close()


@pytest.fixture
async def remote(server: GitLabServer, project: Project) -> AsyncGenerator[Callable[..., RemoteGitSource], None]:
    """Makes plain git sources of the project's URL."""
    made: list[RemoteGitSource] = []

    def make(
        url: str | None = None,
        *,
        observer: RequestObserver | None = None,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
        **changes: Any,
    ) -> RemoteGitSource:
        arguments: dict[str, Any] = {"username": "oauth2", "password": SecretStr(TOKEN), "retry": QUICK}
        spec = RemoteGit(url or f"{server.url}/{PATH}.git", **(arguments | changes))
        made.append(RemoteGitSource(spec, observer=observer, max_spool_bytes=max_spool_bytes))
        return made[-1]

    yield make
    for source in made:
        await source.close()
