"""A run that a command requested: left to the workers, or executed here if there is none that can."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from reposync.app.application import Application
from reposync.catalog.targets import SyncTarget, request_removal, syncable
from reposync.clock import elapsed_seconds
from reposync.errors import CANNOT_HERE, RepositoryNotFound, RepoSyncError
from reposync.runs.execution import LAST_WRITE_SECONDS, ExecutionPolicy
from reposync.runs.reporting import displayed_progress
from reposync.store.repository import Repository
from reposync.store.run import Run
from reposync.store.status import WAITING, RunStatus, RunTrigger
from reposync.sync.progress import Watch

# Polling interval for a run that a different process executes.
FOLLOW_SECONDS = 0.3

Report = Callable[[str], None]
"""Takes a sentence for the person who waits."""


@dataclass
class CommandRun:
    """`request_id`: the command's request, which is withdrawn if the command is interrupted; the run continues if it
    has other requests."""

    app: Application
    run: Run
    request_id: str

    @property
    def repository(self) -> str:
        return self.run.repository

    async def ended(self, watch: Watch = lambda _: None, report: Report = lambda _: None) -> Run:
        """Wait until the run has ended, wherever it is executed, and return it. It has not ended if it failed here and
        continues for other requests.

        Raises LeaseLost, StoreUnavailable, CancelledError."""
        try:
            while not self.run.is_final:
                if await self._executed(watch):
                    return self.run
                watch(displayed_progress(self.run))
                await asyncio.sleep(FOLLOW_SECONDS)
                self._note(await self._look(), report)
        except asyncio.CancelledError:
            await self.withdraw()
            raise
        return self.run

    async def withdraw(self) -> None:
        """The command is interrupted."""
        if self.run.is_final:
            return
        with contextlib.suppress(RepoSyncError, TimeoutError):
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await self.app.runs.withdraw(self.request_id, by="an interrupt")

    async def _executed(self, watch: Watch) -> bool:
        """Execute a run here: without workers any run of the repository, else only the requested run, after a worker
        could not execute it. Returns whether the requested run has ended for this command."""
        app, run = self.app, self.run
        since = elapsed_seconds()
        if not (workers := await app.live_workers()):
            claimed = await app.claim(run.repository_id)
        elif run.status in WAITING and run.error_code in CANNOT_HERE:
            claimed = await app.claim(run.repository_id, run.id)
        else:
            return False
        if claimed is None:
            return False
        policy = ExecutionPolicy(request_id=self.request_id, elsewhere=bool(workers))
        ended = await app.execute(app.execution(claimed, policy, claimed_since=since), watch)
        if ended.id != run.id or (workers and ended.error_code in CANNOT_HERE):
            return False
        if not ended.is_final:
            await app.runs.withdraw(self.request_id, by="the command, whose attempt failed")
        self.run = ended
        return True

    async def _look(self) -> Run:
        """A different run may have taken over the request, after a change of the definition."""
        return await self.app.runs.of_request(self.request_id) or await self.app.runs.get(self.run.id)

    def _note(self, run: Run, report: Report) -> None:
        if run.id != self.run.id:
            report(f"run {run.id} continues it")
        elif run.status is RunStatus.RETRYING and run.failures > self.run.failures:
            report(f"attempt {run.attempt} failed and will be retried: {run.error_message}")
        self.run = run


async def sync(
    app: Application,
    target: SyncTarget,
    *,
    full: bool,
    approved: bool,
    repair: bool = False,
    watch: Watch = lambda _: None,
    asked_by: str = "",
) -> Run:
    """Request a run and wait for its end. Raises LeaseLost, CancelledError."""
    requested = await request_run(app, target, full=full, approved=approved, repair=repair, asked_by=asked_by)
    return await requested.ended(watch)


async def request_run(
    app: Application, target: SyncTarget, *, full: bool, approved: bool, repair: bool = False, asked_by: str = ""
) -> CommandRun:
    """Queue a run of `target` for a command. `asked_by`: `user@host`."""
    # Opened before the run begins, so that its duration does not include the imports.
    app.index(target.repository.collection)
    row = await _registered(app, target)
    request_id = str(uuid.uuid4())
    run, _ = await app.runs.enqueue(
        row.name,
        RunTrigger.COMMAND,
        asked_by=asked_by,
        request_id=request_id,
        full=full,
        approved=approved,
        repair=repair,
        max_attempts=app.configuration.registry.daemon.max_attempts,
    )
    return CommandRun(app, run, request_id)


async def _registered(app: Application, target: SyncTarget) -> Repository:
    """Registers a new repository only if its source answers: a mistyped address leaves no row."""
    try:
        return await syncable(app.repositories, target.name)
    except RepositoryNotFound:
        source = app.source(target, None)
        try:
            await source.head()
        finally:
            await source.close()
    return await app.repositories.register(target.registration())


async def remove_repository(app: Application, name: str, *, asked_by: str = "") -> Run:
    """Remove it with its points, and return the run that did so, as it ended.

    Raises RepositoryNotFound, and RepositoryReadOnly if it would be registered again.
    """
    request_id = str(uuid.uuid4())
    run = await request_removal(
        app.repositories, app.runs, name, RunTrigger.COMMAND, asked_by=asked_by, request_id=request_id
    )
    return await CommandRun(app, run, request_id).ended()
