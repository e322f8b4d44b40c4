"""What an attempt may do, and until when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from reposync.clock import elapsed_seconds
from reposync.errors import LeaseLost, LockHeld, RepoSyncError, SecretMissing, SourceElsewhere, SourceUnavailable
from reposync.runs.endings import NOBODY_CAN_SECONDS, ExecutionPolicy
from reposync.runs.execution import Execution
from reposync.runs.redis_locks import RedisLocks, RunLock
from reposync.runs.reporting import Observer
from reposync.store.database import Database
from reposync.store.endings import STOPPING, HandBack
from reposync.store.history import RunHistory
from reposync.store.run import Run, RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RunStatus
from reposync.store.tables import RUNS
from reposync.sync.lease import Lease
from reposync.sync.progress import Outcome
from reposync.telemetry.redaction import Secrets
from tests.fixtures.clocks import DatabaseTime, database_time  # noqa: F401
from tests.integration.store.conftest import Store

LEASE_SECONDS = 15.0
TOKEN = "plain-token-of-nobody"
POLICY = ExecutionPolicy(LEASE_SECONDS, retry_seconds=10.0)


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


def execution(runs: Runs, run: Run) -> Execution:
    return Execution(runs, run, None, POLICY, Observer())


class Fails(Writes):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def execute(self) -> Outcome:
        raise self._error


async def claimed_again(database: Database) -> Run:
    """At once, whatever it is to wait."""
    await database.change(update(RUNS).values(not_before=database.moment()))
    return await Store(database).claimed()


@pytest.mark.parametrize(("asked", "waits"), [(600.0, 600.0), (1e9, 0.9 * 3600.0)])
async def test_a_run_goes_back_for_as_long_as_its_server_asks_and_the_attempt_does_not_count(
    database: Database, asked: float, waits: float
) -> None:
    runs = Runs(database)
    run = await Store(database).running()
    refused = Fails(SourceUnavailable("Too many requests.", retry_after_seconds=asked))

    handed = await execution(runs, run).perform(refused.make)

    assert (handed.status, handed.error_code, handed.failures) == (RunStatus.QUEUED, "SOURCE_UNAVAILABLE", 0)
    assert handed.started_at is not None
    assert waits <= (handed.not_before - handed.started_at).total_seconds() < waits * 1.2
    # However often: it is the server's wish, and no failure of the run.
    for _ in range(5):
        again = await claimed_again(database)
        handed = await execution(runs, again).perform(refused.make)
    assert (handed.status, handed.failures) == (RunStatus.QUEUED, 0)
    (attempt,) = (await RunHistory(database).get(run.id)).all_attempts
    assert attempt.times == 6


async def test_what_no_process_can_execute_is_left_to_others_then_fails_and_its_reason_holds_no_secret(
    database: Database,
) -> None:
    runs = Runs(database, redact=Secrets([TOKEN]).redact)
    run = await Store(database).running()
    leaking = Fails(SourceElsewhere(f"The folder of {TOKEN} is elsewhere."))

    handed = await execution(runs, run).perform(leaking.make)
    assert run.started_at is not None
    long_ago = run.started_at - timedelta(seconds=NOBODY_CAN_SECONDS + 1)
    await database.change(update(RUNS).values(waits_since=long_ago))
    again = await claimed_again(database)
    failed = await execution(runs, again).perform(leaking.make)

    assert (handed.status, handed.error_code, handed.failures) == (RunStatus.QUEUED, SourceElsewhere.code, 0)
    assert (failed.status, failed.error_code) == (RunStatus.FAILED, SourceElsewhere.code)
    said = [handed.error_message, failed.error_message]
    said += [each.error_message for each in (await RunHistory(database).get(run.id)).all_attempts]
    assert said == ["The folder of *** is elsewhere."] * 4


async def test_the_quarter_of_an_hour_begins_again_after_a_worker_that_could(database: Database) -> None:
    """Attempts for the same reason are one row, before and after the other worker's."""
    runs, unable = Runs(database), Fails(SecretMissing("GITLAB_TOKEN is not set here."))
    run = await Store(database).running()
    await execution(runs, run).perform(unable.make)
    assert run.started_at is not None
    long_ago = run.started_at - timedelta(seconds=NOBODY_CAN_SECONDS + 1)
    await database.change(update(RUNS).values(waits_since=long_ago))
    await runs.end(await claimed_again(database), HandBack(LockHeld.code, "pod-9 holds it."))

    for _ in range(2):
        handed = await execution(runs, await claimed_again(database)).perform(unable.make)

    assert (handed.status, handed.error_code) == (RunStatus.QUEUED, SecretMissing.code)


