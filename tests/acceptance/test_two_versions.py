"""Programs of two versions on one database and one index.

One that knows no versions of indexes and this one sync the same repository in turns. The earlier one runs as a command
of its own, this one in the test's process; after every sync the index is compared with a fresh one of the same commit.
Then daemons: of the release before beside this one, and this one beside a newer one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reposync.config.database_url import sqlite_url
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import IndexVersion, VersionState
from tests.acceptance.conftest import Person
from tests.fixtures.databases import database_kind, empty_database_url, upgraded_sqlite_file  # noqa: F401
from tests.fixtures.earlier_versions import RELEASE_BEFORE, earlier_version
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.fixtures.resident_program import ResidentProgram
from tests.fixtures.world import World

pytestmark = pytest.mark.full

CODE = "code"
LONG = b"\n\n".join(b"def booking_%d(amount):\n    return ledger.book(amount, %d)" % (n, n) for n in range(40))
FILES = {
    "ledger.py": LONG,
    "lib/rates.py": b"def rate(currency):\n    return table[currency]\n",
    "docs/guide.md": b"# Guide\n\nHow to close a month.\n",
    "logo.png": b"\x89PNG\r\n\x1a\n\x00",
    "empty.py": b"",
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier_version(RELEASE_BEFORE, tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def resident(before: Path) -> Generator[ResidentProgram, None, None]:
    with ResidentProgram(before) as program:
        yield program


@pytest.fixture(scope="module")
def qdrant_server() -> Generator[QdrantServer, None, None]:
    with quick_folder() as folder, QdrantServer(folder) as server:
        yield server


@dataclass
class TwoVersions:
    """One installation. `resident` is the version before, whose registry is `old.yaml`; `old` types its commands in a
    process for each. `world` is the program as it is now."""

    world: World
    old: Person
    resident: ResidentProgram
    empty_database: Path
    fresh_indexes: int = 0
    configured: dict[str, Any] = field(default_factory=dict)

    @property
    def repository(self) -> GitRepository:
        return self.world.repository

    def configure(self, *, size: int = 400, index: str = "") -> None:
        """Of the program as it is now."""
        self.configured = {"size": size}
        self.world.configure(size=size, extra=index)

    def configure_old(self, *, size: int = 400) -> None:
        present = (self.world.folder / "repositories.yaml").read_text()
        self.world.configure(size=size)
        (self.world.folder / "old.yaml").write_text((self.world.folder / "repositories.yaml").read_text())
        (self.world.folder / "repositories.yaml").write_text(present)

    def commits(self, number: int) -> str:
        """One file changes, one comes, one goes."""
        gone = {f"new/{number - 1}.py": None} if number > 1 else {}
        changed = {"lib/rates.py": b"def rate(currency):\n    return rates_%d[currency]\n" % number}
        return self.repository.commit({**changed, **gone, f"new/{number}.py": b"def added_%d(): pass\n" % number})

    def old_syncs(self) -> dict[str, Any]:
        variables = self.old.variables() | {"PATH": os.environ["PATH"]}
        (run,) = self.resident.asks("sync", "project", variables=variables)
        assert run["status"] == "completed", run
        return dict(run)

    async def new_syncs(self) -> Any:
        async with self.world.opened():
            return await self.world.completed()

    async def versions(self) -> list[IndexVersion]:
        async with self.world.opened():
            row = await self.world.app.repositories.get("project")
            return await self.world.app.versions.of(row.id)

    async def points(self, collection: str) -> dict[str, dict[str, Any]]:
        found = without_path_tokens(await self.world.points(collection))
        for point in found.values():
            for key in ("commit", "epoch"):  # they name the run that stored it
                del point["payload"]["metadata"][key]
        return found

    async def fresh(self) -> dict[str, dict[str, Any]]:
        """The points that an installation has which indexes the head commit for the first time."""
        self.fresh_indexes += 1
        folder = self.world.folder / f"fresh-{self.fresh_indexes}"
        folder.mkdir()
        collection = f"{self.world.collection}-fresh-{self.fresh_indexes}"
        world = World(folder, self.repository, self.world.embeddings, self.world.qdrant_url, collection)
        path = shutil.copyfile(self.empty_database, folder / "reposync.db")
        world.database_url = sqlite_url(path)
        world.configure(**self.configured)
        async with world.opened():
            await world.completed()
        return await self.points(collection)

    async def is_exact(self) -> None:
        """The first version has the points of a fresh index, with the same ids."""
        assert await self.points(self.world.collection) == await self.fresh()

    async def has_exactly(self, version: IndexVersion, *, alone: bool = True) -> None:
        """A version has the points of a fresh index, under its own id; if it is `alone`, nothing else is there."""
        found = list((await self.points(self.world.collection)).values())
        mine = [each for each in found if each["payload"]["metadata"]["repository_id"] == version.id]
        assert contents(mine) == contents((await self.fresh()).values())
        assert not alone or len(found) == len(mine)

    async def found(self) -> list[tuple[str, str]]:
        """(version, path) of all that a search finds, with and without the name of the repository. Neighbouring chunks
        may be one hit."""
        async with self.world.opened():
            search = self.world.app.searching.search
            every, mine = [
                sorted(
                    {
                        (hit.version, hit.path)
                        for hit in await search("book the rate of a month", repository=name, limit=500)
                    }
                )
                for name in (None, "project")
            ]
        assert every == mine
        return mine

    async def search_answers_from(self, version_id: str) -> None:
        """Of that version alone, and of every file of it."""
        points = [each["payload"]["metadata"] for each in (await self.points(self.world.collection)).values()]
        mine = sorted({(version_id, each["path"]) for each in points if each["repository_id"] == version_id})
        assert mine
        assert await self.found() == mine


def without_path_tokens(points: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Programs before 0.2 do not write them."""
    for point in points.values():
        point["payload"]["metadata"].pop("path_tokens", None)
    return points


