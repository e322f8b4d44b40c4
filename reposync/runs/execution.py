"""Execution of one claimed run: its lease and lock are kept beside it, and its end is always written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Protocol

from reposync.clock import elapsed_seconds
from reposync.errors import LeaseLost, LockLost, RepoSyncError, RunCancelled, RunDefect, StoreUnavailable
from reposync.runs.endings import ExecutionPolicy, ending_after, ending_of
from reposync.runs.reporting import Observer
from reposync.store.endings import STOPPING, Ending, HandBack
from reposync.store.run import Run, RunFigures
from reposync.store.runs import Runs
from reposync.supervision import Backoff, EndedByItself, end, log_defect
from reposync.sync.lease import Lease
from reposync.sync.progress import Outcome, RunProgress

if TYPE_CHECKING:
    from reposync.runs.redis_locks import RedisLocks

log = logging.getLogger(__name__)

# How often a running attempt extends its lease, reports its progress and asks whether it was cancelled, at least.
BEAT_SECONDS = 2.0
# Timeout of the last write about a run while its process shuts down.
LAST_WRITE_SECONDS = 5.0


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
    locks: RedisLocks | None
    policy: ExecutionPolicy
    observer: Observer
    claimed_since: InitVar[float | None] = None
    progress: RunProgress = field(default_factory=RunProgress)
    started: float = field(default_factory=elapsed_seconds)
    _lease: Lease = field(init=False)
    _work: Work | None = None
    _body: asyncio.Task[Ending] | None = None
    _reason: RepoSyncError | HandBack | None = None

    def __post_init__(self, claimed_since: float | None) -> None:
        self._lease = Lease(self.policy.lease_seconds, since=claimed_since)

    @property
    def figures(self) -> RunFigures:
        return self._work.figures if self._work is not None else RunFigures()

    def interrupt(self, reason: RepoSyncError | HandBack) -> None:
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
        if self._reason is not None:
            self._body.cancel()
        ending: Ending | None = None
        try:
            ending = await self._outcome(self._body)
            await end(heartbeat)
            run = await self._write(ending)
        except asyncio.CancelledError:
            # The run belongs to this attempt until the body has ended, so the heartbeat continues until then.
            await end(self._body)
            await end(heartbeat)
            await self._write_last(ending)
            raise
        finally:
            await end(heartbeat, self._body)
        outcome = ending.outcome if isinstance(ending, HandBack) and not run.is_final else str(run.status)
        self.observer.attempt_ended(run, outcome, self.figures)
        self.observer.traced(run, outcome, self.progress.times)
        return run

    async def _write_last(self, ending: Ending | None) -> None:
        """During shutdown: write the ending, or hand the run back."""
        with contextlib.suppress(RepoSyncError, TimeoutError):
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                if ending is None and self.policy.own_requests:
                    await self.runs.interrupt(self.run.id)
                await self._write(ending or (self._reason if isinstance(self._reason, HandBack) else STOPPING))

    async def _guarded(self, make: Callable[[Lease], Awaitable[Work]]) -> Ending:
        self.observer.observe("queue_wait_seconds", self.run.waited_seconds)
        async with contextlib.AsyncExitStack() as guarded:
            if self.locks is not None:
                lock = await guarded.enter_async_context(self.locks.guard(self.run))
                guarded.push_async_callback(end, self._beside("watchdog of the lock", lock.watch))
            self._work = await make(self._lease)
            run = self.run
            fields = {"trigger": run.trigger, "full": run.full, "waited_seconds": round(run.waited_seconds, 3)}
            log.info("run started", extra=fields)
            outcome = await self._work.execute()
        return ending_after(outcome, self.run, self.policy, self._chance())

    async def _outcome(self, body: asyncio.Task[Ending]) -> Ending:
        await asyncio.wait({body})
        try:
            return body.result()
        except asyncio.CancelledError as error:
            if self._reason is not None:
                return self._ending(self._reason)
            stray = EndedByItself("it was cancelled from within")
            stray.__cause__ = error
            return self._ending(self._defect(stray))
        except RepoSyncError as error:
            return self._ending(self._reason or error.without_traceback())
        except Exception as error:  # noqa: BLE001 - a defect ends this attempt, not the daemon
            return self._ending(self._defect(error))

    def _defect(self, error: Exception) -> RunDefect:
        return RunDefect(log_defect(f"a defect ended run {self.run.id} of {self.run.repository}", error))

    def _ending(self, reason: RepoSyncError | HandBack) -> Ending:
        """Raises `reason` if it is LeaseLost: a run that a different worker has gets no ending from here."""
        if isinstance(reason, LeaseLost):
            raise reason
        return reason if isinstance(reason, HandBack) else ending_of(reason, self.run, self.policy, self._chance())

    def _chance(self) -> float:
        return random.random()  # noqa: S311

    async def _write(self, ending: Ending) -> Run:
        """Retried until the lease is over: the database may be available again before that."""
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                return await self.runs.end(self.run, ending, self.figures, self.progress.as_json())
            except StoreUnavailable:
                pause = backoff.next_seconds()
                if self._lease.remaining_seconds() <= pause:
                    raise
            await asyncio.sleep(pause)

    async def _keep_alive(self) -> None:
        """Renew the lease until cancelled, or until the run is, and report the progress. Raises LeaseLost."""
        lease_seconds = self.policy.lease_seconds
        pause = timeout = lease_seconds / 3
        why = "The database could not be reached."
        while True:
            await asyncio.sleep(min(pause, BEAT_SECONDS))
            since = elapsed_seconds()
            try:
                async with asyncio.timeout(timeout):
                    is_cancelled = await self.runs.heartbeat(
                        self.run, lease_seconds, self.progress.as_json(), self.figures
                    )
            except (StoreUnavailable, TimeoutError) as error:
                why = str(error) or why  # the last try has no time left, and no message
                # No longer than the lease: then a different worker may have the run. A process that was frozen asks
                # once with the full timeout, because nobody may have noticed.
                pause = timeout = max(0.0, min(lease_seconds / 3, self._lease.remaining_seconds()))
                if timeout == 0.0:
                    raise LeaseLost(f"The lease expired; a different worker continues the run. {why}") from None
                continue
            pause = timeout = lease_seconds / 3
            self._lease.extend(lease_seconds, since=since)
            if is_cancelled:
                self.interrupt(RunCancelled("Cancelled on request."))
                return

    def _beside(self, what: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A task that the run must not continue without. It ends after it has interrupted the run, or is cancelled."""

        async def watched() -> None:
            try:
                await work()
            except (LeaseLost, LockLost) as error:
                self._lose(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must not continue without the task
                message = log_defect(f"the {what} of run {self.run.id} of {self.run.repository} ended", error)
                self._lose(RunDefect(f"The {what} of this run ended by a defect: {message}"))

        return asyncio.create_task(watched(), name=f"{what} of {self.run.id}")

    def _lose(self, reason: RepoSyncError) -> None:
        self._lease.lose(str(reason))
        self.interrupt(reason)
