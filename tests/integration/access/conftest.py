from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from reposync.access.gitlab import GitLabRights
from reposync.access.readers import Reader, Readers, Wanted
from reposync.config.gitlab_instance import GitLabInstance
from reposync.outgoing import RetryPolicy
from tests.fixtures.databases import (  # noqa: F401
    copy_upgraded_sqlite,
    database_kind,
    database_url,
    postgresql,
    upgraded_sqlite_file,
)
from tests.fixtures.gitlab_server import GitLabServer, Project, User
from tests.fixtures.qdrant_targets import Target, collections
from tests.fixtures.repositories import GitRepository
from tests.fixtures.rights_world import HOOK, INDEXER, RightsWorld, Seconds
from tests.integration.sync.conftest import qdrant  # noqa: F401

TOKEN = "glpat-of-ada"
ONE_ATTEMPT = RetryPolicy(attempts=1, longest_wait_seconds=0.0, within_seconds=15.0)


class People:
    """A GitLab with Ada, who has a token, and with projects of one repository."""

    def __init__(self, gitlab: GitLabServer, folder: Path) -> None:
        self.gitlab = gitlab
        self.repository = GitRepository.create(folder / "repository.git")
        self.repository.commit({"a.py": b"def first(): pass\n"})
        self.ada = self.adds("ada")
        gitlab.add_token(TOKEN, user=self.ada)

    def adds(self, username: str) -> User:
        user = self.gitlab.rights.add_user(username)
        self.gitlab.add_token(f"glpat-of-{username}", user=user)
        return user

    def project(self, number: int, **members: int) -> Project:
        project = self.gitlab.add_project(f"group/app-{number}", self.repository.path, id=number)
        for name, level in members.items():
            user = next(each for each in self.gitlab.rights.users.values() if each.username == name)
            project.members[user.id] = level
        return project

    @property
    def questions(self) -> int:
        """How many requests GitLab got since `forget`."""
        return len(self.gitlab.log)

    def forget(self) -> None:
        self.gitlab.log.forget()


@pytest.fixture
def people(tmp_path: Path) -> Iterator[People]:
    with GitLabServer() as gitlab:
        yield People(gitlab, tmp_path)


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


@pytest.fixture
async def rights(people: People) -> AsyncIterator[GitLabRights]:
    rights = GitLabRights(GitLabInstance(name="main", url=people.gitlab.url), retry=ONE_ATTEMPT)
    yield rights
    people.gitlab.faults.clear()
    await rights.close()


@pytest.fixture
async def readers(rights: GitLabRights, seconds: Seconds, people: People) -> AsyncIterator[Readers]:
    readers = Readers(rights, elapsed=seconds)
    yield readers
    people.gitlab.faults.clear()
    await readers.close()


async def read(readers: Readers, *projects: int, token: str = TOKEN, address: str = "10.0.0.1") -> Reader:
    return await readers.reader(token, Wanted(frozenset(projects)), address=address)


@pytest.fixture
def rights_world(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    qdrant: Target,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RightsWorld]:
    monkeypatch.setenv("GITLAB_TOKEN", INDEXER)
    monkeypatch.setenv("HOOK_SECRET", HOOK)
    copy_upgraded_sqlite(request.config, tmp_path / "state" / "reposync.db")
    with GitLabServer() as gitlab, GitLabServer() as other, collections(qdrant) as collection:
        yield RightsWorld(tmp_path, gitlab, other, qdrant.url, collection)
