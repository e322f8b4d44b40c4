"""A process of its own on the database: `python -m tests.integration.store.store_process URL WORK` (see `WORK`).

Says `ready`, does its work when it is told a line (which is the work's to read), and prints what came of it.
"""

from __future__ import annotations

import asyncio
import sys

from reposync.errors import LeaseLost
from reposync.store.database import Database
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.runs import Runs


async def upgrade(database: Database, _: str) -> None:
    said(await database.upgrade())


async def claim(database: Database, _: str) -> None:
    """Claim until nothing is left."""
    while run := await Runs(database).claim(f"process-{id(database)}", 60.0):
        said(run.id)


async def hold(database: Database, _: str) -> None:
    """Claim one run and never let go."""
    run = await Runs(database).claim("to-be-killed", 60.0)
    said(run and run.id)
    await asyncio.Event().wait()


async def freeze(database: Database, _: str) -> None:
    """Claim one run, and write in its name when told to: perhaps long after."""
    run = await Runs(database).claim("to-be-frozen", 60.0)
    assert run is not None
    said(run.id)
    sys.stdin.readline()
    row = ManifestRow("late.py", "a" * 40, 0o100644, 1, 1, None, None, 1)
    try:
        await Manifests(database).record(run, run.repository_id, [row])
    except LeaseLost as error:
        said(type(error).__name__)
    else:
        said("written")


WORK = {"upgrade": upgrade, "claim": claim, "hold": hold, "freeze": freeze}


def said(what: object) -> None:
    print(what, flush=True)


async def main(url: str, work: str) -> None:
    # A process that upgrades opens the database only when told: opening a new file is part of what may collide.
    if work != "upgrade":
        async with await Database.open(url) as database:
            said("ready")
            await WORK[work](database, sys.stdin.readline())
        return
    import alembic.command  # noqa: F401  (its import would spread the processes in time)

    said("ready")
    told = sys.stdin.readline()
    async with await Database.open(url) as database:
        await WORK[work](database, told)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
