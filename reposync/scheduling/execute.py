"""Executing one claimed run: the lease is kept alive beside it, and its end is written whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from reposync.errors import DeletionBlocked, LeaseLost, RepoSyncError, RunCancelled, StoreUnavailable
from reposync.store.runs import Run, Runs
from reposync.store.status import RunStatus
from reposync.sync.lease import Lease
from reposync.sync.progress import RunProgress
from reposync.sync.run import SyncRun

log = logging.getLogger(__name__)

# A run whose process died is free for another one after this long; the heartbeat comes three times as often.
LEASE_SECONDS = 15.0
# How long the last word about a run may take when its process is told to end.
FAREWELL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, as its row says it."""

    status: RunStatus
    error_code: str | None = None
    error_message: str | None = None


async def execute(
    runs: Runs,
    run: Run,
    make: Callable[[Lease], SyncRun],
    *,
    progress: RunProgress,
    lease_seconds: float = LEASE_SECONDS,
) -> Run:
    """Do `run`, which this process has claimed, and return it as it ended.

    A failure is an ending, not an exception. Raises LeaseLost where another worker took the run over (nothing is
    written then), and CancelledError after the run has been recorded as cancelled.
    """
    lease = Lease(lease_seconds)
    sync = make(lease)
    body = asyncio.create_task(sync.execute(), name=f"run {run.id}")
    heartbeat = asyncio.create_task(_keep_alive(runs, run, lease, body, progress, lease_seconds))
    try:
        result = await body
        ending = Ending(
            RunStatus.COMPLETED,
            error_code="INDEX_REBUILT" if result.notice else None,
            error_message=result.notice,
        )
    except asyncio.CancelledError:
        # Who cancelled: the heartbeat (its exception is the reason), or whoever runs this process?
        reason = heartbeat.exception() if heartbeat.done() and not heartbeat.cancelled() else None
        if isinstance(reason, RepoSyncError):
            ending = ending_of(reason)
        else:
            await _end(heartbeat)
            interrupted = Ending(RunStatus.CANCELLED, error_code=RunCancelled.code, error_message="Interrupted.")
            with contextlib.suppress(RepoSyncError, TimeoutError):
                await asyncio.wait_for(_finish(runs, run, sync, interrupted), FAREWELL_SECONDS)
            raise
    except RepoSyncError as error:
        ending = ending_of(error)
    except Exception as error:  # a defect ends this run, with an id to find it by, never the daemon
        incident = uuid.uuid4().hex[:12]
        log.exception("Incident %s: run %s of %s was ended by a defect.", incident, run.id, run.repository)
        ending = Ending(
            RunStatus.FAILED,
            error_code=RepoSyncError.code,
            error_message=f"{type(error).__name__}; the log has the details under {incident}.",
        )
    finally:
        await _end(heartbeat, body)
    return await _finish(runs, run, sync, ending)


def ending_of(error: RepoSyncError) -> Ending:
    """Raises LeaseLost again: a run that is somebody else's by now gets no ending from here."""
    if isinstance(error, LeaseLost):
        raise error
    status = RunStatus.FAILED
    if isinstance(error, DeletionBlocked):
        status = RunStatus.BLOCKED
    elif isinstance(error, RunCancelled):
        status = RunStatus.CANCELLED
    return Ending(status, error_code=error.code, error_message=str(error))


async def _finish(runs: Runs, run: Run, sync: SyncRun, ending: Ending) -> Run:
    return await runs.finish(run, ending.status, sync.figures, ending.error_code, ending.error_message)


async def _keep_alive(
    runs: Runs,
    run: Run,
    lease: Lease,
    body: asyncio.Task[object],
    progress: RunProgress,
    lease_seconds: float,
) -> None:
    """Renew the lease until cancelled. Ends the body, and says why, when somebody asked for it or the run was lost."""
    while True:
        await asyncio.sleep(lease_seconds / 3)
        since = time.monotonic()
        try:
            beat = await runs.heartbeat(run, lease_seconds)
            await runs.progress(run, progress.as_json())
        except StoreUnavailable:
            # The database may be back before the lease is over; until then the lease's own deadline guards the index.
            continue
        except LeaseLost as error:
            lease.lose(str(error))
            body.cancel()
            raise
        lease.extend(lease_seconds, since=since)
        if beat.cancel_requested:
            body.cancel()
            raise RunCancelled("Cancelled on request.")


async def _end(*tasks: asyncio.Task[object] | asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
