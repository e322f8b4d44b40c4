"""Whatever happens to projects: afterwards each has the repository that it always had, under its path if no other one
has that name, and no index is lost or mixed up."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from reposync.catalog.group_plan import is_paused_by_group
from reposync.catalog.groups import Discovery
from reposync.config.database_url import sqlite_url
from reposync.config.loading import load_registry
from reposync.config.registry import Registry
from reposync.config.sections import QdrantConfig
from reposync.store.database import Database
from reposync.store.endings import Finish
from reposync.store.registry import ProjectGroups
from reposync.store.repositories import Repositories
from reposync.store.repository import Repository
from reposync.store.run import Ask, RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger
from reposync.store.tables import VersionState
from reposync.store.versions import Versions
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexSettings, WriteScope
from tests.fixtures.applied import apply_registry
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.points import SPARSE_ALONE, file
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.stored_points import stored_points

pytestmark = pytest.mark.full

TOKEN = "glpat-abcdefghij0123456789"
PLACES = [f"{group}/{name}" for group in ("platform", "platform/core", "labs", "elsewhere") for name in "abc"]
GROUPS = ("platform", "platform/core", "labs")
_numbers = itertools.count()

numbers = st.integers(0, 7)
places = st.sampled_from(PLACES)
EVENT = st.one_of(
    st.tuples(st.just("make"), places),
    st.tuples(st.just("move"), numbers, places),
    st.tuples(st.just("swap"), numbers, numbers),
    st.tuples(st.just("delete"), numbers),
    st.tuples(st.just("archive"), numbers),
    st.tuples(st.just("mark"), numbers),
    st.tuples(st.just("look"), st.integers(0, 2)),
    st.tuples(st.just("pause"), numbers),
)


# Something to be followed is there before things begin to change.
BEGINNING: list[tuple[Any, ...]] = [
    *(("make", place) for place in ("platform/a", "platform/b", "platform/core/a", "labs/a")),
    *(("look", number) for number in range(3)),
]


class Story:
    """A GitLab whose projects change, and a registry that follows: three groups, one inside another."""

    def __init__(self, server: GitLabServer, repository: GitRepository, database: Database, index: QdrantIndex) -> None:
        self.server = server
        self.repository = repository
        self.database = database
        self.index = index
        self.repositories = Repositories(database)
        self.first_seen: dict[int, str] = {}  # project -> repository
        self.indexed: dict[str, int] = {}  # repository -> project
        self.paused: set[str] = set()

    async def do(self, event: tuple[Any, ...], registry: Registry) -> None:
        match event:
            case ("make", place) if self._free(place):
                self.server.add_project(place, self.repository.path)
            case ("move", number, place) if (project := self._project(number)) and self._free(place):
                project.path = place
            case ("swap", one, other) if (first := self._project(one)) and (second := self._project(other)):
                first.path, second.path = second.path, first.path
            case ("delete", number) if project := self._project(number):
                project.deleted = True
            case ("archive", number) if project := self._project(number):
                project.archived = not project.archived
            case ("mark", number) if project := self._project(number):
                project.marked_for_deletion = not project.marked_for_deletion
            case ("pause", number):
                active = [row for row in await self.repositories.list() if row.is_active]
                if active:
                    row = active[number % len(active)]
                    await self.repositories.pause(row.name, "By a person.")
                    self.paused.add(row.id)
            case ("look", number):
                await self.look(registry, number)

    async def look(self, registry: Registry, number: int) -> None:
        rows = {row.path: row for row in await ProjectGroups(self.database).all()}
        await Discovery(self.database).discover(registry, rows[GROUPS[number]], approved=True)
        for row in await self.repositories.list():
            assert row.project_id is not None
            assert self.first_seen.setdefault(row.project_id, row.id) == row.id, "a project changed its repository"
            if row.id not in self.indexed:
                await self._sync(row)

    async def _sync(self, row: Repository) -> None:
        """One point that tells whose it is, stored as a run does."""
        runs = Runs(self.database)
        queued, _ = await runs.enqueue(row.name, Ask(RunTrigger.COMMAND))
        run = await runs.claim("worker", 60, run_id=queued.id)
        assert run is not None
        versions = Versions(self.database)
        version = await versions.add(run, VersionState.BUILDING, collection=row.collection, physical=row.collection)
        epoch = await versions.begin_epoch(run, version, identity="one")
        scope = WriteScope(version.id, row.name, "c" * 40, epoch)
        await self.index.replace_files(scope, [file(f"{row.project_id}.py", "text", spec=SPARSE_ALONE)])
        await runs.end(run, Finish(), RunFigures())
        self.indexed[row.id] = row.project_id or 0

    async def check(self) -> None:
        rows = {row.project_id: row for row in await self.repositories.list()}
        assert len(rows) == len(self.first_seen)
        for project in self.server.projects:
            wanted = not (project.deleted or project.archived or project.marked_for_deletion) and any(
                project.path.startswith(f"{group}/") for group in GROUPS
            )
            row = rows.get(project.id)
            if wanted:
                assert row is not None
                assert row.is_active == (row.id not in self.paused)
                assert row.name == project.path or project.path in {each.name for each in rows.values()}
                assert row.location == f"{self.server.url}/{project.path}"
                assert row.definition == {"name": row.name, "gitlab": "main", "project": project.path}
                innermost = max((g for g in GROUPS if project.path.startswith(f"{g}/")), key=len)
                assert row.group_key == f"{self.server.url}/{innermost}"
            elif row is not None:
                assert not row.is_active
                assert row.id in self.paused or is_paused_by_group(row)
        points = [
            point.payload["metadata"] for row in rows.values() for point in await stored_points(self.index, row.id)
        ]
        assert sorted((each["repository_id"], each["path"]) for each in points) == sorted(
            (row.id, f"{row.project_id}.py") for row in rows.values()
        )

    def _project(self, number: int) -> Project | None:
        present = [project for project in self.server.projects if not project.deleted]
        return present[number % len(present)] if present else None

    def _free(self, place: str) -> bool:
        return all(project.deleted or project.path != place for project in self.server.projects)


@contextlib.asynccontextmanager
async def story(folder: Path, template: Path, qdrant: QdrantServer) -> AsyncGenerator[tuple[Story, Registry], None]:
    with GitLabServer() as server:
        server.add_token(TOKEN)
        server.groups.update(GROUPS)
        repository = GitRepository(folder / "shared.git")
        groups = ", ".join(f"{{gitlab: main, group: {group}}}" for group in GROUPS)
        text = f'gitlab: [{{name: main, url: "{server.url}", token: "${{GITLAB_TOKEN}}"}}]\ngroups: [{groups}]\n'
        with tempfile.TemporaryDirectory() as state:
            (Path(state) / "r.yaml").write_text(text)
            shutil.copyfile(template, Path(state) / "r.db")
            loaded = load_registry(Path(state) / "r.yaml", {"GITLAB_TOKEN": TOKEN})
            name = f"history{os.getpid()}-{next(_numbers)}"
            index = QdrantIndex(IndexSettings(name, Path(state), QdrantConfig(url=qdrant.url)))
            await index.ensure(SPARSE_ALONE)
            async with await Database.open(sqlite_url(Path(state) / "r.db")) as database:
                await apply_registry(database, loaded)
                yield Story(server, repository, database, index), loaded.registry
            await index.close()


def test_whatever_happens_to_projects_each_keeps_its_repository_and_its_index(
    tmp_path_factory: Any, upgraded_sqlite_file: Path, qdrant: QdrantServer
) -> None:
    folder: Path = tmp_path_factory.mktemp("history")
    GitRepository.create(folder / "shared.git").commit({"a.py": b"a = 1\n"})

    async def tell(events: list[tuple[Any, ...]]) -> None:
        async with story(folder, upgraded_sqlite_file, qdrant) as (told, registry):
            for event in [*BEGINNING, *events]:
                await told.do(event, registry)
            # The second time for projects that an earlier group gave away; the outer group has the last word. A name
            # that one look frees is taken by a later one.
            names: list[str] | None = None
            while names != (names := [row.name for row in await told.repositories.list()]):
                for number in (0, 1, 2, 2, 1, 0):
                    await told.look(registry, number)
            await told.check()

    @settings(max_examples=SLOW_EXAMPLES)
    @given(events=st.lists(EVENT, min_size=2, max_size=16))
    def any_history(events: list[tuple[Any, ...]]) -> None:
        asyncio.run(tell(events))

    run: Callable[[], None] = any_history
    run()
