"""What a command claims of a repository whose runs nobody else executes."""

from __future__ import annotations

import asyncio

from reposync.store.endings import Finish
from reposync.store.repository import Registration
from reposync.store.run import Ask
from reposync.store.status import RunTrigger
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.world import World

LEASE_SECONDS = 0.03
ROUNDS = 20
"""In each, the lease ends somewhere between the looks at the two runs."""


async def test_the_run_of_a_killed_worker_comes_first_at_whichever_moment_its_lease_ends(world: World) -> None:
    app = world.app
    definition = Registration(name="app", location="/somewhere", source="path", origin="command", collection="code")
    row = await app.repositories.register(definition)
    for _ in range(ROUNDS):
        abandoned, _ = await app.runs.enqueue("app", Ask(RunTrigger.COMMAND))
        assert await app.runs.claim("killed:1:a", LEASE_SECONDS, run_id=abandoned.id)
        queued, _ = await app.runs.enqueue("app", Ask(RunTrigger.COMMAND))
        for run in (abandoned, queued):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while (claimed := await app.claim(row.id)) is None:
                    pass
            assert claimed.id == run.id
            await app.runs.end(claimed, Finish())
