"""Waiting for what other processes write: by PostgreSQL's LISTEN if possible, and always with a timeout."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from reposync.store.database import PROBE, QUEUE, REGISTRATIONS, Database

log = logging.getLogger(__name__)

# A connection that was cut silently, or whose server was demoted, is noticed by a probe.
_PROBE_SECONDS = 30.0
_PROBE_TIMEOUT_SECONDS = 5.0
_MAX_PAUSE_SECONDS = 10.0


class Notifications:
    """One per process, with one waiter for each channel. They only shorten waits: without them (SQLite written by a
    different process, PgBouncer, a broken connection) every wait ends by its timeout, and the waiter polls."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._events = {QUEUE: asyncio.Event(), REGISTRATIONS: asyncio.Event()}
        database.subscribe(self._notified)

    async def wait(self, channel: str, seconds: float) -> bool:
        """Until a notification arrives or `seconds` have passed; whether one arrived. Notifications since the last wait
        count."""
        event = self._events[channel]
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        event.clear()
        return True

    async def listen(self) -> None:
        """Keep a listening connection open, until cancelled."""
        if self._database.connect is None:
            return
        pause = 0.5
        while True:
            try:
                connection = await self._database.connect()
            except Exception as error:  # noqa: BLE001 - whatever it is, polling continues, and the listener reconnects
                log.debug("no connection to listen on: %s", type(error).__name__)
            else:
                pause = 0.5
                await self._listen_on(connection)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)

    async def _listen_on(self, connection: Any) -> None:
        closed = asyncio.Event()
        connection.add_termination_listener(lambda _: closed.set())
        try:
            for channel in self._events:
                await connection.add_listener(channel, lambda *message: self._database.notify(message[2]))
                # Something may have been announced before.
                self._database.notify(channel)
            while not closed.is_set():
                try:
                    async with asyncio.timeout(_PROBE_SECONDS):
                        await closed.wait()
                except TimeoutError:
                    await connection.execute(PROBE, timeout=_PROBE_TIMEOUT_SECONDS)
        except Exception as error:  # noqa: BLE001 - as above
            log.debug("the listening connection broke: %s", type(error).__name__)
        finally:
            connection.terminate()

    def _notified(self, channel: str) -> None:
        if channel in self._events:
            self._events[channel].set()
