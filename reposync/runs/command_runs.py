"""A run that a command requested: left to the workers, or executed here if there is none that can."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from reposync.clock import elapsed_seconds
from reposync.errors import CANNOT_HERE, RepoSyncError
from reposync.runs.execution import LAST_WRITE_SECONDS, ExecutionPolicy
from reposync.runs.progress_reports import displayed_progress
from reposync.store.run import Run
from reposync.store.status import WAITING, RunStatus
from reposync.sync.progress import Watch

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.catalog.targets import SyncTarget

# Polling interval for a run that a different process executes.
FOLLOW_SECONDS = 0.3

Report = Callable[[str], None]
"""Takes a sentence for the person who waits."""


class CommandRun:
    """`target` None: the removal of a repository, which needs no configuration. `request_id`: the command's request,
    which is withdrawn if the command is interrupted; the run continues if it has other requests."""

    def __init__(self, app: Application, run: Run, target: SyncTarget | None, request_id: str) -> None:
        self._app = app
        self._run = run
        self._target = target
        self._request_id = request_id

    @property
    def repository(self) -> str:
        return self._run.repository

    async def ended(self, watch: Watch = lambda _: None, report: Report = lambda _: None) -> Run:
        """Wait until the run has ended, wherever it is executed, and return it. It has not ended if it failed here and
        continues for other requests.

        Raises LeaseLost, StoreUnavailable, CancelledError."""
        try:
            while not self._run.is_final:
                if await self._executed(watch):
                    return self._run
                watch(displayed_progress(self._run))
                await asyncio.sleep(FOLLOW_SECONDS)
                self._note(await self._look(), report)
        except asyncio.CancelledError:
            await self.withdraw()
            raise
        return self._run

    async def withdraw(self) -> None:
        """The command is interrupted."""
        if self._run.is_final:
            return
        with contextlib.suppress(RepoSyncError, TimeoutError):
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await self._app.runs.withdraw(self._request_id, by="an interrupt")

    async def _executed(self, watch: Watch) -> bool:
        """Execute a run here: without workers any run of the repository, else only the requested run, after a worker
        could not execute it. Returns whether the requested run has ended for this command."""
        app, run = self._app, self._run
        since = elapsed_seconds()
        if not (workers := await app.live_workers()):
            claimed = await app.claim(run.repository_id)
        elif run.status in WAITING and run.error_code in CANNOT_HERE:
            claimed = await app.claim(run.repository_id, run.id)
        else:
            return False
        if claimed is None:
            return False
        policy = ExecutionPolicy(request_id=self._request_id, elsewhere=bool(workers))
        ended = await app.execute(app.execution(claimed, policy, claimed_since=since), self._target, watch)
        if ended.id != run.id or (workers and ended.error_code in CANNOT_HERE):
            return False
        if not ended.is_final:
            await app.runs.withdraw(self._request_id, by="the command, whose attempt failed")
        self._run = ended
        return True

    async def _look(self) -> Run:
        """A different run may have taken over the request, after a change of the definition."""
        app, run = self._app, self._run
        found = await app.runs.of_request(self._request_id) or await app.runs.get(run.id)
        if found.id != run.id and self._target is not None:
            self._target = app.catalog.of_row(await app.repositories.by_id(found.repository_id))
        return found

    def _note(self, run: Run, report: Report) -> None:
        if run.id != self._run.id:
            report(f"run {run.id} continues it")
        elif run.status is RunStatus.RETRYING and run.failures > self._run.failures:
            report(f"attempt {run.attempt} failed and will be retried: {run.error_message}")
        self._run = run
