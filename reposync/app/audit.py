"""Writing the audit beside the answers: a search does not wait for the database's lock, and many entries are one
transaction."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

from reposync.errors import StoreUnavailable
from reposync.store.audit import AuditLog
from reposync.store.people_tables import AuditEntry

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
"""What a killed process loses at most."""
MAX_WAITING = 10_000
"""Entries that wait for a database that does not answer: about 5 MB. After that the oldest ones are lost."""
_BATCH = 500


class AuditWriter:
    """Collects entries and writes them. `on_lost` is called with how many could not be kept."""

    def __init__(self, log: AuditLog, on_lost: Callable[[int], None] = lambda count: None) -> None:
        self._log = log
        self._on_lost = on_lost
        self._waiting: deque[AuditEntry] = deque()
        self._some = asyncio.Event()
        self._writing = asyncio.Lock()

    def add(self, entry: AuditEntry) -> None:
        self._waiting.append(entry)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self._on_lost(1)
        self._some.set()

    async def run(self) -> None:
        """Write until it is cancelled, and then what is left."""
        try:
            while True:
                await self._some.wait()
                await asyncio.sleep(FLUSH_SECONDS)
                try:
                    await self.flush()
                except StoreUnavailable as error:
                    log.warning("the audit waits for the database: %s", error)
        finally:
            await asyncio.shield(self.close())

    async def close(self) -> None:
        """Write what is left, if the database answers."""
        with contextlib.suppress(StoreUnavailable):
            await self.flush()

    async def flush(self) -> None:
        """Raises StoreUnavailable; nothing is lost then."""
        async with self._writing:
            while self._waiting:
                batch = [self._waiting[at] for at in range(min(_BATCH, len(self._waiting)))]
                await self._log.add(batch)
                for entry in batch:
                    # Others may have been given up meanwhile.
                    if self._waiting and self._waiting[0] is entry:
                        self._waiting.popleft()
            self._some.clear()
