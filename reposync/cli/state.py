"""The database alone, for commands that only read it: no registry, no engine, no client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from reposync.config.settings import Settings, make_state_dir
from reposync.store.database import Database


@contextlib.asynccontextmanager
async def open_database() -> AsyncGenerator[Database, None]:
    """The database as it is. Raises ConfigError, StoreUnavailable."""
    settings = Settings.from_environment()
    await asyncio.to_thread(make_state_dir, settings)
    async with await Database.open(settings.database_url) as database:
        yield database


@contextlib.asynccontextmanager
async def open_state() -> AsyncGenerator[Database, None]:
    """The database with its schema brought up to date. Raises ConfigError, StoreUnavailable."""
    async with open_database() as database:
        await database.upgrade()
        yield database