def contents(points: Any) -> list[Any]:
    """Without what bears the id of a version."""
    every = []
    for point in points:
        metadata = {key: value for key, value in point["payload"]["metadata"].items() if key != "repository_id"}
        every.append(
            (metadata["path"], metadata["chunk_index"], metadata, point["payload"]["page_content"], point["vector"])
        )
    return sorted(every, key=lambda each: each[:2])


@pytest.fixture
def two(
    tmp_path: Path,
    person: Person,
    before: Path,
    resident: ResidentProgram,
    qdrant_server: QdrantServer,
    embeddings: EmbeddingServer,
    repository: GitRepository,
    empty_database_url: str,  # noqa: F811
    upgraded_sqlite_file: Path,  # noqa: F811
) -> TwoVersions:
    collection = f"c-{tmp_path.parent.name}-{tmp_path.name}".replace("_", "-")
    repository.commit(FILES)
    world = World(person.home, repository, embeddings, qdrant_server.url, collection, empty_database_url)
    person.environment |= {
        "PYTHONPATH": str(before),
        "REPOSYNC_CONFIG": str(person.home / "old.yaml"),
        "REPOSYNC_STATE_DIR": str(person.home / "state"),
        "QDRANT_URL": qdrant_server.url,
        "DATABASE_URL": empty_database_url,
    }
    there = TwoVersions(world, person, resident, upgraded_sqlite_file)
    there.configure()
    there.configure_old()
    return there


async def test_the_first_sync_after_the_upgrade_reads_no_blob_and_embeds_nothing(two: TwoVersions) -> None:
    earlier = two.old_syncs()
    there = await two.world.points()
    for row in two.repository.ls_tree():  # whoever reads a blob now fails
        (two.repository.path / "objects" / row.sha[:2] / row.sha[2:]).unlink()
    two.world.embeddings.forget()

    before_sync = await two.found()
    asked = len(two.world.embeddings.inputs)
    run = await two.new_syncs()

    assert (run.files_failed, run.chunks_embedded, run.chunks_reused) == (0, 0, len(there))
    assert run.commit_before == run.commit_after == earlier["commit_after"]
    assert len(two.world.embeddings.inputs) == asked
    *_, live = await two.versions()
    assert (live.state, live.number) == (VersionState.LIVE, 2), "points with symbols are built beside those without"
    assert (live.physical, await two.world.physical()) == (two.world.collection, two.world.collection)
    mine = [
        each for each in (await two.world.points()).values() if each["payload"]["metadata"]["repository_id"] == live.id
    ]
    assert len(mine) == len(there) and all("symbols" in each["payload"]["metadata"] for each in mine)
    assert [each[1:] for each in await two.found()] == [each[1:] for each in before_sync]


@pytest.mark.parametrize("first", ["old", "new"])
async def test_both_go_on_in_turns_and_a_search_finds_what_the_new_one_stored(two: TwoVersions, first: str) -> None:
    if first == "new":
        await two.new_syncs()
    two.old_syncs()
    await two.new_syncs()
    *_, live = await two.versions()

    for number, who in enumerate(["old", "new", "new", "old", "old", "new"], 1):
        head = two.commits(number)
        if who == "old":
            assert two.old_syncs()["commit_after"] == head
        else:
            assert (await two.new_syncs()).commit_after == head
            # An index that old pods wrote to since is succeeded by one with symbols.
            *_, live = await two.versions()
            await two.has_exactly(live, alone=False)
        await two.search_answers_from(live.id)


@pytest.mark.parametrize("keep", ["0", "24h"])
@pytest.mark.parametrize("old_size", [400, 200])
async def test_what_an_old_pod_writes_after_settings_changed_is_neither_found_nor_kept(
    two: TwoVersions, old_size: int, keep: str
) -> None:
    two.old_syncs()
    two.configure(size=200, index=f"index: {{keep_retired: {keep}}}\n")
    await two.new_syncs()
    *_, live = await two.versions()
    assert (live.state, live.number) == (VersionState.LIVE, 2)
    two.configure_old(size=old_size)

    for number in (1, 2):
        two.commits(number)
        before_it = await two.found()
        two.old_syncs()
        assert await two.found() == before_it, "the old pod's points are not found, and none of the live ones is gone"
        await two.search_answers_from(live.id)
        two.old_syncs()
        await two.new_syncs()
        await two.has_exactly(live, alone=keep == "0")
        await two.search_answers_from(live.id)
    assert [each.id for each in await two.versions()][-1] == live.id


