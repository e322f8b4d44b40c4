"""What an attempt may do, and until when."""

from __future__ import annotations

import asyncio
import time

import pytest

from reposync.errors import LeaseLost
from reposync.scheduling.execution import Execution, Terms
from reposync.scheduling.locks import NoLocks
from reposync.store.database import Database
from reposync.store.repositories import Registration, Repositories
from reposync.store.run import Run, RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RunStatus, RunTrigger
from reposync.sync.lease import Lease
from reposync.sync.progress import Outcome, RunProgress

LEASE_SECONDS = 15.0


class Writes:
    """Work that asks its lease, as every write does, and writes."""

    figures = RunFigures()

    def __init__(self) -> None:
        self.written = 0
        self.lease: Lease | None = None

    async def make(self, lease: Lease) -> Writes:
        self.lease = lease
        return self

    async def execute(self) -> Outcome:
        assert self.lease is not None
        self.lease.check()
        self.written += 1
        return Outcome()


async def claimed(runs: Runs, database: Database) -> Run:
    await Repositories(database).register(
        Registration(name="payments", location="/nowhere", source="path", origin="command", collection="code")
    )
    await runs.enqueue("payments", RunTrigger.COMMAND)
    run = await runs.claim("pod-1:1:aaaaaa", LEASE_SECONDS)
    assert run is not None
    return run


def execution(runs: Runs, run: Run, *, claimed_since: float) -> Execution:
    terms = Terms(LEASE_SECONDS, retry_seconds=10.0)
    return Execution(runs, run, locks=NoLocks(), progress=RunProgress(), terms=terms, claimed_since=claimed_since)


async def test_an_attempt_whose_claim_was_answered_in_time_writes(database: Database) -> None:
    runs, work = Runs(database), Writes()
    run = await claimed(runs, database)

    ended = await execution(runs, run, claimed_since=time.monotonic()).perform(work.make)

    assert ended.status is RunStatus.COMPLETED
    assert work.written == 1


async def test_an_attempt_whose_claim_was_answered_after_the_lease_was_over_writes_nothing(database: Database) -> None:
    """The answer was held up on its way, or the process was frozen before it read it; the run is another's by then."""
    runs, work = Runs(database), Writes()
    run = await claimed(runs, database)
    await runs.expire(run)
    other = await runs.claim("pod-2:2:bbbbbb", LEASE_SECONDS)
    assert other is not None
    assert (other.id, other.attempt) == (run.id, 2)

    with pytest.raises(LeaseLost):
        await execution(runs, run, claimed_since=time.monotonic() - LEASE_SECONDS).perform(work.make)

    assert work.written == 0
    assert (await runs.get(run.id)).worker == "pod-2:2:bbbbbb"


async def test_a_process_that_was_frozen_goes_on_with_a_run_that_nobody_took_over(database: Database) -> None:
    runs, work = Runs(database), Writes()
    run = await claimed(runs, database)

    async def later(lease: Lease) -> Writes:
        while lease.remaining_seconds() <= 0:
            await asyncio.sleep(0.01)
        return await work.make(lease)

    ended = await execution(runs, run, claimed_since=time.monotonic() - 2 * LEASE_SECONDS).perform(later)

    assert ended.status is RunStatus.COMPLETED
    assert (work.written, ended.attempt) == (1, 1)
