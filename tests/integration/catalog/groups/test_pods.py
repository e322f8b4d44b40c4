"""Several pods that follow the same group, as processes of their own: one of them lists, whatever happens to it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest

from tests.integration.api.serving import eventually
from tests.integration.catalog.groups.conftest import GroupWorld

LIST = "/api/v4/groups/"
LONG_SECONDS = 120.0

Process = subprocess.Popen[str]
Start = Callable[[str, float], Process]


@pytest.fixture
def start(closed_world: GroupWorld) -> Iterator[Start]:
    """A pod, by its name and how long its leases are."""
    processes: list[Process] = []

    def start_pod(name: str, lease_seconds: float) -> Process:
        settings = {
            "REPOSYNC_STATE_DIR": str(closed_world.folder / f"state of {name}"),
            "REPOSYNC_CONFIG": str(closed_world.folder / "repositories.yaml"),
            "QDRANT_URL": closed_world.qdrant_url,
            "DATABASE_URL": closed_world.database_url,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.follower_process", name, str(lease_seconds)],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert line(process) == "ready"
        return process

    yield start_pod
    for process in processes:
        process.kill()
        process.communicate()


def line(process: Process) -> str:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    assert said, process.communicate()[1]
    return said


async def held_by(world: GroupWorld) -> str | None:
    return (await world.group()).worker


async def leased_until(world: GroupWorld) -> datetime:
    return await eventually(lambda: _lease(world), LONG_SECONDS)


async def _lease(world: GroupWorld) -> datetime | None:
    return (await world.group()).lease_until


async def test_a_listing_that_takes_longer_than_its_lease_is_finished_by_who_began_it(
    world: GroupWorld, start: Start
) -> None:
    lease_seconds = 4.0
    world.project("platform/a")
    gate = world.server.faults.hold(path=LIST)
    first, second = start("pod-1", lease_seconds), start("pod-2", lease_seconds)
    await world.declare()
    await asyncio.to_thread(gate.arrived.wait, LONG_SECONDS)
    worker = await held_by(world)
    beginning = await leased_until(world)

    async def twice_as_long() -> bool:
        return await leased_until(world) > beginning + timedelta(seconds=2 * lease_seconds)

    await eventually(twice_as_long, LONG_SECONDS)
    assert await held_by(world) == worker
    assert world.listings() == 0, "nobody else has listed it meanwhile"
    gate.open()

    lister = first if worker == "pod-1" else second
    assert [await asyncio.to_thread(line, lister) for _ in range(2)] == ["ok", "looked"]
    state = await world.group()
    assert (state.attempt, state.projects, state.error_code) == (1, 1, None)
    assert world.listings() == 1
    assert await world.active() == {"platform/a"}


async def test_a_pod_that_was_killed_while_it_listed_is_taken_over(world: GroupWorld, start: Start) -> None:
    world.project("platform/a")
    gate = world.server.faults.hold(path=LIST)
    first = start("pod-1", 1.0)
    await world.declare()
    await asyncio.to_thread(gate.arrived.wait, LONG_SECONDS)
    first.kill()

    second = start("pod-2", 60.0)

    assert [await asyncio.to_thread(line, second) for _ in range(2)] == ["ok", "looked"]
    state = await world.group()
    assert (state.attempt, state.projects) == (2, 1)


async def test_a_pod_that_was_frozen_while_it_listed_writes_nothing_of_what_it_saw(
    world: GroupWorld, start: Start
) -> None:
    """Its listing is older than what the other one wrote: a project that is gone would come back."""
    old = world.project("platform/old")
    gate = world.server.faults.hold(path=LIST, after_bytes=1)
    # The name of a worker says nothing: the two have the same, as a pod has that looks for a second time.
    first = start("pod", 1.0)
    await world.declare()
    await asyncio.to_thread(gate.arrived.wait, LONG_SECONDS)
    first.send_signal(signal.SIGSTOP)
    old.move("platform/new")

    second = start("pod", 60.0)
    assert [await asyncio.to_thread(line, second) for _ in range(2)] == ["ok", "looked"]
    gate.open()
    first.send_signal(signal.SIGCONT)

    assert await asyncio.to_thread(line, first) == "looked", "and it was no result"
    assert await world.active() == {"platform/new"}
    state = await world.group()
    assert (state.attempt, state.worker, state.projects) == (2, None, 1)
