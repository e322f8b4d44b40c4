"""A GitLab with a group, and a reposync that is configured with nothing else."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import AsyncGenerator, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from reposync.app.verification import Verification
from reposync.catalog.group_entries import group_key
from reposync.catalog.groups import Discovery, DiscoveryReport
from reposync.config.database_url import sqlite_url
from reposync.config.loading import load_registry
from reposync.outgoing import RetryPolicy
from reposync.sources import gitlab_groups
from reposync.store.registry import ProjectGroups
from reposync.store.repository import Repository
from reposync.store.tables import GROUPS
from tests.fixtures.applied import apply_again
from tests.fixtures.databases import (  # noqa: F401
    database_kind,
    database_url,
    postgresql,
    upgraded_sqlite_file,
)
from tests.fixtures.folders import quick_folder
from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World

TOKEN = "glpat-abcdefghij0123456789"
QUICK = RetryPolicy(first_delay_seconds=0.005, max_delay_seconds=0.02, max_wait_seconds=1)
PLATFORM = "{gitlab: main, group: platform}"
_numbers = itertools.count()


@dataclass
class GroupWorld(World):
    """`repository` is what projects hold that are given none of their own."""

    server: GitLabServer = field(default_factory=GitLabServer)
    results: list[str] = field(default_factory=list)

    def register(self, *groups: str, more: str = "", embedding: str = "{provider: none}", token: bool = True) -> None:
        """Write the registry; `more` is YAML beside the groups. Read when the world is opened, or by `reload`."""
        secret = ', token: "${GITLAB_TOKEN}"' if token else ""
        (self.folder / "repositories.yaml").write_text(
            f'gitlab: [{{name: main, url: "{self.server.url}"{secret}}}]\n'
            f"embedding: {embedding}\n"
            f'defaults: {{collection: "{self.collection}"}}\n'
            f"{more}\n"
            f"groups: [{', '.join(groups)}]\n"
        )

    async def reload(self) -> None:
        await apply_again(self.app)

    def project(self, path: str, files: Mapping[str, bytes] | None = None, **more: Any) -> Project:
        """A project of the server; with files it gets a git repository of its own."""
        repository = self.repository
        if files is not None:
            repository = GitRepository.create(self.folder / f"git-{next(_numbers)}.git")
            if files:
                repository.commit(files)
        return self.server.add_project(path, repository.path, **more)

    @property
    def discovery(self) -> Discovery:
        return Discovery(self.app.database, on_result=self.results.append, retry=QUICK)

    async def discover(self, number: int = 0, *, approved: bool = False) -> DiscoveryReport:
        """List the group with this number in the registry file."""
        registry = load_registry(self.folder / "repositories.yaml").registry
        key = group_key(registry, registry.groups[number])
        (row,) = (row for row in await ProjectGroups(self.app.database).all() if row.key == key)
        return await self.discovery.discover(self.app.configuration.registry, row, approved=approved)

    async def list_again(self) -> None:
        await self.discovery.list_again()

    async def run_due(self) -> int:
        return await self.discovery.run_due(self.app.configuration.registry)

    async def due_at(self) -> datetime:
        """When the only group is listed next."""
        due: datetime = await self.app.database.scalar(select(GROUPS.c.due_at))
        return due

    async def rows(self) -> dict[str, Repository]:
        return {row.name: row for row in await self.app.repositories.list()}

    async def row_of(self, project: Project) -> Repository:
        """The one row of the project."""
        (found,) = (row for row in await self.app.repositories.list() if row.project_id == project.id)
        return found

    async def names(self) -> set[str]:
        return set(await self.rows())

    async def active(self) -> set[str]:
        return {name for name, row in (await self.rows()).items() if row.is_active}

    async def differences(self, name: str) -> dict[str, int]:
        """What `reposync verify` finds."""
        verdict = await Verification(self.app, against_source=False).verify(name)
        assert verdict.trouble is None
        return dict(verdict.counts)

    def listings(self) -> int:
        return len(self.server.log.matching(r"^/api/v4/groups/"))


@pytest.fixture(scope="session")
def qdrant() -> Generator[QdrantServer, None, None]:
    with quick_folder() as folder, QdrantServer(folder) as server:
        yield server


@pytest.fixture
def closed_world(
    tmp_path: Path,
    qdrant: QdrantServer,
    upgraded_sqlite_file: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Generator[GroupWorld, None, None]:
    """Its registry can still be written."""
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    repository = GitRepository.create(tmp_path / "shared.git")
    repository.commit({"a.py": b"a = 1\n"})
    with GitLabServer() as server:
        server.groups.add("platform")
        server.add_token(TOKEN, scopes={"read_api", "read_repository"})
        collection = f"groups{os.getpid()}-{next(_numbers)}"
        world = GroupWorld(tmp_path, repository, None, qdrant.url, collection, server=server)  # type: ignore[arg-type]
        shutil.copyfile(upgraded_sqlite_file, tmp_path / "reposync.db")
        world.database_url = sqlite_url(tmp_path / "reposync.db")
        world.register(PLATFORM)
        yield world


@pytest.fixture
async def world(closed_world: GroupWorld) -> AsyncGenerator[GroupWorld, None]:
    async with closed_world.opened():
        yield closed_world


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    """GitLab gives as many rows a page as it is asked for, up to 100."""
    monkeypatch.setattr(gitlab_groups, "PAGE_ROWS", 5)
    return 5
