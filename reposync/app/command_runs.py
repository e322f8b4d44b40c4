"""A run that a command requested: left to the workers, or executed here if there is none that can."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from reposync.app.application import Application
from reposync.catalog.targets import SyncTarget, request_removal, syncable
from reposync.clock import elapsed_seconds
from reposync.errors import CANNOT_HERE, DefinitionChanged, RepositoryNotFound, RepoSyncError
from reposync.runs.endings import ExecutionPolicy
from reposync.runs.execution import LAST_WRITE_SECONDS
from reposync.runs.reporting import displayed_progress
from reposync.store.repository import Repository
from reposync.store.run import IN_ADVANCE, Ask, Run
from reposync.store.status import WAITING, RunStatus, RunTrigger
from reposync.sync.progress import Watch

# Polling interval for a run that a different process executes.
FOLLOW_SECONDS = 0.3

Report = Callable[[str], None]
"""Takes a sentence for the person who waits."""


@dataclass
class CommandRun:
    app: Application
    run: Run

    @property
    def repository(self) -> str:
        return self.run.repository

    async def ended(self, watch: Watch = lambda _: None, report: Report = lambda _: None) -> Run:
        """Wait until the run has ended, wherever it is executed, and return it. It has not ended if it failed here and
        continues because somebody else asked for it too.

        Raises LeaseLost, StoreUnavailable, CancelledError."""
        try:
            while not self.run.is_final:
                if await self._executed(watch):
                    return self.run
                watch(displayed_progress(self.run))
                await asyncio.sleep(FOLLOW_SECONDS)
                self._note(await self.app.history.get(self.run.id), report)
        except asyncio.CancelledError:
            await self.interrupt()
            raise
        return self.run

    async def interrupt(self) -> None:
        """The command ends: it takes its run with it, or only stops waiting if somebody else asked for the run too."""
        if self.run.is_final:
            return
        with contextlib.suppress(RepoSyncError, TimeoutError):
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await self.app.runs.interrupt(self.run.id)

    async def _executed(self, watch: Watch) -> bool:
        """Execute a run here: without workers any run of the repository, else only the requested run, after a worker
        could not execute it. Returns whether the requested run has ended for this command."""
        app, run = self.app, self.run
        since = elapsed_seconds()
        if not (workers := await app.workers.alive()):
            claimed = await app.claim(run.repository_id)
        elif run.status in WAITING and run.error_code in CANNOT_HERE:
            claimed = await app.claim(run.repository_id, run.id)
        else:
            return False
        if claimed is None:
            return False
        policy = ExecutionPolicy(own_requests=int(claimed.id == run.id), elsewhere=bool(workers))
        ended = await app.execute(app.execution(claimed, policy, claimed_since=since), watch)
        if ended.id != run.id or (workers and ended.error_code in CANNOT_HERE):
            return False
        self.run = ended
        return ended.is_final or ended.error_code != DefinitionChanged.code

    def _note(self, run: Run, report: Report) -> None:
        if run.status is RunStatus.RETRYING and run.failures > self.run.failures:
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
    approval = IN_ADVANCE if approved else None
    attempts = app.configuration.registry.daemon.max_attempts
    ask = Ask(RunTrigger.COMMAND, asked_by, full=full, repair=repair, approval=approval, max_attempts=attempts)
    return CommandRun(app, (await app.runs.enqueue(row.name, ask))[0])


async def _registered(app: Application, target: SyncTarget) -> Repository:
    """Registers a new repository only if its source answers: a mistyped address leaves no row."""
    try:
        return await syncable(app.repositories, target.name)
    except RepositoryNotFound:
        source = app.source(target)
        try:
            await source.head()
        finally:
            await source.close()
    return await app.repositories.register(target.row)


async def remove_repository(app: Application, name: str, *, asked_by: str = "") -> Run:
    """Remove it with its points, and return the run that did so, as it ended.

    Raises RepositoryNotFound, and RepositoryReadOnly if it would be registered again.
    """
    run = await request_removal(app.repositories, app.runs, name, Ask(RunTrigger.COMMAND, asked_by, removal=True))
    return await CommandRun(app, run).ended()