@pytest.mark.parametrize(
    "other", [SourceUnavailable("502 Bad Gateway"), LockHeld("pod-9 holds it.")], ids=["failed", "met a lock"]
)
async def test_a_run_that_no_process_can_execute_any_more_fails_after_a_quarter_of_an_hour(
    database_time: DatabaseTime,  # noqa: F811
    other: RepoSyncError,
) -> None:
    """The only worker that had the secret tried once, and was removed."""
    async with await database_time.open() as database:
        runs, unable = Runs(database), Fails(SecretMissing("GITLAB_TOKEN is not set here."))
        ended = await execution(runs, await Store(database).running()).perform(unable.make)
        ended = await execution(runs, await claimed_again(database)).perform(Fails(other).make)
        minutes = 0
        while not ended.is_final and minutes < 60:
            minutes += 8
            await database_time.set(minutes * 60.0)
            await database.clock.measure()
            ended = await execution(runs, await claimed_again(database)).perform(unable.make)

        assert (ended.status, ended.error_code) == (RunStatus.FAILED, SecretMissing.code)
        assert minutes <= 24


async def test_a_short_wait_that_was_in_vain_is_a_failure_and_respected_all_the_same(database: Database) -> None:
    runs = Runs(database)
    run = await Store(database).running()
    refused = Fails(SourceUnavailable("Too many requests.", retry_after_seconds=25.0))

    tried = await execution(runs, run).perform(refused.make)

    assert (tried.status, tried.failures) == (RunStatus.RETRYING, 1)
    assert tried.started_at is not None
    assert (tried.not_before - tried.started_at).total_seconds() >= 25.0, "the back-off alone would be 10 s"


async def test_a_process_that_was_frozen_goes_on_with_a_run_that_was_not_taken_over(database: Database) -> None:
    runs, work = Runs(database), Writes()
    run = await Store(database).running()
    frozen_since = elapsed_seconds() - 2 * LEASE_SECONDS

    async def after_a_heartbeat(lease: Lease) -> Writes:
        while lease.remaining_seconds() <= 0:
            await asyncio.sleep(0.01)
        return await work.make(lease)

    attempt = Execution(runs, run, None, POLICY, Observer(), claimed_since=frozen_since)
    ended = await attempt.perform(after_a_heartbeat)

    assert (ended.status, ended.attempt, work.written) == (RunStatus.COMPLETED, 1, 1)


async def test_a_command_without_workers_says_at_once_that_it_cannot(database: Database) -> None:
    runs = Runs(database)
    run = await Store(database).running()
    terms = ExecutionPolicy(LEASE_SECONDS, own_requests=1, elsewhere=False)
    alone = Execution(runs, run, None, terms, Observer())

    ended = await alone.perform(Fails(SecretMissing("The variable GITLAB_TOKEN is not set here.")).make)

    assert (ended.status, ended.error_code) == (RunStatus.FAILED, SecretMissing.code)


# Defects of what goes on beside a run ------------------------------------------------------------------------------


class Goes(Writes):
    """Work that goes on until it is cancelled, and asks its lease before it writes again."""

    def __init__(self, *, ends: asyncio.Event | None = None) -> None:
        super().__init__()
        self.began = asyncio.Event()
        self._ends = ends

    async def execute(self) -> Outcome:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            if self._ends is not None:
                await shielded(self._ends)
        return Outcome()


async def shielded(event: asyncio.Event) -> None:
    """As a write that must not be cut: however often it is cancelled."""
    waiting = asyncio.ensure_future(event.wait())
    while not waiting.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(waiting)


