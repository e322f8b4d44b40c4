"""Who waits for work hears of it at once: in the process where it was written, and on PostgreSQL in every other one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from sqlalchemy import text

from reposync.store.database import QUEUE, REGISTRATIONS, Database
from reposync.store.endings import STOPPING, Block, Fail, Finish
from reposync.store.notifications import Notifications
from reposync.store.run import Ask, RunFigures
from reposync.store.status import RunTrigger
from tests.integration.store.conftest import ON_POSTGRESQL, TICK, Store

# Never waited for: long enough that a wait which ended was woken.
LONG_SECONDS = 60.0

LISTENERS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle' AND query ILIKE 'LISTEN%' AND pid <> pg_backend_pid()
"""


@contextlib.asynccontextmanager
async def listening(news: Notifications) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(news.listen())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def quiet(news: Notifications) -> None:
    """Nothing is left of what was announced before."""
    for channel in (QUEUE, REGISTRATIONS):
        while await news.wait(channel, 0.0):
            pass


async def is_announced(news: Notifications, channel: str, what: Awaitable[object]) -> bool:
    await quiet(news)
    await what
    return await news.wait(channel, 0.02)


async def heard_of_nothing(news: Notifications, channel: str = QUEUE) -> bool:
    return not await news.wait(channel, 0.02)


async def test_everything_that_gives_a_worker_something_to_do_is_announced(store: Store) -> None:
    news = Notifications(store.database)
    run = await store.running()
    announced, runs = partial(is_announced, news, QUEUE), store.runs
    assert await announced(runs.end(run, STOPPING)), "handed back"
    run = await runs.claim("worker-1", 60.0)
    assert await announced(runs.expire(run)), "its worker is gone"
    run = await runs.claim("worker-1", 60.0)
    await runs.end(run, Block(), RunFigures())
    assert await announced(runs.approve(run.id, Ask(RunTrigger.COMMAND))), "approved"
    run = await runs.claim("worker-1", 60.0)
    await runs.end(run, Fail(), RunFigures())
    assert await announced(runs.retry(run.id, Ask(RunTrigger.COMMAND))), "tried again"
    assert await announced(runs.enqueue("payments", Ask(RunTrigger.HTTP))), "one that waits already, and may now be due"
    await runs.end(await runs.claim("worker-1", 60.0), Finish(), RunFigures())
    assert await announced(store.tick(TICK)), "a tick"
    assert not await announced(store.take()), "which another pod took"
    await store.repository("new", cron_expression="0 3 * * *")
    assert await announced(store.take()), "a first run"
    assert not await announced(store.take()), "which it has"
    assert not await announced(store.tick(TICK, "new", grace_seconds=1.0)), "a tick that joins"


async def test_changes_of_registrations_are_announced_and_repetitions_are_not(store: Store) -> None:
    news = Notifications(store.database)
    announced = partial(is_announced, news, REGISTRATIONS)
    assert await announced(store.repository())
    assert not await announced(store.repository())
    assert await announced(store.repository(cron_expression="0 3 * * *"))
    assert await announced(store.repositories.pause("payments", "being moved"))
    assert await announced(store.repositories.resume("payments"))
    assert await announced(store.repositories.deactivate("payments"))
    row = await store.repository(cron_expression="0 3 * * *")
    assert await announced(store.renamed(row, "billing"))
    assert await announced(store.repositories.remove("billing"))


async def test_what_was_rolled_back_is_not_announced(store: Store, open_database: Callable) -> None:
    other = await open_database()
    news, elsewhere = Notifications(store.database), Notifications(other)
    async with listening(elsewhere):
        if other.is_postgresql:
            assert await elsewhere.wait(QUEUE, LONG_SECONDS), "what may have been announced before it listened"
        await quiet(elsewhere)

        with pytest.raises(ZeroDivisionError):
            async with store.database.write() as connection:
                await connection.announce(QUEUE)
                _ = 1 / 0
        assert await heard_of_nothing(news)

        async with store.database.write() as connection:
            await connection.announce(QUEUE)
        assert await news.wait(QUEUE, LONG_SECONDS), "the next transaction announces only what is its own"
        if other.is_postgresql:
            assert await elsewhere.wait(QUEUE, LONG_SECONDS)
            assert await heard_of_nothing(elsewhere)


async def listener(database: Database) -> int:
    """The process of the server that serves the one listening connection, as soon as there is one."""
    while len(found := await database.scalars(text(LISTENERS))) != 1:
        await asyncio.sleep(0.01)
    return int(found[0])


@ON_POSTGRESQL
async def test_a_connection_that_was_cut_is_replaced_and_nothing_is_missed(
    store: Store, open_database: Callable
) -> None:
    other = await open_database()
    connect, refusals = other.connect, 0

    async def reconnect() -> object:
        nonlocal refusals
        refusals += 1
        if refusals < 3:
            raise ConnectionRefusedError
        return await connect()

    news = Notifications(other)
    await store.repository()
    async with listening(news):
        first = await listener(store.database)
        await quiet(news)
        other.connect = reconnect  # the server is away for a while

        assert await store.database.scalar(text(f"SELECT pg_terminate_backend({first}, 5000)"))
        await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))  # while nobody listens

        assert await news.wait(QUEUE, LONG_SECONDS)
        assert await listener(store.database) != first
        await quiet(news)
        await store.repositories.pause("payments", "being moved")
        assert await news.wait(REGISTRATIONS, LONG_SECONDS), "it listens as before"
    while await store.database.scalars(text(LISTENERS)):  # a listener that is cancelled leaves no connection
        await asyncio.sleep(0.01)
