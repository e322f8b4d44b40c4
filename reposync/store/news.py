"""Waiting for what other processes write: PostgreSQL's LISTEN where there is one, and a time-out always."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from reposync.store.database import PROBE, QUEUE, REGISTRATIONS, Database

log = logging.getLogger(__name__)

# A connection that was cut without a word, or whose server was demoted, is noticed by asking.
_PROBE_SECONDS = 30.0
_PROBE_TIMEOUT_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 10.0


class News:
    """One per process, with one waiter a channel. News come sooner; without them (SQLite written by another process, a
    PgBouncer in between, a broken connection) every wait still ends by its time-out, and the waiter looks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._events = {QUEUE: asyncio.Event(), REGISTRATIONS: asyncio.Event()}
        database.on_news(self._hear)

    async def wait(self, channel: str, seconds: float) -> bool:
        """Until something new is there or `seconds` have passed; whether there was news. News that came since the last
        wait count."""
        event = self._events[channel]
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        event.clear()
        return True

    async def listen(self) -> None:
        """Keep a connection that listens, until cancelled."""
        if self._database.connect is None:
            return
        pause = 0.5
        while True:
            try:
                connection = await self._database.connect()
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on and this tries again
                log.debug("no connection to listen on: %s", type(error).__name__)
            else:
                pause = 0.5
                await self._listen_on(connection)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _listen_on(self, connection: Any) -> None:
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            for channel in self._events:
                await connection.add_listener(channel, lambda *told: self._database.hear(told[2]))
                # What was announced while nobody listened.
                self._database.hear(channel)
            while not gone.is_set():
                try:
                    async with asyncio.timeout(_PROBE_SECONDS):
                        await gone.wait()
                except TimeoutError:
                    await connection.execute(PROBE, timeout=_PROBE_TIMEOUT_SECONDS)
        except Exception as error:  # noqa: BLE001 - as above
            log.debug("the connection that listens broke: %s", type(error).__name__)
        finally:
            connection.terminate()

    def _hear(self, channel: str) -> None:
        if channel in self._events:
            self._events[channel].set()