class DefectiveWatchdog(RunLock):
    async def watch(self) -> None:
        raise TypeError("a defect")


class DefectiveLocks(RedisLocks):
    @contextlib.asynccontextmanager
    async def guard(self, run: Run) -> AsyncGenerator[RunLock, None]:
        yield DefectiveWatchdog(self, run)


class DefectiveHeartbeat(Runs):
    async def heartbeat(self, *_: object, **__: object) -> bool:  # type: ignore[override]
        raise TypeError("a defect")


@pytest.mark.parametrize("what", ["watchdog of the lock", "heartbeat"])
async def test_a_defect_of_what_keeps_the_run_ends_it_for_retry_and_says_so(
    database: Database, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    run, work = await Store(database).running(), Goes()
    runs = DefectiveHeartbeat(database) if what == "heartbeat" else Runs(database)
    locks = None if what == "heartbeat" else DefectiveLocks("redis://localhost", RunHistory(database))
    # The first heartbeat comes after a third of it.
    policy = ExecutionPolicy(3.0, retry_seconds=10.0)

    ended = await Execution(runs, run, locks, policy, Observer()).perform(work.make)

    assert (ended.status, ended.error_code, ended.failures) == (RunStatus.RETRYING, "INTERNAL_ERROR", 1)
    said = str(ended.error_message)
    assert said.startswith(f"The {what} of this run ended by a defect: TypeError; the log has the details under ")
    assert f"incident {said.split()[-1].rstrip('.')}: the {what} of run {run.id} of payments ended" in caplog.text
    assert work.lease is not None
    with pytest.raises(LeaseLost, match=what):
        work.lease.check()


class CancelsItself(Writes):
    async def execute(self) -> Outcome:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        return Outcome()


@pytest.mark.parametrize(
    ("work", "why"),
    [(CancelsItself(), "it was cancelled from within; "), (Fails(TypeError("a defect")), "TypeError; ")],
)
async def test_work_that_a_defect_ended_or_cancelled_is_a_failure_and_no_hand_back(
    database: Database, work: Writes, why: str
) -> None:
    """Handed back it would be claimed again at once, without end: such an attempt does not count."""
    runs = Runs(database)
    run = await Store(database).running()

    ended = await execution(runs, run).perform(work.make)

    assert (ended.status, ended.error_code, ended.failures) == (RunStatus.RETRYING, "INTERNAL_ERROR", 1)
    assert str(ended.error_message).startswith(why)


# The end of the process --------------------------------------------------------------------------------------------


async def test_a_hand_back_that_takes_longer_than_its_process_waits_is_written_as_one(database: Database) -> None:
    """The worker pool asks for it, waits for five seconds, and cancels."""
    runs, may_end = Runs(database), asyncio.Event()
    run = await Store(database).running()
    attempt, work = execution(runs, run), Goes(ends=may_end)
    performing = asyncio.create_task(attempt.perform(work.make))
    await work.began.wait()

    attempt.interrupt(STOPPING)
    await asyncio.sleep(0)
    performing.cancel()
    await asyncio.wait({performing}, timeout=0.05)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await performing

    handed_back = await RunHistory(database).get(run.id)
    assert (handed_back.status, handed_back.error_code, handed_back.failures) == (RunStatus.QUEUED, None, 0)
    assert [each.outcome for each in (await RunHistory(database).get(run.id)).all_attempts] == ["released"]


class Slow(Runs):
    """A database that takes longer to write the end than its process has."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def end(self, *said: Any) -> Run:
        self.asked.set()
        await self.answers.wait()
        return await super().end(*said)


async def test_a_run_that_is_done_is_completed_though_its_process_was_cancelled_before_that_was_written(
    database: Database,
) -> None:
    runs = Slow(database)
    run = await Store(database).running()
    performing = asyncio.create_task(execution(runs, run).perform(Writes().make))
    await runs.asked.wait()

    performing.cancel()
    runs.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await performing

    assert (await RunHistory(database).get(run.id)).status is RunStatus.COMPLETED
