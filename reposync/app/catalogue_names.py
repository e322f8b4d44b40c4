"""The names of all repositories, for decisions about each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from reposync.clock import elapsed_seconds
from reposync.store.database import Database
from reposync.store.repositories import Repositories

FRESH_SECONDS = 1.0
"""For so long a change by a different process may be unknown here; one by this process is known at once."""


class CatalogueNames:
    """Name of each repository, by id. Reading 5,000 takes some milliseconds: so they are read once a second at most,
    and the same mapping is returned until one changes."""

    def __init__(self, database: Database, elapsed: Callable[[], float] = elapsed_seconds) -> None:
        self._database = database
        self._elapsed = elapsed
        self._names: Mapping[str, str] = {}
        self._read_at = float("-inf")
        self._changes = -1
        self._one_at_a_time = asyncio.Lock()

    async def read(self) -> Mapping[str, str]:
        """Raises StoreUnavailable."""
        if not self._is_fresh():
            async with self._one_at_a_time:
                if not self._is_fresh():
                    changes, read_at = self._database.catalogue_changes, self._elapsed()
                    names = await Repositories(self._database).names_of()
                    if names != self._names:
                        self._names = names
                    self._changes, self._read_at = changes, read_at
        return self._names

    def _is_fresh(self) -> bool:
        is_ours = self._changes == self._database.catalogue_changes
        return is_ours and self._elapsed() < self._read_at + FRESH_SECONDS