LINES = (
    b"lib/** linguist-vendored\n",
    b"lib/** linguist-vendored\nnew/1.py linguist-generated\n",
    None,
    b"docs/** linguist-vendored\n",
)


@pytest.mark.parametrize("first", ["old", "new"])
async def test_both_versions_use_the_attributes_of_the_commit(two: TwoVersions, first: str) -> None:
    turns = ["old", "new"] if first == "old" else ["new", "old"]
    for number, lines in enumerate(LINES, 1):
        two.commits(number)
        two.repository.commit({".gitattributes": lines})
        for who in turns:
            if who == "old":
                two.old_syncs()
                continue
            await two.new_syncs()
            (version,) = [each for each in await two.versions() if each.state is VersionState.LIVE]
            await two.has_exactly(version, alone=False)
        turns.reverse()


# Daemons --------------------------------------------------------------------------------------------------------------


@dataclass
class Daemons:
    """Pods that share a database and an index; `app` is registered in the file that all of them read."""

    folder: Path
    database_url: str
    qdrant_url: str
    repository: GitRepository

    def __post_init__(self) -> None:
        self.repository.many(40)
        (self.folder / "repositories.yaml").write_text(
            "embedding: {provider: none}\ndaemon: {retry_seconds: 0.5}\n"
            f"repositories:\n  - {{name: app, path: '{self.repository.path}', schedule: yearly}}\n"
        )

    @property
    def shared(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.database_url,
            "QDRANT_URL": self.qdrant_url,
            "REPOSYNC_CONFIG": str(self.folder / "repositories.yaml"),
        }

    @property
    def log(self) -> ExecutionLog:
        return ExecutionLog(self.database_url)

    def pod(self, name: str, *options: str, package: Path | None = None) -> Pod:
        path = {} if package is None else {"PYTHONPATH": str(package)}
        return Pod(name, self.folder / name, {**self.shared, **path}, options)


@pytest.fixture
def daemons(
    tmp_path: Path,
    qdrant_server: QdrantServer,
    repository: GitRepository,
    empty_database_url: str,  # noqa: F811
) -> Daemons:
    return Daemons(tmp_path, empty_database_url, qdrant_server.url, repository)


def asked(pod: Pod, path: str) -> str:
    accepted = pod.posts(f"/api/v1{path}")
    assert accepted.status_code == 202, accepted.text
    return str(accepted.json()["id"])


def test_this_program_writes_no_word_about_a_run_that_the_release_before_does_not_know(before: Path) -> None:
    said = "from reposync.store.status import *; print(*sorted([*RunStatus, *RunTrigger]))"
    command = [sys.executable, "-c", said]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(before)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)

    # Its workers end where they read another one.
    assert {*RunStatus, *RunTrigger} <= set(done.stdout.split())


def test_a_daemon_of_the_release_before_executes_requests_to_this_one(daemons: Daemons, before: Path) -> None:
    log, repository = daemons.log, daemons.repository
    with daemons.pod("old", "--no-scheduler", package=before) as old:
        until(lambda: old.events("serving"), details=old.log_tail)
        asked_old = until(lambda: old.posts("/api/v1/repositories/app/sync").json().get("id"), details=old.log_tail)
        until(lambda: old.gets(f"/api/v1/runs/{asked_old}").json()["status"] == "completed", details=old.log_tail)
        with daemons.pod("new", "--no-workers", "--no-scheduler") as new:
            until(lambda: new.events("serving"), details=new.log_tail)
            ended = asked(new, "/repositories/app/sync")
            until(lambda: ended in [run.id for run in log.ended("app")], details=old.log_tail)

            repository.commit(gone(repository))
            stopped = asked(new, "/repositories/app/sync")
            until(lambda: stopped in [run.id for run in log.ended("app", "blocked")], details=old.log_tail)
            asked(new, f"/runs/{stopped}/approve")
            until(lambda: stopped in [run.id for run in log.ended("app")], details=old.log_tail)

            runs = log.runs("app")
            assert {run.worker.partition(":")[0] for run in runs if run.worker} == {"old"}
            shown = new.gets(f"/api/v1/runs/{asked_old}").json()
            assert (shown["status"], shown["trigger"]) == ("completed", "http")
            assert new.metric("reposync_workers") == 0, "the old one does not say that it is one"
            assert {new.gets(path).status_code for path in ("/runs", f"/runs/{stopped}")} == {200}
            assert {old.gets(path).status_code for path in ("/runs", f"/runs/{stopped}")} == {200}
        assert not [line for line in old.lines if line.get("level") == "error"], old.log_tail()
        assert old.terminate() == 0


def gone(repository: GitRepository) -> dict[str, None]:
    """Most of its files."""
    return {row.path.decode(): None for row in repository.ls_tree()[:30]}
