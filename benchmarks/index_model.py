"""Histories of an index at random, for as long as wanted: pushes, settings, wrong answers, kills; see
`tests/integration/sync/index_model.py` for what has to hold after each.

    python -m benchmarks.index_model --minutes 10 --seed 1

Prints the seed and the number of syncs of every round, and of each violation the steps that lead to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import get_state_machine_test

from reposync.config.database_url import sqlite_url
from tests.fixtures.folders import quick_folder
from tests.fixtures.hurried import HurriedLoop
from tests.fixtures.index_world import IndexWorld, index_world
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.qdrant_targets import ENGINE, Target
from tests.integration.sync.index_model import Index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="Of the first round; each round has the next one.")
    parser.add_argument("--examples", type=int, default=10, help="In a round.")
    parser.add_argument("--steps", type=int, default=40, help="Of an example, at most.")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # servers and runs that fail, which is what they are here for
    until = time.monotonic() + options.minutes * 60
    violations = 0
    with quick_folder() as folder, QdrantServer(folder / "qdrant") as qdrant:
        for seed in itertools.count(options.seed):
            violations += play(seed, qdrant, options.examples, options.steps)
            if time.monotonic() > until:
                break
    statuses = ", ".join(f"{number:,} {status}" for status, number in sorted(Index.statuses.items()))
    print(f"{Index.steps:,} syncs ({statuses}), {violations} violations")


def play(seed: int, qdrant: QdrantServer, examples: int, steps: int) -> int:
    """One round; how many violations it found."""
    before = Index.steps
    with tempfile.TemporaryDirectory() as name, asyncio.Runner(loop_factory=HurriedLoop) as runner:
        numbers = itertools.count()

        @contextlib.contextmanager
        def make() -> Iterator[IndexWorld]:
            folder = Path(name) / str(next(numbers))
            folder.mkdir()
            url = sqlite_url(folder / "reposync.db")
            with index_world(folder, f"s{seed}-{folder.name}", Target(ENGINE, (qdrant.url,)), url) as world:
                yield world

        Index.loop, Index.make = runner.get_loop(), staticmethod(make)
        chosen = settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            # A violation is printed as it was found: to make it smaller takes longer than to find the next one.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        test = hypothesis.seed(seed)(get_state_machine_test(Index, settings=chosen))
        try:
            test()
        except Exception:  # noqa: BLE001 - whatever it is, it is what was looked for
            print(f"seed {seed}: VIOLATION\n{traceback.format_exc()}", flush=True)
            return 1
        finally:
            print(f"seed {seed}: {Index.steps - before:,} syncs", flush=True)
    return 0


if __name__ == "__main__":
    main()
