"""A run of a large tree leaves the event loop to the leases, probes and other runs beside it."""

from collections.abc import AsyncGenerator, Sequence

from reposync.content.rules import PathRules
from reposync.sources.port import Blob, Commit, Tree, TreeEntry
from reposync.sync.pipeline import read_batches
from reposync.sync.prepare import ContentSettings
from reposync.sync.progress import RunProgress
from reposync.sync.target import TargetTree
from tests.fixtures.loop_turns import longest_turn_seconds

EMPTY = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


class Files:
    """Sends the blob that all of them have."""

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        yield Blob(EMPTY, 0, b"")


def test_30_000_equal_files_do_not_stop_the_event_loop():
    entries = [TreeEntry(b"%d/__init__.py" % number, 0o100644, EMPTY) for number in range(30_000)]
    rules = PathRules((), (), None)
    target = TargetTree(Commit("c" * 40, None), Tree(entries, True), {}, rules, {}, set())
    batches: list[int] = []

    async def read() -> None:
        settings = ContentSettings(7_000, 1_500, 1_000_000)
        async for batch in read_batches(Files(), entries, target, settings, RunProgress(), lambda unreadable: None):
            batches.append(len(batch))

    assert longest_turn_seconds(read()) < 1.0
    assert sum(batches) == 30_000
