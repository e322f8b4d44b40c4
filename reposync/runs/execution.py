"""Executing one claimed run: its lease and lock are kept beside it, and its end is written whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, assert_never

from reposync.clock import elapsed_seconds
from reposync.errors import (
    CANNOT_HERE,
    DefinitionChanged,
    DeletionBlocked,
    GateClosed,
    IndexHeld,
    LeaseLost,
    LockHeld,
    LockLost,
    RepoSyncError,
    RunCancelled,
    RunDefect,
    StoreUnavailable,
)
from reposync.outgoing import IN_PLACE_SECONDS
from reposync.runs.locks import RunLocks
from reposync.runs.observer import Observer
from reposync.runs.progress_reports import keep_telling
from reposync.store.attempts import RELEASED, YIELDED, RunAttempt
from reposync.store.run import Run, RunFigures
from reposync.store.runs import Runs
from reposync.store.status import PRIORITIES, RunStatus, RunTrigger
from reposync.supervision import EndedByItself, end, log_defect, unending
from reposync.sync.lease import Lease
from reposync.sync.progress import Outcome, RunProgress

log = logging.getLogger(__name__)

# How long the last word about a run may take when its process is told to end.
FAREWELL_SECONDS = 5.0
# Between looks at a lock that somebody else holds.
_LOCK_PAUSES_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
# Before somebody else tries what this process cannot execute, and how long nobody has to be able to.
CANNOT_HERE_SECONDS = 5.0
NOBODY_CAN_SECONDS = 900.0
# Before a run that failed at a command is tried by somebody else.
_ELSEWHERE_SECONDS = 2.0
# A server that asks for more is asked again all the same.
_LONGEST_ASKED_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which a worker executes runs. `retry_seconds` None: a failure is final; a person watches, and decides.
    `request_id`: that person's request. Where others ask for the run too, a failure here is no end of it. `elsewhere`:
    there are other workers, which may be able to execute what this process is not."""

    lease_seconds: float = 15.0
    retry_seconds: float | None = None
    retry_max_seconds: float = 600.0
    request_id: str | None = None
    elsewhere: bool = True

    def pause_after(self, failures: int) -> float | None:
        """Exponential back-off; half of it is chance, so that what failed together does not come back together."""
        if self.retry_seconds is None:
            return None
        longest = min(self.retry_max_seconds, self.retry_seconds * 2.0 ** min(max(failures, 1) - 1, 30))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more happens to the run by itself."""

    status: RunStatus
    code: str | None = None
    message: str | None = None
    brake: Mapping[str, Any] | None = None
    followed_up: bool = False
    """Another run is to take its place."""


@dataclass(frozen=True, slots=True)
class Retried:
    """It failed in a way that may pass. `at_last`: how it ends after the last attempt."""

    delay_seconds: float
    code: str
    message: str
    at_last: RunStatus = RunStatus.FAILED


@dataclass(frozen=True, slots=True)
class HandedBack:
    """It goes on elsewhere or later, and the attempt does not count."""

    outcome: str = RELEASED
    delay_seconds: float = 0.0
    priority: int | None = None
    reason: RepoSyncError | None = None


Ending = Ended | Retried | HandedBack

STOPPING = HandedBack()
"""This process is about to end."""
YIELDING = HandedBack(YIELDED, priority=PRIORITIES[RunTrigger.SCHEDULE])
"""Others wait. What a person asked for has had its turn by then, and takes its place among all the others."""


async def hand_on(runs: Runs, run: Run, reason: RepoSyncError) -> Run:
    """Leave a run to others, which this process cannot execute for `reason`, one of CANNOT_HERE. It fails once nobody
    could for a while."""
    since = _unable_since([each for each in await runs.attempts(run.id) if each.attempt < run.attempt])
    now = run.started_at or run.queued_at
    if since is not None and (now - since).total_seconds() > NOBODY_CAN_SECONDS:
        return await runs.finish(run, RunStatus.FAILED, RunFigures(), reason.code, str(reason))
    return await runs.release(run, delay_seconds=CANNOT_HERE_SECONDS, reason=reason)


def _unable_since(attempts: Sequence[RunAttempt]) -> datetime | None:
    """Since when no worker was able to execute the run; None if the latest one was. One that was able may lie between
    two that were not and are one row."""
    ended = [(each.ended_at or each.started_at, each) for each in attempts]
    able = [moment for moment, each in ended if each.error_code not in CANNOT_HERE]
    able_until = max(able, default=datetime.min.replace(tzinfo=UTC))
    unable = [each.started_at for at, each in ended if each.error_code in CANNOT_HERE and at > able_until]
    return max(unable[0], able_until) if unable else None


class Work(Protocol):
    """What an attempt does: a `SyncRun`, or the removal of a repository."""

    @property
    def figures(self) -> RunFigures:
        """What was done so far."""
        ...

    async def execute(self) -> Outcome:
        """Raises RepoSyncError."""
        ...


class Execution:
    """One attempt at one run. `perform` once; `interrupt` at any time."""

    def __init__(
        self,
        runs: Runs,
        run: Run,
        *,
        locks: RunLocks,
        progress: RunProgress,
        terms: Terms,
        observer: Observer | None = None,
        claimed_since: float | None = None,
    ) -> None:
        """`claimed_since`: when the claim was asked for (`elapsed_seconds`). The lease runs from then on: the answer
        may have been long on its way, or this process frozen before it read it."""
        self.run = run
        self.progress = progress
        self.started = elapsed_seconds()
        self._runs = runs
        self._locks = locks
        self._terms = terms
        self._observer = observer or Observer()
        self._lease = Lease(terms.lease_seconds, since=claimed_since)
        self._work: Work | None = None
        self._body: asyncio.Task[Ending] | None = None
        self._reason: RepoSyncError | HandedBack | None = None

    def interrupt(self, reason: RepoSyncError | HandedBack) -> None:
        """End the attempt; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            if self._body is not None:
                self._body.cancel()

    async def perform(self, make: Callable[[Lease], Awaitable[Work]]) -> Run:
        """Do the run and return it as it is afterwards. A failure is an ending, not an exception.

        Raises LeaseLost where another worker took the run over (nothing is written then), StoreUnavailable where the
        database could not be told the end as long as the lease was valid, and CancelledError after the run has been
        handed back, or recorded as cancelled where nobody but the person at this process asks for it.
        """
        self._body = asyncio.create_task(self._guarded(make), name=f"run {self.run.id}")
        heartbeat = self._beside("heartbeat", self._keep_alive)
        telling = asyncio.create_task(self._tell_progress(), name=f"progress of {self.run.id}")
        if self._reason is not None:
            self._body.cancel()
        ending: Ending | None = None
        try:
            ending = await self._outcome(self._body)
            await end(heartbeat, telling)
            run = await self._write(ending)
        except asyncio.CancelledError:
            # As long as the body takes to end the run is this attempt's: so the heartbeat goes on till then.
            await end(self._body)
            await end(heartbeat, telling)
            await self._say_last(ending)
            raise
        finally:
            await end(heartbeat, telling, self._body)
        outcome = ending.outcome if isinstance(ending, HandedBack) else str(run.status)
        self._observer.run_ended(run, outcome, elapsed_seconds() - self.started, self.figures)
        return run

    async def _say_last(self, ending: Ending | None) -> None:
        """While this process ends: what the run came to, if it did, or that it is handed back."""
        with contextlib.suppress(RepoSyncError, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                if ending is None and self._terms.request_id is not None:
                    await self._runs.withdraw(self._terms.request_id, by="an interrupt")
                handed_back = self._reason if isinstance(self._reason, HandedBack) else STOPPING
                await self._write(ending or handed_back)

    @property
    def figures(self) -> RunFigures:
        return self._work.figures if self._work is not None else RunFigures()

    async def _guarded(self, make: Callable[[Lease], Awaitable[Work]]) -> Ending:
        self._observer.run_started(self.run)
        async with self._locks.guard(self.run) as guard:
            watchdog = self._beside("watchdog of the lock", partial(self._watch, guard.watch))
            try:
                self._work = await make(self._lease)
                log.info("run started", extra=_start(self.run))
                outcome = await self._work.execute()
            finally:
                await end(watchdog)
        return self._completed(outcome)

    def _completed(self, outcome: Outcome) -> Ending:
        """Files that could not be read are tried again as long as there are attempts left."""
        pause = self._terms.pause_after(self.run.failures) if outcome.files_failed else None
        if pause is None or outcome.code is None:
            return Ended(RunStatus.COMPLETED, outcome.code, outcome.notice)
        return Retried(pause, outcome.code, outcome.notice or "", RunStatus.COMPLETED)

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
            return self._ending_of(self._reason or error)
        except Exception as error:  # noqa: BLE001 - a defect ends this attempt, with an id to find it by, never the daemon
            return self._defect(error)

    def _defect(self, error: Exception) -> Ending:
        said = log_defect(f"a defect ended run {self.run.id} of {self.run.repository}", error)
        return self._failure(RepoSyncError.code, said, passing=True)

    def _ending_of(self, reason: RepoSyncError | HandedBack) -> Ending:
        """Raises LeaseLost again: a run that is somebody else's by now gets no ending from here."""
        if isinstance(reason, HandedBack):
            return reason
        asked = min(reason.retry_after_seconds or 0.0, _LONGEST_ASKED_SECONDS)
        match reason:
            case LeaseLost():
                raise reason
            case DeletionBlocked():
                return Ended(RunStatus.BLOCKED, reason.code, str(reason), brake=reason.facts)
            case IndexHeld() | GateClosed():
                return Ended(RunStatus.BLOCKED, reason.code, str(reason))
            case DefinitionChanged():
                return Ended(RunStatus.CANCELLED, reason.code, str(reason), followed_up=True)
            case RunCancelled():
                return Ended(RunStatus.CANCELLED, reason.code, str(reason))
            case LockHeld() | LockLost() if self._terms.retry_seconds is not None:
                # Nothing is wrong with the run: its turn has not come.
                pause = _LOCK_PAUSES_SECONDS[min(self.run.attempt, len(_LOCK_PAUSES_SECONDS)) - 1]
                return HandedBack(delay_seconds=pause, reason=reason)
            case _ if reason.code in CANNOT_HERE and self._terms.elsewhere:
                return HandedBack(reason=reason)
            case _ if asked > IN_PLACE_SECONDS and self._terms.retry_seconds is not None:
                # What failed together does not come back together.
                return HandedBack(delay_seconds=asked * random.uniform(1.0, 1.1), reason=reason)  # noqa: S311
            case _:
                return self._failure(reason.code, str(reason), passing=reason.retryable, asked_seconds=asked)

    def _failure(self, code: str, message: str, *, passing: bool, asked_seconds: float = 0.0) -> Ended | Retried:
        if self._terms.request_id is not None:
            # A source that this machine cannot reach may be one that a daemon can.
            return Retried(max(_ELSEWHERE_SECONDS, asked_seconds), code, message)
        pause = self._terms.pause_after(self.run.failures) if passing else None
        if pause is None:
            return Ended(RunStatus.FAILED, code, message)
        return Retried(max(pause, asked_seconds), code, message)

    async def _write(self, ending: Ending) -> Run:
        """Tell the database, which may be back before the lease is over."""
        pause = 0.1
        while True:
            try:
                return await self._write_once(ending)
            except StoreUnavailable:
                if self._lease.remaining_seconds() <= pause:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _write_once(self, ending: Ending) -> Run:
        match ending:
            case Ended(status, code, message, brake, followed_up):
                return await self._runs.finish(
                    self.run, status, self.figures, code, message, brake=brake, followed_up=followed_up
                )
            case Retried(delay, code, message, at_last):
                mine = self._terms.request_id
                return await self._runs.retry_later(
                    self.run, delay, code, message, self.figures, at_last=at_last, final_unless_others=mine
                )
            case HandedBack(reason=RepoSyncError(code=code) as reason) if code in CANNOT_HERE:
                return await hand_on(self._runs, self.run, reason)
            case HandedBack(outcome, delay, priority, reason):
                return await self._runs.release(
                    self.run, self.figures, outcome=outcome, delay_seconds=delay, priority=priority, reason=reason
                )
            case _:
                assert_never(ending)

    async def _keep_alive(self) -> None:
        """Renew the lease until cancelled. Ends the body when somebody asked for it or the run was lost."""
        lease_seconds = self._terms.lease_seconds
        unreachable, why = False, "The database could not be reached."
        while True:
            # Where the database is away, not past the lease: another worker is at it by then. A process that was
            # frozen asks once in peace: nobody may have noticed.
            await asyncio.sleep(self._at_most(lease_seconds / 3))
            since = elapsed_seconds()
            try:
                async with asyncio.timeout(self._at_most(lease_seconds / 3) if unreachable else lease_seconds / 3):
                    beat = await self._runs.heartbeat(self.run, lease_seconds, self.progress.as_json(), self.figures)
            except (StoreUnavailable, TimeoutError) as error:
                # The database may be back before the lease is over; until then the lease's own deadline guards the
                # index.
                why = str(error) or why  # the last try has no time left, and says nothing
                if self._lease.remaining_seconds() <= 0:
                    self.interrupt(LeaseLost(f"The lease ran out, and the run is for others to go on with. {why}"))
                    return
                unreachable = True
                continue
            except LeaseLost as error:
                self._lease.lose(str(error))
                self.interrupt(error)
                return
            unreachable = False
            self._lease.extend(lease_seconds, since=since)
            if beat.cancel_requested:
                self.interrupt(RunCancelled("Cancelled on request."))
                return

    def _at_most(self, seconds: float) -> float:
        return max(0.0, min(seconds, self._lease.remaining_seconds()))

    def _beside(self, what: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """What the run must not go on without. Such work may end after it has interrupted the run, and no earlier."""

        async def watched() -> None:
            try:
                await unending(work())
            except Exception as error:  # noqa: BLE001 - whatever it is, the run does not go on without it
                if isinstance(error, EndedByItself) and self._reason is not None:
                    return
                said = log_defect(f"the {what} of run {self.run.id} of {self.run.repository} ended", error)
                lost = RunDefect(f"The {what} of this run ended by a defect: {said}")
                self._lease.lose(str(lost))
                self.interrupt(lost)

        return asyncio.create_task(watched(), name=f"{what} of {self.run.id}")

    async def _tell_progress(self) -> None:
        try:
            await keep_telling(self.progress, partial(self._runs.tell_progress, self.run))
        except Exception as error:  # noqa: BLE001 - the heartbeat tells it too, every few seconds
            log_defect(f"the progress of run {self.run.id} of {self.run.repository} is told no more", error)

    async def _watch(self, watch: Callable[[], Awaitable[None]]) -> None:
        try:
            await watch()
        except LockLost as error:
            self._lease.lose(str(error))
            self.interrupt(error)


def _start(run: Run) -> dict[str, Any]:
    return {"trigger": run.trigger, "full": run.full, "waited_seconds": round(run.waited_seconds, 3)}
