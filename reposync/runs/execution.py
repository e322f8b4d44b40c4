"""Execution of one claimed run: its lease and lock are kept beside it, and its end is always written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from reposync.clock import elapsed_seconds
from reposync.config.sections import DaemonConfig
from reposync.errors import (
    CANNOT_HERE,
    LOCKED,
    DefinitionChanged,
    DeletionBlocked,
    GateClosed,
    IndexHeld,
    LeaseLost,
    LockHeld,
    LockLost,
    RepositoryLeft,
    RepoSyncError,
    RunCancelled,
    RunDefect,
    StoreUnavailable,
)
from reposync.outgoing import IN_PLACE_SECONDS, LONGEST_WAIT_SECONDS
from reposync.runs.locks import RunLocks
from reposync.runs.reporting import Observer, report_progress
from reposync.store.run import STOPPING, Released, Run, RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RELEASED, RunStatus
from reposync.supervision import Backoff, EndedByItself, end, log_defect
from reposync.sync.lease import Lease
from reposync.sync.progress import Outcome, RunProgress

log = logging.getLogger(__name__)

# Timeout of the last write about a run while its process shuts down.
LAST_WRITE_SECONDS = 5.0
# Pauses before the next try while a different worker holds the lock.
_LOCK_PAUSES_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
# Pause before a different worker tries a run that this process cannot execute, and when it fails because none can.
CANNOT_HERE_SECONDS = 5.0
NOBODY_CAN_SECONDS = 900.0
# Pause before a worker retries a run that failed in a command.
_ELSEWHERE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    """`retry_seconds` None: a failure is final, because a person watches and decides. `request_id`: the request of a
    command; if the run has other requests too, a failure here does not end it. `elsewhere`: there are other workers,
    which may be able to execute what this process cannot."""

    lease_seconds: float = DaemonConfig().lease_seconds
    retry_seconds: float | None = None
    retry_max_seconds: float = 600.0
    request_id: str | None = None
    elsewhere: bool = True

    def pause_after(self, failures: int) -> float | None:
        """Exponential back-off; half of it is random, so that runs that failed together are not retried together."""
        if self.retry_seconds is None:
            return None
        longest = min(self.retry_max_seconds, self.retry_seconds * 2.0 ** min(max(failures, 1) - 1, 30))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311


Ending = Callable[[], Awaitable[Run]]
"""Writes the end of an attempt."""


async def release_to_others(runs: Runs, run: Run, reason: RepoSyncError) -> Run:
    """Other workers may execute what this process cannot; the run fails if none could for NOBODY_CAN_SECONDS."""
    now = since = run.started_at or run.queued_at
    unlocked: datetime | None = None
    for attempt in reversed([each for each in await runs.attempts(run.id) if each.attempt < run.attempt]):
        if attempt.error_code in LOCKED and attempt.outcome == RELEASED:
            unlocked = max(attempt.ended_at or now, unlocked or run.queued_at)
        elif attempt.error_code in CANNOT_HERE:
            since = attempt.started_at
        else:
            break
    since = max(since, unlocked or since)
    if (now - since).total_seconds() > NOBODY_CAN_SECONDS:
        return await runs.finish(run, RunStatus.FAILED, RunFigures(), reason.code, str(reason))
    return await runs.release(run, how=Released(delay_seconds=CANNOT_HERE_SECONDS, reason=reason))


class Work(Protocol):
    """What an attempt does: a `SyncRun`, or a removal. `execute` raises RepoSyncError."""

    @property
    def figures(self) -> RunFigures: ...

    async def execute(self) -> Outcome: ...


@dataclass(slots=True, eq=False)
class Execution:
    """One attempt at one run. `perform` once; `interrupt` at any time. `claimed_since`: when the claim was requested
    (`elapsed_seconds`). The lease is counted from then on, because the answer may have been delayed, or this process
    frozen."""

    runs: Runs
    run: Run
    locks: RunLocks
    policy: ExecutionPolicy
    observer: Observer
    claimed_since: InitVar[float | None] = None
    progress: RunProgress = field(default_factory=RunProgress)
    started: float = field(default_factory=elapsed_seconds)
    _lease: Lease = field(init=False)
    _work: Work | None = None
    _body: asyncio.Task[Ending] | None = None
    _reason: RepoSyncError | Released | None = None
    _released: str | None = None

    def __post_init__(self, claimed_since: float | None) -> None:
        self._lease = Lease(self.policy.lease_seconds, since=claimed_since)

    @property
    def figures(self) -> RunFigures:
        return self._work.figures if self._work is not None else RunFigures()

    def interrupt(self, reason: RepoSyncError | Released) -> None:
        """End the attempt; the first reason counts."""
        if self._reason is None:
            self._reason = reason.without_traceback() if isinstance(reason, RepoSyncError) else reason
            if self._body is not None:
                self._body.cancel()

    async def perform(self, make: Callable[[Lease], Awaitable[Work]]) -> Run:
        """Execute the run and return its new state. A failure is an ending, not an exception.

        Raises LeaseLost if a different worker took the run over (nothing is written then), StoreUnavailable if the end
        could not be written while the lease was valid, and CancelledError after the run was released, or recorded as
        cancelled if only the command of this process requested it.
        """
        self._body = asyncio.create_task(self._guarded(make), name=f"run {self.run.id}")
        heartbeat = self._beside("heartbeat", self._keep_alive)
        reporting = asyncio.create_task(self._report_progress(), name=f"progress of {self.run.id}")
        if self._reason is not None:
            self._body.cancel()
        ending: Ending | None = None
        try:
            ending = await self._outcome(self._body)
            await end(heartbeat, reporting)
            run = await self._write(ending)
        except asyncio.CancelledError:
            # The run belongs to this attempt until the body has ended, so the heartbeat continues until then.
            await end(self._body)
            await end(heartbeat, reporting)
            await self._write_last(ending)
            raise
        finally:
            await end(heartbeat, reporting, self._body)
        self.observer.attempt_ended(run, self._released or str(run.status), self.figures)
        return run

    async def _write_last(self, ending: Ending | None) -> None:
        """During shutdown: write the ending, or release the run."""
        with contextlib.suppress(RepoSyncError, TimeoutError):
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                if ending is None and self.policy.request_id is not None:
                    await self.runs.withdraw(self.policy.request_id, by="an interrupt")
                released = self._reason if isinstance(self._reason, Released) else STOPPING
                await self._write(ending or self._release(released))

    async def _guarded(self, make: Callable[[Lease], Awaitable[Work]]) -> Ending:
        self.observer.observe("queue_wait_seconds", self.run.waited_seconds)
        async with self.locks.guard(self.run) as guard:
            watchdog = self._beside("watchdog of the lock", guard.watch)
            try:
                self._work = await make(self._lease)
                run = self.run
                fields = {"trigger": run.trigger, "full": run.full, "waited_seconds": round(run.waited_seconds, 3)}
                log.info("run started", extra=fields)
                outcome = await self._work.execute()
            finally:
                await end(watchdog)
        # Files that could not be read are tried again while attempts are left.
        pause = self.policy.pause_after(run.failures) if outcome.files_failed else None
        if pause is None or outcome.code is None:
            return self._finish(RunStatus.COMPLETED, outcome.code, outcome.notice)
        return self._retry(pause, outcome.code, outcome.notice or "", at_last=RunStatus.COMPLETED)

    async def _outcome(self, body: asyncio.Task[Ending]) -> Ending:
        await asyncio.wait({body})
        try:
            return body.result()
        except asyncio.CancelledError as error:
            if self._reason is not None:
                return self._ending_of(self._reason)
            stray = EndedByItself("it was cancelled from within")
            stray.__cause__ = error
            return self._defect(stray)
        except RepoSyncError as error:
            return self._ending_of(self._reason or error.without_traceback())
        except Exception as error:  # noqa: BLE001 - a defect ends this attempt, not the daemon
            return self._defect(error)

    def _defect(self, error: Exception) -> Ending:
        message = log_defect(f"a defect ended run {self.run.id} of {self.run.repository}", error)
        return self._failure(RepoSyncError.code, message, may_pass=True)

    def _ending_of(self, reason: RepoSyncError | Released) -> Ending:
        """Raises `reason` if it is LeaseLost: a run that a different worker has gets no ending from here."""
        if isinstance(reason, Released):
            return self._release(reason)
        why = reason.code, str(reason)
        retry_after = min(reason.retry_after_seconds or 0.0, LONGEST_WAIT_SECONDS)
        has_retries = self.policy.retry_seconds is not None
        match reason:
            case LeaseLost():
                raise reason
            case DeletionBlocked() | GateClosed():
                return self._finish(RunStatus.BLOCKED, *why, brake=reason.facts)
            case IndexHeld():
                return self._finish(RunStatus.BLOCKED, *why)
            case DefinitionChanged():  # a different run takes its place
                return self._finish(RunStatus.CANCELLED, *why, followed_up=True)
            case RunCancelled() | RepositoryLeft():
                return self._finish(RunStatus.CANCELLED, *why)
            case LockHeld() | LockLost() if has_retries:
                # The run did not fail, its turn has not come.
                pause = _LOCK_PAUSES_SECONDS[min(self.run.attempt, len(_LOCK_PAUSES_SECONDS)) - 1]
                return self._release(Released(delay_seconds=pause, reason=reason))
            case _ if reason.code in CANNOT_HERE and self.policy.elsewhere:
                self._released = RELEASED
                return lambda: release_to_others(self.runs, self.run, reason)
            case _ if retry_after > IN_PLACE_SECONDS and has_retries:
                # Random, so that runs that failed together are not retried together.
                longer, longest = random.uniform(1.0, 1.1), random.uniform(0.9, 1.0)  # noqa: S311
                pause = min(retry_after * longer, LONGEST_WAIT_SECONDS * longest)
                pause = max(pause, self.policy.pause_after(self.run.failures) or 0.0)
                return self._release(Released(delay_seconds=pause, reason=reason))
            case _:
                return self._failure(*why, may_pass=reason.retryable, retry_after=retry_after)

    def _failure(self, code: str, message: str, *, may_pass: bool, retry_after: float = 0.0) -> Ending:
        if self.policy.request_id is not None:
            # A daemon may reach a source that this machine cannot.
            return self._retry(max(_ELSEWHERE_SECONDS, retry_after), code, message)
        pause = self.policy.pause_after(self.run.failures) if may_pass else None
        if pause is None:
            return self._finish(RunStatus.FAILED, code, message)
        return self._retry(max(pause, retry_after), code, message)

    def _finish(self, status: RunStatus, code: str | None, message: str | None, **more: Any) -> Ending:
        return lambda: self.runs.finish(self.run, status, self.figures, code, message, **more)

    def _retry(self, seconds: float, code: str, message: str, *, at_last: RunStatus = RunStatus.FAILED) -> Ending:
        """After a failure that may pass. `at_last`: the status after the last attempt."""
        mine = self.policy.request_id
        return lambda: self.runs.retry_later(
            self.run, seconds, code, message, self.figures, at_last=at_last, final_unless_others=mine
        )

    def _release(self, released: Released) -> Ending:
        self._released = released.outcome
        return lambda: self.runs.release(self.run, self.figures, released)

    async def _write(self, ending: Ending) -> Run:
        """Retried until the lease is over: the database may be available again before that."""
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                return await ending()
            except StoreUnavailable:
                pause = backoff.next_seconds()
                if self._lease.remaining_seconds() <= pause:
                    raise
            await asyncio.sleep(pause)

    async def _keep_alive(self) -> None:
        """Renew the lease until cancelled. Interrupts the body if the run is cancelled or lost."""
        lease_seconds = self.policy.lease_seconds
        unreachable, why = False, "The database could not be reached."
        while True:
            # While the database is unavailable, no longer than the lease: then a different worker may have the run. A
            # process that was frozen asks once with the full timeout, because nobody may have noticed.
            await asyncio.sleep(self._at_most(lease_seconds / 3))
            since = elapsed_seconds()
            try:
                async with asyncio.timeout(self._at_most(lease_seconds / 3) if unreachable else lease_seconds / 3):
                    is_cancelled = await self.runs.heartbeat(
                        self.run, lease_seconds, self.progress.as_json(), self.figures
                    )
            except (StoreUnavailable, TimeoutError) as error:
                why = str(error) or why  # the last try has no time left, and no message
                if self._lease.remaining_seconds() <= 0:
                    self.interrupt(LeaseLost(f"The lease expired; a different worker continues the run. {why}"))
                    return
                unreachable = True
                continue
            except LeaseLost as error:
                self._lose(error)
                return
            unreachable = False
            self._lease.extend(lease_seconds, since=since)
            if is_cancelled:
                self.interrupt(RunCancelled("Cancelled on request."))
                return

    def _at_most(self, seconds: float) -> float:
        return max(0.0, min(seconds, self._lease.remaining_seconds()))

    def _beside(self, what: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A task that the run must not continue without. It ends after it has interrupted the run, or is cancelled."""

        async def watched() -> None:
            try:
                await work()
            except LockLost as error:
                self._lose(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must not continue without the task
                message = log_defect(f"the {what} of run {self.run.id} of {self.run.repository} ended", error)
                self._lose(RunDefect(f"The {what} of this run ended by a defect: {message}"))

        return asyncio.create_task(watched(), name=f"{what} of {self.run.id}")

    def _lose(self, reason: RepoSyncError) -> None:
        self._lease.lose(str(reason))
        self.interrupt(reason)

    async def _report_progress(self) -> None:
        try:
            await report_progress(self.progress, partial(self.runs.report_progress, self.run))
        except Exception as error:  # noqa: BLE001 - the heartbeat reports it too, every few seconds
            log_defect(f"the progress of run {self.run.id} of {self.run.repository} is no longer reported", error)
