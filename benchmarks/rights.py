"""Whether anybody is shown more or less than GitLab shows them, in random worlds of rights.

    python -m benchmarks.rights [--worlds 10000] [--seed 1] [--database sqlite|postgresql] [--leaks]

People, groups, shares, visibility, custom roles and versions of GitLab are random in each world; two people and a job
look at the repositories over HTTP, by the tools for agents and by commands, and what they see is compared with a model
of GitLab's rules that shares no code with the program. `--leaks`: count instead the worlds until the walk finds each
planted leak. Exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.filling import address
from benchmarks.measure import machine
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.rights_leaks import LEAKS
from tests.fixtures.rights_walk import prepare, walking
from tests.fixtures.rights_world import HOOK, INDEXER, RightsWorld

_AT_A_TIME = 250
"""Worlds between two lines of progress."""
_COMMANDS_EVERY = 100
"""Worlds until a reader types commands, which are processes."""


async def measure(folder: Path, url: str, worlds: int, seed: int, *, leaks: bool) -> dict[str, Any]:
    with GitLabServer() as gitlab, GitLabServer() as other, QdrantServer(folder / "qdrant") as qdrant:
        world = RightsWorld(folder, gitlab, other, qdrant.url, "code", url)
        await prepare(world)
        async with world.opened() as app:
            await world.index(app)
            if leaks:
                found: dict[str, Any] = {}
                for name, plant in LEAKS.items():
                    with plant(app):
                        async with walking(world, app, seed) as walk:
                            walked = await walk.world_after_world(worlds, until_wrong=True)
                            found[name] = walked if walk.wrong else None
                return {"worlds_until_found": found}
            started, walked = time.perf_counter(), 0
            async with walking(world, app, seed) as walk:
                while walked < worlds and not walk.wrong:
                    walked += await walk.world_after_world(
                        min(_AT_A_TIME, worlds - walked), commands_every=_COMMANDS_EVERY
                    )
                    gitlab.log.forget()
                    print(f"{walked:,} worlds, {walk.requests:,} requests, {len(walk.wrong)} wrong", file=sys.stderr)
            seconds = round(time.perf_counter() - started, 1)
            return {"worlds": walked, "requests": walk.requests, "wrong": walk.wrong[:20], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--leaks", action="store_true")
    options = parser.parse_args()
    os.environ.update(GITLAB_TOKEN=INDEXER, HOOK_SECRET=HOOK)
    with tempfile.TemporaryDirectory() as folder, address(options.database) as url:
        figures = asyncio.run(measure(Path(folder), url, options.worlds, options.seed, leaks=options.leaks))
    asked = {"machine": machine(), "database": options.database, "seed": options.seed}
    print(json.dumps(asked | figures, indent=2))
    missed = [name for name, walked in figures.get("worlds_until_found", {}).items() if walked is None]
    if figures.get("wrong") or missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
