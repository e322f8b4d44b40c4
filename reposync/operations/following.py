"""Following a run while it changes, whichever process executes it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from reposync.operations.core import Actor, Rule
from reposync.operations.runs import Run, shown
from reposync.store.status import RunStatus
from reposync.words import next_attempt

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.store.notifications import RowWatch
    from reposync.store.run import Run as StoredRun
    from reposync.sync.progress import RunProgress as RunProgress
    from reposync.sync.progress import Watch as Watch

_COUNTS = ("files_total", "files_read", "files_done", "chunks_read", "chunks_embedded", "chunks_done", "bytes_read")
_TEXTS = ("phase", "file", "waiting_for")


class Follower:
    """Sees changes of one run. All followers of a process share one query, made at most once a second."""

    def __init__(self, app: Application, rows: RowWatch[StoredRun], run: StoredRun) -> None:
        self._app, self._rows, self._run_id = app, rows, run.id
        self.state = shown(app.history, run)

    @property
    def pause_seconds(self) -> float:
        """Until there may be news."""
        return self._rows.pause_seconds

    async def look(self) -> Run | None:
        """The present state; None if the run is no longer in the history. Raises StoreUnavailable."""
        run = await self._rows.look(self._run_id)
        if run is None:
            return None
        self.state = shown(self._app.history, run)
        return self.state


@contextlib.asynccontextmanager
async def following(app: Application, actor: Actor, run_id: str) -> AsyncIterator[Follower]:
    """Raises RunNotFound, and TooManyWatchers if this process, or the actor, follows too many already."""
    seen, _ = await Rule.READ.application(app, actor, {})
    run = await seen.history.get(run_id)
    rows = seen.followed_runs
    try:
        with rows.watching(run.id, actor.credential):
            yield Follower(app, rows, run)
    finally:
        await rows.settle()


def displayed_progress(run: Run) -> RunProgress:
    """Its progress as a record for displays; the phase is the run's status, with the end of its pause, if no attempt is
    running."""
    from reposync.sync.progress import RunProgress

    reported = run.progress
    if reported is None:
        pause = f", {next_attempt(run.next_attempt_at)}" if run.next_attempt_at else ""
        return RunProgress(phase="starting" if run.status is RunStatus.RUNNING else f"{run.status}{pause}")
    # A different version of this program may have written it.
    elapsed = reported.get("elapsed_seconds")
    started = time.monotonic() - (elapsed if isinstance(elapsed, int | float) else 0.0)
    texts = {key: reported[key] for key in _TEXTS if isinstance(reported.get(key), str)}
    return RunProgress(
        started=started, **texts, **{key: reported[key] for key in _COUNTS if isinstance(reported.get(key), int)}
    )
