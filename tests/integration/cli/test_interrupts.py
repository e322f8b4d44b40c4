"""Ctrl-C right after a run was requested, before the command knows which one it is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reposync import operations
from reposync.cli.performing import Performer
from tests.fixtures.repositories import GitRepository
from tests.integration.cli.conftest import Types


@dataclass(frozen=True)
class Interrupted:
    """The operation, with so many Ctrl-C when it is done."""

    operation: Any
    times: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operation, name)

    async def __call__(self, *arguments: Any, **named: str) -> Any:
        run = await self.operation(*arguments, **named)
        for _ in range(self.times):
            signal.raise_signal(signal.SIGINT)
        return run


@pytest.fixture
def performer(types: Types, tmp_path: Path) -> Iterator[Performer]:
    GitRepository.create(tmp_path / "app.git").commit({"a.py": b"a = 1\n"})
    registry = tmp_path / "repositories.yaml"
    registry.write_text(f"repositories: [{{name: app, path: {tmp_path}/app.git, schedule: never}}]\n")
    assert types("apply", str(registry))[0] == 0
    performer = Performer()
    yield performer
    performer.close()


def statuses(performer: Performer) -> list[str]:
    return [run.status for run in performer(operations.runs.history).items]


@pytest.mark.parametrize(("times", "status"), [(1, "cancelled"), (2, "queued")])
def test_a_run_that_was_just_requested_is_taken_back_unless_ctrl_c_is_pressed_twice(
    performer: Performer, times: int, status: str
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        performer.request(Interrupted(operations.syncs.sync_target, times), {"target": "app"})
    assert statuses(performer) == [status]
    assert signal.getsignal(signal.SIGINT) is before


def test_without_ctrl_c_it_is_the_run_that_was_requested(performer: Performer) -> None:
    run = performer.request(operations.syncs.sync_target, {"target": "app"})
    assert (run.status, statuses(performer)) == ("queued", ["queued"])
