"""Every exchange of a sync with GitLab, the embedding server and Qdrant, and every commit of the database, goes wrong
once: refused, its answer lost, its server down from then on, the process killed; see `tests/fixtures/index_faults.py`.

    python -m benchmarks.index_faults [--every 1] [--scenario "a first sync"]

Needs PostgreSQL, of `TEST_DATABASE_URL` or from the wheel that the tests use.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import time
import traceback

from tests.fixtures.boundaries import Fault
from tests.fixtures.databases import PostgresqlDatabases, PostgresqlServer, installed_programs
from tests.fixtures.folders import quick_folder
from tests.fixtures.hurried import HurriedLoop
from tests.fixtures.index_faults import KILLED, SCENARIOS, FaultyWorld
from tests.fixtures.index_world import index_world
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.qdrant_targets import ENGINE, Target

FAULTS: tuple[Fault | str, ...] = (Fault.REFUSED, Fault.LOST, Fault.DOWN, KILLED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="Only every so many exchanges.")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # servers and runs that fail, which is what they are here for
    url = os.environ.get("TEST_DATABASE_URL")
    server = None
    if url is None:
        programs = installed_programs()
        assert programs is not None, "set TEST_DATABASE_URL"
        server = PostgresqlServer(programs)
        server.start()
        url = server.url
    databases = PostgresqlDatabases(url)
    try:
        with quick_folder() as folder, QdrantServer(folder / "qdrant") as qdrant:
            number, target = 0, Target(ENGINE, (qdrant.url,))
            for scenario in options.scenario or SCENARIOS:
                for fault in FAULTS:
                    number += 1
                    loop = HurriedLoop()
                    with (
                        index_world(folder / str(number), f"e{number}", target, databases.upgraded()) as world,
                        contextlib.closing(loop),
                    ):
                        _play(FaultyWorld(world, loop, scenario), fault, options.every)
    finally:
        databases.close()
        if server is not None:
            server.stop()


def _play(faulty: FaultyWorld, fault: Fault | str, every: int) -> None:
    started = time.monotonic()
    name = fault.value if isinstance(fault, Fault) else fault
    try:
        turns = faulty.play(fault, every=every)
        found = f"{turns} turns in {time.monotonic() - started:.0f} s, 0 violations"
    except AssertionError:
        found = f"VIOLATION\n{traceback.format_exc()}"
    print(f"{faulty.scenario}, {name}: {found}", flush=True)


if __name__ == "__main__":
    main()
