"""Executing a run that a command requested in the command's own process, if no worker can."""

from __future__ import annotations

import asyncio

from reposync.app.application import Application
from reposync.clock import elapsed_seconds
from reposync.errors import CANNOT_HERE, DefinitionChanged
from reposync.runs.endings import ExecutionPolicy
from reposync.store.run import Run
from reposync.store.status import WAITING
from reposync.sync.progress import Watch

FOLLOW_SECONDS = 0.3
"""Polling interval for a run that a different process executes."""


async def execute_for_command(app: Application, run_id: str, watch: Watch = lambda _: None) -> bool:
    """Execute a run here: without workers any run of the repository, else only the requested run, after a worker could
    not execute it. Returns whether the requested run has ended for this command: it may continue because somebody else
    asked for it too.

    Raises LeaseLost, StoreUnavailable, CancelledError."""
    run = await app.history.get(run_id)
    since = elapsed_seconds()
    if run.is_final:
        return True
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
    return ended.is_final or ended.error_code != DefinitionChanged.code


async def finished(app: Application, run_id: str, watch: Watch = lambda _: None) -> Run:
    """The run when it has ended, as in `execute_for_command`. Raises LeaseLost, StoreUnavailable, CancelledError."""
    while True:
        if await execute_for_command(app, run_id, watch):
            return await app.history.get(run_id)
        await asyncio.sleep(FOLLOW_SECONDS)
