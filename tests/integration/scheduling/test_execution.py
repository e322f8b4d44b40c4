"""What an attempt may do, and until when."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from sqlalchemy import update

from reposync.errors import LeaseLost, LockHeld, SecretMissing, SourceUnavailable
from reposync.scheduling.execution import NOBODY_CAN_SECONDS, Execution, Terms
from reposync.scheduling.locks import NoLocks
from reposync.store.database import Database
from reposync.store.repositories import Registration, Repositories
from reposync.store.run import Run, RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import ATTEMPTS, RUNS
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


class Unable(Writes):
    async def execute(self) -> Outcome:
        raise SecretMissing("The variable GITLAB_TOKEN is not set here.")


async def claimed_again(runs: Runs, database: Database, run: Run) -> Run:
    """At once, whatever it is to wait."""
    async with database.write() as connection:
        mine = update(RUNS).where(RUNS.c.id == run.id)
        await connection.execute(mine.values(not_before=database.moment()))
    claimed = await runs.claim("pod-2:2:bbbbbb", LEASE_SECONDS, run_id=run.id)
    assert claimed is not None
    return claimed


async def tried_before(database: Database, run: Run, seconds: float) -> None:
    """The first attempt began so much earlier."""
    async with database.write() as connection:
        mine = update(ATTEMPTS).where(ATTEMPTS.c.run_id == run.id, ATTEMPTS.c.attempt == 1)
        assert run.started_at is not None
        await connection.execute(mine.values(started_at=run.started_at - timedelta(seconds=seconds)))


class Refused(Writes):
    """The server asks to wait."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__()
        self.retry_after_seconds = retry_after_seconds

    async def execute(self) -> Outcome:
        raise SourceUnavailable("Too many requests.", retry_after_seconds=self.retry_after_seconds)


def waits_seconds(run: Run) -> float:
    assert run.started_at is not None
    return (run.not_before - run.started_at).total_seconds()


@pytest.mark.parametrize(("asked", "waits"), [(600.0, 600.0), (1e9, 86_400.0)])
async def test_a_run_goes_back_for_as_long_as_its_server_asks_and_the_attempt_does_not_count(
    database: Database, asked: float, waits: float
) -> None:
    runs = Runs(database)
    run = await claimed(runs, database)

    handed = await execution(runs, run, claimed_since=time.monotonic()).perform(Refused(asked).make)

    assert (handed.status, handed.error_code, handed.failures) == (RunStatus.QUEUED, "SOURCE_UNAVAILABLE", 0)
    assert waits <= waits_seconds(handed) < waits * 1.2
    # However often: it is the server's wish, and no failure of the run.
    for _ in range(5):
        again = await claimed_again(runs, database, handed)
        handed = await execution(runs, again, claimed_since=time.monotonic()).perform(Refused(asked).make)
    assert (handed.status, handed.failures) == (RunStatus.QUEUED, 0)
    (attempt,) = await runs.attempts(run.id)
    assert attempt.times == 6


async def test_a_short_wait_that_was_in_vain_is_a_failure_and_kept_all_the_same(database: Database) -> None:
    runs = Runs(database)
    run = await claimed(runs, database)

    tried = await execution(runs, run, claimed_since=time.monotonic()).perform(Refused(25.0).make)

    assert (tried.status, tried.failures) == (RunStatus.RETRYING, 1)
    assert waits_seconds(tried) >= 25.0, "the back-off after the first failure would be 10 s"


async def test_what_one_process_cannot_execute_is_left_to_others(database: Database) -> None:
    runs = Runs(database)
    run = await claimed(runs, database)

    handed = await execution(runs, run, claimed_since=time.monotonic()).perform(Unable().make)

    assert (handed.status, handed.error_code, handed.failures) == (RunStatus.QUEUED, SecretMissing.code, 0)
    assert handed.error_message == "The variable GITLAB_TOKEN is not set here."
    again = await claimed_again(runs, database, handed)
    ended = await execution(runs, again, claimed_since=time.monotonic()).perform(Writes().make)
    assert (ended.status, ended.error_code) == (RunStatus.COMPLETED, None)


async def test_what_nobody_can_execute_for_a_quarter_of_an_hour_fails_and_says_why(database: Database) -> None:
    runs = Runs(database)
    run = await claimed(runs, database)
    handed = await execution(runs, run, claimed_since=time.monotonic()).perform(Unable().make)
    await tried_before(database, run, NOBODY_CAN_SECONDS + 1)

    again = await claimed_again(runs, database, handed)
    ended = await execution(runs, again, claimed_since=time.monotonic()).perform(Unable().make)

    assert (ended.status, ended.error_code) == (RunStatus.FAILED, SecretMissing.code)
    assert ended.error_message == "The variable GITLAB_TOKEN is not set here."


async def test_the_quarter_of_an_hour_begins_anew_after_an_attempt_that_could(database: Database) -> None:
    runs = Runs(database)
    run = await claimed(runs, database)
    handed = await execution(runs, run, claimed_since=time.monotonic()).perform(Unable().make)
    await tried_before(database, run, NOBODY_CAN_SECONDS + 1)
    able = await runs.release(await claimed_again(runs, database, handed))

    again = await claimed_again(runs, database, able)
    handed = await execution(runs, again, claimed_since=time.monotonic()).perform(Unable().make)

    assert (handed.status, handed.error_code) == (RunStatus.QUEUED, SecretMissing.code)


async def test_the_quarter_of_an_hour_begins_anew_after_a_worker_that_could_but_for_a_lock(database: Database) -> None:
    """Looks of the same worker at the same reason are one row, before and after the other one's."""
    runs = Runs(database)
    run = await claimed(runs, database)
    handed = await execution(runs, run, claimed_since=time.monotonic()).perform(Unable().make)
    await tried_before(database, run, NOBODY_CAN_SECONDS + 1)
    handed = await runs.release(await claimed_again(runs, database, handed), reason=LockHeld("Another one has it."))

    for _ in range(2):
        again = await claimed_again(runs, database, handed)
        handed = await execution(runs, again, claimed_since=time.monotonic()).perform(Unable().make)

    assert (handed.status, handed.error_code) == (RunStatus.QUEUED, SecretMissing.code)


async def test_a_command_without_workers_says_at_once_that_it_cannot(database: Database) -> None:
    runs = Runs(database)
    run = await claimed(runs, database)
    (request,) = (await runs.requests([run.id]))[run.id]
    terms = Terms(LEASE_SECONDS, request_id=request.id, elsewhere=False)
    alone = Execution(runs, run, locks=NoLocks(), progress=RunProgress(), terms=terms)

    ended = await alone.perform(Unable().make)

    assert (ended.status, ended.error_code) == (RunStatus.FAILED, SecretMissing.code)
