"""Everything that pods do to a few repositories, all at once: nobody waits for ever, and every promise holds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from reposync.errors import DefinitionChanged, LeaseLost, UsageError
from reposync.store.database import Database
from reposync.store.endings import STOPPING, Retry
from reposync.store.manifest import ManifestRow
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import REPOSITORIES, IndexVersion, VersionState
from tests.fixtures.endings import ending
from tests.integration.store.conftest import TICK, Store, registration

pytestmark = pytest.mark.full

NAMES = [f"repository-{number}" for number in range(6)]
TURNS = 16


class Pod:
    """What one process does, one kind of thing in each of its tasks. What a person or a worker may be told in such a
    crowd is fine; that the database was unable to is not."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.identities: list[str] = []
        self.overlaps: list[str] = []

    def tasks(self) -> list[Callable[[int], Awaitable[object]]]:
        people = [self.click, self.pause, self.rename, self.tidy]
        return [self.tick, self.reschedule, self.register, self.apply, self.work, self.work, *people]

    async def tick(self, turn: int) -> None:
        for name in NAMES:
            await self.store.due(TICK + turn * timedelta(minutes=1), name)
        await self.store.take()

    async def reschedule(self, _: int) -> None:
        of_one = update(REPOSITORIES).where(REPOSITORIES.c.name == self.chance.choice(NAMES))
        await self.store.database.change(of_one.values(last_tick_at=self.store.history.now() + timedelta(hours=1)))
        await self.store.ticks.reschedule()

    async def register(self, turn: int) -> None:
        await self.store.repository(self.chance.choice(NAMES), cron_expression=f"{turn} * * * *")

    async def apply(self, turn: int) -> None:
        """A registry file, with entries that others renamed or have just registered."""
        names = self.chance.sample([*NAMES, f"new-{turn}", f"new-{turn + 1}"], len(NAMES))
        await self.store.repositories.register_all(
            [registration(name, cron_expression=f"* {turn} * * *") for name in names]
        )

    async def work(self, _: int) -> None:
        run = await self.store.runs.claim(f"pod-{self.chance.random()}", 60.0)
        if run is None:
            return
        with suppress(LeaseLost):
            await self.sync(run)

    async def sync(self, run: Run) -> None:
        version = await self.version(run)
        epoch = await self.store.versions.begin_epoch(run, version, identity="index-1")
        file = ManifestRow(f"{run.attempt}.py", "a" * 40, 0o100644, 10, 1, None, "python", epoch)
        await self.store.manifests.record(run, version.id, [file])
        await self.store.runs.heartbeat(run, 60.0, {}, RunFigures(files_processed=1))
        running = [each for each in await self.store.history.active(run.repository_id) if each.status == "running"]
        if len(running) > 1:
            self.overlaps.append(run.id)
        match self.chance.randrange(5):
            case 0:
                await self.store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=0.0))
            case 1:
                await self.store.runs.end(run, STOPPING)
            case 2:
                await self.store.runs.expire(run)
            case _:
                with suppress(DefinitionChanged):
                    await self.store.publishes(run, version)
                status = self.chance.choice([RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.BLOCKED])
                await self.store.runs.end(run, ending(status), RunFigures(files_processed=1))

    async def version(self, run: Run) -> IndexVersion:
        """The live one, or one beside it, as where settings change all the time; what is retired goes."""
        versions = await self.store.versions.of(run.repository_id)
        for each in versions:
            if each.state is VersionState.RETIRED:
                await self.store.versions.remove(run, each.id)
        live = [each for each in versions if each.state is VersionState.LIVE]
        if live and self.chance.random() < 0.5:
            return live[0]
        return await self.store.building(run)

    async def click(self, _: int) -> None:
        with suppress(UsageError):
            run, _ = await self.store.runs.enqueue(self.chance.choice(NAMES), Ask(RunTrigger.HTTP))
            if self.chance.random() < 0.3:
                await self.store.runs.cancel(run.id)

    async def pause(self, turn: int) -> None:
        with suppress(UsageError):
            name = self.chance.choice(NAMES)
            if turn % 2 == 0:
                await self.store.repositories.pause(name, "being moved")
            await self.store.repositories.resume(name)

    async def rename(self, turn: int) -> None:
        name = NAMES[0] if turn % 2 else "another name"
        with suppress(UsageError):
            await self.store.renamed(await self.store.repositories.by_id(self.identities[0]), name)

    async def tidy(self, _: int) -> None:
        for run in (await self.store.history.runs(status={RunStatus.FAILED, RunStatus.BLOCKED}, limit=3))[1:]:
            with suppress(UsageError):
                await (self.store.runs.retry if run.status == "failed" else self.store.runs.approve)(
                    run.id, Ask(RunTrigger.COMMAND)
                )
        await self.store.history.purge(datetime.now(UTC), batch=2)
        await self.store.history.queue()


async def test_pods_that_do_everything_at_once_neither_deadlock_nor_break_a_promise(
    store: Store, open_database: Callable[[], Awaitable[Database]]
) -> None:
    identities = [(await store.repository(name)).id for name in NAMES]
    pods = [Pod(Store(await open_database()), seed) for seed in range(2)]

    async def repeat(task: Callable[[int], Awaitable[object]]) -> None:
        for turn in range(TURNS):
            await task(turn)

    async with asyncio.TaskGroup() as group:  # which raises what the database was unable to do
        for pod in pods:
            pod.identities = list(identities)
            for task in pod.tasks():
                group.create_task(repeat(task))

    assert [pod.overlaps for pod in pods] == [[], []]
    runs = await store.history.runs(limit=1_000)
    ticks = Counter((run.repository_id, run.scheduled_for) for run in runs if run.scheduled_for is not None)
    assert set(ticks.values()) <= {1}
    for versions in (await store.versions.all()).values():
        states = Counter(version.state for version in versions)
        assert states[VersionState.LIVE] <= 1 and states[VersionState.BUILDING] <= 1
    for row in await store.repositories.list():
        live = [each.id for each in await store.versions.of(row.id) if each.state is VersionState.LIVE]
        assert live == ([] if row.live_version is None else [row.live_version])
    for identity in identities:
        active = Counter(run.status for run in await store.history.active(identity))
        assert active[RunStatus.RUNNING] <= 1 and active[RunStatus.QUEUED] <= 1
    for row in await store.repositories.list():
        await store.repositories.resume(row.name)  # who was renamed in the middle of a pause
    await store.database.change(update(REPOSITORIES).values(next_due_at=TICK))
    await store.take()
    assert all(row.next_due_at > store.history.now() for row in await store.repositories.list())
    # Whatever is left can be worked off.
    for run in [each for each in runs if each.status == "running"]:
        await store.runs.expire(run)
    while run := await store.runs.claim("last", 60.0):
        await store.ended(run)
    assert (await store.history.queue()).counts.keys() <= {RunStatus.BLOCKED}
