"""A run that a command asked for: left to the workers that there are, and executed here if there is none that can."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from reposync.clock import elapsed_seconds
from reposync.errors import CANNOT_HERE, RepoSyncError
from reposync.runs.execution import FAREWELL_SECONDS, Terms
from reposync.runs.progress_reports import told_progress
from reposync.store.following import run_of_request
from reposync.store.run import Run
from reposync.store.status import WAITING, RunStatus
from reposync.sync.progress import Watch

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.catalog.targets import Target

# How often a command looks at a run that another process executes.
FOLLOW_SECONDS = 0.3

Tell = Callable[[str], None]
"""Takes what a person wants to know while they wait, in a sentence."""


class CommandRun:
    """`target` None: the removal of a repository, which needs no configuration. `request_id`: what the command asked
    of the run; it is taken back if the command is interrupted, and the run goes on if others ask for it too."""

    def __init__(self, app: Application, run: Run, target: Target | None, request_id: str) -> None:
        self._app = app
        self._run = run
        self._target = target
        self._request_id = request_id

    @property
    def repository(self) -> str:
        return self._run.repository

    async def ended(self, watch: Watch = lambda _: None, tell: Tell = lambda _: None) -> Run:
        """The run as it ended, wherever it was executed; not ended if it failed here and goes on for others.

        Raises LeaseLost, StoreUnavailable, CancelledError."""
        try:
            while not self._run.is_final:
                if await self._executed(watch):
                    return self._run
                watch(told_progress(self._run))
                await asyncio.sleep(FOLLOW_SECONDS)
                self._see(await self._look(), tell)
        except asyncio.CancelledError:
            await self.withdraw()
            raise
        return self._run

    async def withdraw(self) -> None:
        """The command is interrupted."""
        if self._run.is_final:
            return
        with contextlib.suppress(RepoSyncError, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._app.runs.withdraw(self._request_id, by="an interrupt")

    async def _executed(self, watch: Watch) -> bool:
        """Execute what is left to this process: any run of the repository if there is no worker; if there is one, the
        run that is waited for alone, after a worker said that it cannot. Whether that was the run, and it is over as
        far as this command is concerned."""
        app, run = self._app, self._run
        asked = elapsed_seconds()
        if not (workers := await app.live_workers()):
            claimed = await app.claim(run.repository_id)
        elif run.status in WAITING and run.error_code in CANNOT_HERE:
            claimed = await app.claim(run.repository_id, run.id)
        else:
            return False
        if claimed is None:
            return False
        terms = Terms(request_id=self._request_id, elsewhere=bool(workers))
        ended = await app.execute(app.execution(claimed, terms, claimed_since=asked), self._target, watch)
        if ended.id != run.id or (workers and ended.error_code in CANNOT_HERE):
            return False
        if not ended.is_final:
            await app.runs.withdraw(self._request_id, by="the command, whose attempt failed")
        self._run = ended
        return True

    async def _look(self) -> Run:
        """Another run may have taken over what was asked of this one, for another definition."""
        app, run = self._app, self._run
        found = await run_of_request(app.database, self._request_id) or await app.runs.get(run.id)
        if found.id != run.id and self._target is not None:
            self._target = app.catalog.of_row(await app.repositories.by_id(found.repository_id))
        return found

    def _see(self, run: Run, tell: Tell) -> None:
        if run.id != self._run.id:
            tell(f"run {run.id} goes on with it")
        elif run.status is RunStatus.RETRYING and run.failures > self._run.failures:
            tell(f"attempt {run.attempt} failed, and another one follows: {run.error_message}")
        self._run = run
