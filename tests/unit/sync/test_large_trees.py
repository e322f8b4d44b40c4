"""A run of a large tree leaves the event loop to the leases, probes and other runs beside it."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reposync.content.secret_policy import OFF
from reposync.embedding.port import EmbeddingSpec
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Blob, Commit, Tree, TreeEntry
from reposync.store.database import Database
from reposync.store.manifest import Manifests
from reposync.store.secret_findings import SecretFindings
from reposync.store.tables import IndexVersion, VersionState
from reposync.sync.audit import IndexState
from reposync.sync.index_versions import Situation, VersionSettings
from reposync.sync.pipeline import read_batches
from reposync.sync.prepare import ContentSettings
from reposync.sync.progress import RunProgress
from reposync.sync.target import SyncSettings, read_target
from reposync.sync.version_update import make_work
from tests.fixtures.loop_turns import longest_turn_seconds

FILE = 0o100644
EMPTY = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
CONTENT = ContentSettings(7_000, 1_500, 1_000_000)
SETTINGS = SyncSettings("/srv/large.git", None, None, (), (), CONTENT, OFF)
WANTED = VersionSettings("/srv/large.git", None, "code", EmbeddingSpec("none", "", 0, None), CONTENT)
LONGEST_TURN_SECONDS = 0.05


class LargeSource:
    """Of files of which half are empty. `missing`: all others cannot be read."""

    def __init__(self, files: int, *, missing: bool) -> None:
        half = range(files // 2)
        self.entries = [TreeEntry(b"src/package%d/module%d.py" % (at % 997, at), FILE, f"{at:040x}") for at in half]
        self.entries += [TreeEntry(b"src/%d/__init__.py" % at, FILE, EMPTY) for at in half]
        self.first = min(entry.path for entry in self.entries)
        self.missing = missing

    async def tree(self, commit: Commit) -> Tree:
        return Tree(self.entries, proven=True)

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        unreadable: dict[str, str] = {}
        for number, sha in enumerate(self._shas()):
            if self.missing and sha != EMPTY:
                unreadable[sha] = "is missing"
            else:
                yield Blob(sha, 0, b"")
            if number % 256 == 0:
                await asyncio.sleep(0)  # a step of a thread
        if unreadable:
            raise UnreadableBlobs("a test", reasons=unreadable)

    def _shas(self) -> Iterator[str]:
        yield from (entry.sha for entry in self.entries[: len(self.entries) // 2])
        yield EMPTY


async def upgraded(url: str) -> None:
    async with await Database.open(url) as database:
        await database.upgrade()


async def one_run(source: Any, url: str) -> int:
    """List, plan and read, as a run does. Returns how many files were read."""
    target = await read_target(source, SETTINGS, Commit("c" * 40, datetime.now(UTC)), {})
    working = IndexVersion.model_construct(id="new", state=VersionState.BUILDING)
    async with await Database.open(url) as database:
        parts: Any = SimpleNamespace(
            manifests=Manifests(database),
            findings=SecretFindings(database),
            content=None,
            repository=SimpleNamespace(id="large"),
        )
        work = await make_work(parts, target, Situation(WANTED, [working], None, working), IndexState(""))
    assert target.files == len(source.entries)
    entries = work.plan.read
    assert entries[0].path == source.first
    read = 0
    async for batch in read_batches(source, entries, target, CONTENT, RunProgress(), lambda unreadable: None):
        assert len(batch) <= 200
        read += len(batch)
        await asyncio.sleep(0)  # the next stage takes it
    return read


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (60_000, False),
        (60_000, True),
        pytest.param(1_000_000, False, marks=[pytest.mark.full, pytest.mark.timeout(600)]),
    ],
)
def test_no_loop_over_a_large_tree_stops_the_event_loop(tmp_path: Path, files: int, missing: bool) -> None:
    """Half of the files are equal. Garbage collection, which takes 0.1 s for a million objects, is not at issue."""
    url = f"sqlite:///{tmp_path}/reposync.db"
    asyncio.run(upgraded(url))

    async def run(source: LargeSource) -> None:
        assert await one_run(source, url) == files

    def longest_seconds() -> float:
        source = LargeSource(files, missing=missing)  # a tree that was read before has its hashes
        gc.collect()
        gc.disable()
        try:
            return longest_turn_seconds(run(source))
        finally:
            gc.enable()

    # Other processes cost caches, once; a loop over the tree, each time.
    assert longest_seconds() < LONGEST_TURN_SECONDS or longest_seconds() < LONGEST_TURN_SECONDS
