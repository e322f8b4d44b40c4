"""Who waits for work hears of it at once: in the process where it was written, and on PostgreSQL in every other one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
from sqlalchemy import text

from reposync.store.database import Database
from reposync.store.endings import STOPPING, Block, Fail, Finish
from reposync.store.notifications import listen
from reposync.store.run import Ask, RunFigures
from reposync.store.status import RunTrigger
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.integration.store.conftest import ON_POSTGRESQL, TICK, Store

# Never waited for: long enough that a wait which ended was woken.

LISTENERS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'idle' AND query ILIKE 'LISTEN%' AND pid <> pg_backend_pid()
"""


class News:
    """What a subscriber of the database hears."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._event = asyncio.Event()
        database.subscribe(self._event.set)

    async def wait(self, seconds: float) -> bool:
        """Until something was announced since the last wait, or `seconds` have passed; whether it was."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    async def quiet(self) -> None:
        """Nothing is left of what was announced before."""
        while await self.wait(0.0):
            pass


@contextlib.asynccontextmanager
async def listening(news: News) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(listen(news.database))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def is_announced(news: News, what: Awaitable[object]) -> bool:
    await news.quiet()
    await what
    return await news.wait(0.02)


async def heard_of_nothing(news: News) -> bool:
    return not await news.wait(0.02)


async def test_everything_that_gives_a_worker_something_to_do_is_announced(store: Store) -> None:
    news = News(store.database)
    run = await store.running()
    announced, runs = partial(is_announced, news), store.runs
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


async def test_what_was_rolled_back_is_not_announced(store: Store, open_database: Callable) -> None:
    other = await open_database()
    news, elsewhere = News(store.database), News(other)
    async with listening(elsewhere):
        if other.is_postgresql:
            assert await elsewhere.wait(PATIENCE_SECONDS), "what may have been announced before it listened"
        await elsewhere.quiet()

        with pytest.raises(ZeroDivisionError):
            async with store.database.write() as connection:
                await connection.announce()
                _ = 1 / 0
        assert await heard_of_nothing(news)

        async with store.database.write() as connection:
            await connection.announce()
        assert await news.wait(PATIENCE_SECONDS), "the next transaction announces only what is its own"
        if other.is_postgresql:
            assert await elsewhere.wait(PATIENCE_SECONDS)
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

    news = News(other)
    await store.repository()
    async with listening(news):
        first = await listener(store.database)
        await news.quiet()
        other.connect = reconnect  # the server is away for a while

        assert await store.database.scalar(text(f"SELECT pg_terminate_backend({first}, 5000)"))
        await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))  # while nobody listens

        assert await news.wait(PATIENCE_SECONDS)
        assert await listener(store.database) != first
        await news.quiet()
        await store.runs.cancel((await store.history.runs())[0].id)
        await news.quiet()
        await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))
        assert await news.wait(PATIENCE_SECONDS), "it listens as before"
    while await store.database.scalars(text(LISTENERS)):  # a listener that is cancelled leaves no connection
        await asyncio.sleep(0.01)
