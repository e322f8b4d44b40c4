"""How far runs are: told by whoever executes one, once a second while it changes, and read by whoever watches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from reposync.errors import LeaseLost, StoreUnavailable
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.sync.progress import RunProgress

# One small update a second and run. The heartbeat alone, every 5 s, looks like a run that hangs.
TELL_SECONDS = 1.0
_FAREWELL_SECONDS = 1.0

Tell = Callable[[Mapping[str, Any]], Awaitable[None]]


async def keep_telling(progress: RunProgress, tell: Tell, *, seconds: float = TELL_SECONDS) -> None:
    """Call `tell` at most once in so many seconds, and only where something changed, until cancelled.

    Nothing of a run hangs on it: a database that is away is tried again at the next change, and a run that is
    somebody else's by now is no longer told of. That is for the lease to notice.
    """
    told = _state(RunProgress())
    while True:
        await asyncio.sleep(seconds)
        now = _state(progress)
        if now == told:
            continue
        try:
            await _whole(tell(progress.as_json()))
        except StoreUnavailable:
            continue
        except LeaseLost:
            return
        told = now


async def _whole(telling: Awaitable[None]) -> None:
    """Not broken off in the middle, which every run's end would do: that costs the database's connection."""
    task = asyncio.ensure_future(telling)
    # A second cancellation does not wait for its end, and asyncio would log its failure as nobody's.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({task}, timeout=_FAREWELL_SECONDS)
        if not done:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise


def shown_progress(run: Run) -> Mapping[str, Any] | None:
    """How far the attempt that is under way has got; None where none is. What its worker said last stays in the row of
    a run that ended, and is of no use there: the figures of the run say what was done."""
    return run.progress if run.status is RunStatus.RUNNING else None


def told_progress(run: Run) -> RunProgress:
    """The same as the record that displays take; its phase is the run's status where no attempt is under way."""
    said = shown_progress(run)
    if said is None:
        return RunProgress(phase="starting" if run.status is RunStatus.RUNNING else str(run.status))
    counts: dict[str, Any] = {
        name: _count(said.get(name)) for name in ("files_total", "files_done", "chunks_done", "bytes_read")
    }
    waits = said.get("waiting_for")
    waiting_for = waits if isinstance(waits, str) else None
    return RunProgress(phase=str(said.get("phase", "starting")), waiting_for=waiting_for, **counts)


def _state(progress: RunProgress) -> tuple[object, ...]:
    return (
        progress.phase,
        progress.files_total,
        progress.files_done,
        progress.chunks_done,
        progress.bytes_read,
        progress.waiting_for,
    )


def _count(value: object) -> int:
    # Another version of this program may have written it.
    return value if isinstance(value, int) else 0
