"""One exchange of a sync goes wrong: no file is lost to searches, and the next run is exact.

Every exchange is tried by `python -m benchmarks.index_faults`, which takes a quarter of an hour; here it is every
eleventh or so, from another one on for each fault, so that all servers and kinds of requests have their turn. A sync of
many files has three times as many.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.boundaries import Fault
from tests.fixtures.databases import PostgresqlDatabases, postgresql  # noqa: F401
from tests.fixtures.hurried import HurriedLoop
from tests.fixtures.index_faults import KILLED, SCENARIOS, FaultyWorld
from tests.fixtures.index_world import IndexWorld, index_world
from tests.fixtures.qdrant_targets import Target, collections

pytestmark = pytest.mark.full

# `make test` plays the incremental sync, which has all kinds of requests; `make test-all` the others as well.
TURNS = [each if "incremental" in each else pytest.param(each, marks=pytest.mark.full) for each in SCENARIOS]


@pytest.fixture
def loop() -> Iterator[HurriedLoop]:
    with contextlib.closing(HurriedLoop()) as loop:
        yield loop


@pytest.fixture
def index(tmp_path: Path, qdrant: Target, postgresql: PostgresqlDatabases) -> Iterator[IndexWorld]:  # noqa: F811
    with collections(qdrant) as prefix, index_world(tmp_path, prefix, qdrant, postgresql.upgraded()) as world:
        yield world


@pytest.mark.parametrize("scenario", TURNS)
@pytest.mark.parametrize(("fault", "first"), [(Fault.DOWN, 3), (Fault.LOST, 5)], ids=["down", "lost"])
def test_a_fault_at_any_moment_loses_nothing_and_the_next_run_is_exact(
    index: IndexWorld, loop: HurriedLoop, scenario: str, fault: Fault, first: int
) -> None:
    assert FaultyWorld(index, loop, scenario).play(fault, first=first, every=31 if "many" in scenario else 11) > 1


@pytest.mark.parametrize("scenario", TURNS)
def test_a_process_that_is_killed_at_any_moment_loses_nothing_and_the_next_run_is_exact(
    index: IndexWorld, loop: HurriedLoop, scenario: str
) -> None:
    assert FaultyWorld(index, loop, scenario).play(KILLED, first=9, every=37 if "many" in scenario else 17) > 1
