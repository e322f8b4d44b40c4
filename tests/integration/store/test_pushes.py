"""Which repositories a push is about, on both databases, and the run or the reason that follows."""

from __future__ import annotations

import asyncio
from datetime import datetime

from reposync.store.database import Database
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration, Repository
from reposync.store.run import Run, RunFigures
from reposync.store.run_queue import PushIgnored
from reposync.store.runs import Runs
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.versions import Versions
from tests.integration.store.conftest import Store

HERE, OLD, NEW = "https://gitlab.example.com/a/b", "1" * 40, "2" * 40


async def registered(database: Database, name: str, location: str = HERE, **said: object) -> None:
    common = {"source": "gitlab", "origin": "config", "collection": "code", "cron_expression": "0 * * * *"}
    await Repositories(database).register(Registration(name=name, location=location, **(common | said)))  # type: ignore[arg-type]


async def found(database: Database, number: int, *locations: str) -> list[str]:
    return [each.name for each in await Repositories(database).of_project(number, locations)]


async def one(database: Database, name: str = "app") -> Repository:
    rows = await Repositories(database).of_project(7, [HERE])
    return next(row for row in rows if row.name == name)


async def test_a_project_is_found_by_its_number_and_by_its_place_as_long_as_it_has_none(database: Database) -> None:
    await registered(database, "numbered", "https://gitlab.example.com/former/place", project_id=7)
    await registered(database, "unnumbered", "https://gitlab.example.com/A/B")
    await registered(database, "another", project_id=8)
    await registered(database, "cloned", f"{HERE}.git", source="git")
    await registered(database, "by-hand", cron_expression=None, origin="command", by_hand=True)

    assert await found(database, 7, HERE, f"{HERE}.git") == ["cloned", "numbered", "unnumbered"]
    assert await found(database, 8, HERE) == ["another", "unnumbered"]
    assert await found(database, 9) == []


async def test_a_push_queues_a_run_of_webhooks_and_the_next_one_joins_it(database: Database) -> None:
    await registered(database, "app")
    pushed, runs = await one(database), Runs(database)
    asked = await asyncio.gather(*(runs.enqueue_for_push(pushed, NEW, max_attempts=5) for _ in range(4)))
    (run,) = await runs.history()
    assert (run.trigger, run.max_attempts, run.status) == (RunTrigger.WEBHOOK, 5, RunStatus.QUEUED)
    assert sorted(each[1] for each in asked if not isinstance(each, PushIgnored)) == [False, False, False, True]


async def test_a_push_of_the_indexed_commit_is_ignored_unless_a_run_is_active(database: Database) -> None:
    await registered(database, "app")
    runs, pushed = Runs(database), await one(database)
    await runs.enqueue("app", RunTrigger.COMMAND)
    claimed = await runs.claim("pod", 60)
    assert claimed is not None
    await Store(database).publishes(claimed, commit=OLD)

    under_way = await runs.enqueue_for_push(pushed, OLD, max_attempts=3)
    assert isinstance(under_way, tuple)
    assert under_way[1]
    await runs.request_cancel(under_way[0].id)
    await runs.finish(claimed, RunStatus.COMPLETED, RunFigures())

    assert await runs.enqueue_for_push(pushed, OLD, max_attempts=3) == PushIgnored(True, None)
    assert isinstance(await runs.enqueue_for_push(pushed, NEW, max_attempts=3), tuple)


async def test_an_index_is_behind_from_the_push_on_until_a_run_has_published_what_was_pushed(
    database: Database,
) -> None:
    await registered(database, "app")
    store, runs, pushed = Store(database), Runs(database), await one(database)

    async def behind_since() -> datetime | None:
        (state,) = await Repositories(database).states()
        assert state.behind_since == (await one(database)).behind_since
        return state.behind_since

    async def behind() -> bool:
        return await behind_since() is not None

    async def begun() -> Run:
        await runs.enqueue("app", RunTrigger.COMMAND)
        claimed = await runs.claim("pod", 60)
        assert claimed is not None
        return claimed

    assert not await behind(), "nothing is known of its source"
    claimed = await begun()
    await Versions(database).record_head(claimed, OLD, known=None)
    assert await behind()
    await store.publishes(claimed, commit=OLD)
    assert not await behind()
    await runs.finish(claimed, RunStatus.COMPLETED, RunFigures())

    claimed = await begun()
    await runs.enqueue_for_push(pushed, "3" * 40, is_head=False, max_attempts=3)
    assert not await behind(), "of which branch the head is, is not known"
    await runs.enqueue_for_push(pushed, NEW, max_attempts=3)
    assert await behind()
    # It read the head before the push, and writes it down after.
    await Versions(database).record_head(claimed, OLD, known=OLD)
    pushed_at = await behind_since()
    await store.publishes(claimed, commit=NEW, complete=False)
    assert await behind_since() == pushed_at, "a file of the head could not be read"
    await store.publishes(claimed, commit=OLD)
    published_at = await behind_since()
    assert pushed_at is not None
    assert published_at is not None
    assert published_at > pushed_at, "it held another head in between"
    await runs.enqueue_for_push(pushed, "4" * 40, max_attempts=3)
    assert await behind_since() == published_at, "it was behind before"
    await store.publishes(claimed, commit="4" * 40)
    assert not await behind()

    await runs.enqueue_for_push(pushed, OLD, max_attempts=3)
    assert await behind()
    await registered(database, "app", "https://gitlab.example.com/c/d")
    (state,) = await Repositories(database).states()
    assert state.behind_since is None, "the head was that of another project"
