"""Two transactions of any kind, on the same rows at the same time: one waits for the other, and both end.

PostgreSQL aborts one of two that wait for each other. The order in which rows are locked is documented at
`reposync.store.repositories.lock_repositories`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import combinations_with_replacement

import pytest
from sqlalchemy import Engine, event

from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.store.database import Database
from tests.integration.store.calls import CALLS, Installation, OtherProcess, at_await, other_process
from tests.integration.store.conftest import ON_POSTGRESQL

# The second one begins together with the first, or while that executes its second statement.
OFFSETS = (0, 4)
PARTS = 4
# A run does these one after the other, and not with one version.
NEVER_TOGETHER = {("Versions.build_again", "Versions.remove")}

SOME = [
    "Runs.claim",
    "Runs.heartbeat",
    "Runs.end",
    "Runs.enqueue of a removal",
    "Runs.cancel",
    "Versions.record_head",
    "Versions.publish",
    "Repositories.remove",
    "Repositories.rename",
    "Ticks.take",
    "SecretFindings.record",
]


async def _transactions(it: Installation, other: OtherProcess) -> AsyncGenerator[str, None]:
    """The names of the calls that write."""
    commits: list[object] = []

    def committed(connection: object) -> None:
        commits.append(connection)

    event.listen(Engine, "commit", committed)
    try:
        for name, call in CALLS.items():
            commits.clear()
            await call(it)
            assert not await other.restores()
            if commits:
                yield name
    finally:
        event.remove(Engine, "commit", committed)


async def _none_aborts(it: Installation, other: OtherProcess, names: Sequence[str], part: slice = slice(None)) -> None:
    for first, second in list(combinations_with_replacement(names, 2))[part]:
        for offset in () if (first, second) in NEVER_TOGETHER else OFFSETS:
            for error in await _together(it, first, second, offset):
                if isinstance(error, StoreUnavailable) or not isinstance(error, RepoSyncError):
                    raise AssertionError(f"{first} and {second} (offset {offset})") from error
            assert not await other.restores()


async def _together(it: Installation, first: str, second: str, offset: int) -> list[BaseException]:
    began = asyncio.Event()
    one = asyncio.create_task(at_await(offset, CALLS[first](it), began.set))
    begins = asyncio.create_task(began.wait())
    if offset:
        await asyncio.wait({one, begins}, return_when=asyncio.FIRST_COMPLETED)
    begins.cancel()
    results = await asyncio.gather(one, CALLS[second](it), return_exceptions=True)
    return [result for result in results if isinstance(result, BaseException)]


@ON_POSTGRESQL
async def test_transactions_on_the_same_rows_do_not_abort_each_other(database: Database, database_url: str) -> None:
    it = await Installation.make(database)
    async with other_process(database_url) as other:
        await _none_aborts(it, other, SOME)


@pytest.mark.full
@pytest.mark.timeout(900)
@ON_POSTGRESQL
@pytest.mark.parametrize("part", range(PARTS))
async def test_no_two_transactions_of_the_store_abort_each_other(
    database: Database, database_url: str, part: int
) -> None:
    it = await Installation.make(database)
    async with other_process(database_url) as other:
        async with aclosing(_transactions(it, other)) as found:
            names = [name async for name in found]
        assert set(SOME) < set(names)
        await _none_aborts(it, other, names, slice(part, None, PARTS))
