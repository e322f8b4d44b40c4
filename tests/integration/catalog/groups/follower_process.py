"""A pod that looks through groups again and again: `python -m tests.integration.catalog.groups.follower_process
NAME LEASE_SECONDS`, configured by its environment. Says `ready`, and how each look ended, until it is killed."""

from __future__ import annotations

import asyncio
import sys

from reposync.catalog.groups import Discovery
from reposync.config.settings import Settings
from tests.fixtures.applied import open_applied

PAUSE_SECONDS = 0.1


async def main(name: str, lease_seconds: str) -> None:
    async with open_applied(Settings.from_environment()) as app:
        pod = Discovery(
            app.database,
            app.index,
            name,
            on_result=lambda result: print(result, flush=True),
            lease_seconds=float(lease_seconds),
        )
        print("ready", flush=True)
        while True:
            if await pod.run_due(app.configuration.registry):
                print("looked", flush=True)
            await asyncio.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
