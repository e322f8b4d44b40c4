"""Whatever is pushed, configured, answered wrongly or killed, in any order: the index is what `index_model` says."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from reposync.config.database_url import sqlite_url
from tests.fixtures.databases import upgraded_sqlite_file  # noqa: F401
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.fixtures.hurried import HurriedLoop
from tests.fixtures.index_world import IndexWorld, index_world
from tests.fixtures.qdrant_targets import Target, collections
from tests.integration.sync.index_model import Index


@pytest.mark.full
def test_the_index_keeps_its_promises_in_any_order_of_events(
    tmp_path: Path,
    qdrant: Target,
    upgraded_sqlite_file: Path,  # noqa: F811
) -> None:
    numbers = itertools.count()

    @contextlib.contextmanager
    def make() -> Iterator[IndexWorld]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        shutil.copyfile(upgraded_sqlite_file, folder / "reposync.db")
        with (
            collections(qdrant) as prefix,
            index_world(folder, prefix, qdrant, sqlite_url(folder / "reposync.db")) as world,
        ):
            yield world

    class Kept(Index):
        statuses: dict[str, int] = {}  # noqa: RUF012

    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        Kept.loop, Kept.make = runner.get_loop(), staticmethod(make)
        run_state_machine_as_test(Kept, settings=settings(max_examples=SLOW_EXAMPLES, stateful_step_count=25))
