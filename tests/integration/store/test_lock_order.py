"""Transactions that change several repositories lock them in the order of their ids, so that none is ended by the
database. On SQLite there is one writer at a time, and no order to get wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import count

import pytest
from sqlalchemy import text

from reposync.store.database import Database
from reposync.store.registry import GroupRepositories, RepositoryChange
from reposync.store.repositories import lock_repository
from reposync.store.repository import Registration, Repository, repository_id
from reposync.store.ticks import Ticks
from reposync.store.versions import Versions
from tests.integration.store.conftest import ANY_GRACE_SECONDS, TICK, Store

pytestmark = pytest.mark.full

WAIT_SECONDS = 60.0
ROUNDS = 20
WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")

Locks = Callable[[Database, Sequence[Repository]], Coroutine[None, None, None]]
"""Something that locks all of these repositories in one transaction."""


async def applies_a_registry_file(database: Database, rows: Sequence[Repository]) -> None:
    await Store(database).repositories.register_all([_registration(row.name, branch="main") for row in rows])


async def follows_a_group(database: Database, rows: Sequence[Repository]) -> None:
    await GroupRepositories(database).apply_changes([RepositoryChange(row, {"paused_reason": "moved"}) for row in rows])


async def holds_changes_back(database: Database, rows: Sequence[Repository]) -> None:
    await Versions(database).set_hold([row.name for row in rows], None)


async def reports_ticks(database: Database, rows: Sequence[Repository]) -> None:
    due = {row.id: TICK for row in rows}
    await Ticks(database).enqueue(due, grace_seconds=ANY_GRACE_SECONDS, max_attempts=3)


async def queues_first_runs(database: Database, rows: Sequence[Repository]) -> None:
    await Ticks(database).first_runs([row.id for row in rows])


@pytest.fixture
def database_kind() -> str:
    return "postgresql"


@pytest.mark.parametrize("first", [applies_a_registry_file, follows_a_group, holds_changes_back, queues_first_runs])
async def test_two_who_lock_many_repositories_wait_for_each_other(
    store: Store, open_database: Callable[[], Awaitable[Database]], first: Locks
) -> None:
    """Of three repositories whose names and ages are in the opposite order of their ids, somebody has the middle one.
    Both wait for it; once it is free, two that lock in opposite orders would each want what the other one has."""
    names = _against_their_ids()
    await store.repositories.register_all([_registration(name) for name in reversed(names)])
    rows = await store.repositories.list()
    assert [row.name for row in rows] == names
    one, other = await open_database(), await open_database()

    async with store.database.write() as connection:
        await lock_repository(connection, names[1])
        both = [asyncio.create_task(first(one, rows))]
        await _until_waiting(store, 1)
        both.append(asyncio.create_task(reports_ticks(other, rows)))
        await _until_waiting(store, 2)
    await asyncio.gather(*both)  # which raises what the database was unable to do

    runs = await store.runs.history()
    assert {run.repository for run in runs} == set(names)


def _against_their_ids() -> list[str]:
    """Three names in order, whose ids are in the opposite order."""
    for number in count():
        names = [f"{number}-{letter}" for letter in "abc"]
        ids = [repository_id(name) for name in names]
        if ids == sorted(ids, reverse=True):
            return names
    raise AssertionError


def _registration(name: str, *, branch: str | None = None) -> Registration:
    location = "https://git.example.com/payments.git"
    return Registration(name=name, location=location, source="git", origin="config", collection="code", branch=branch)


async def _until_waiting(store: Store, number: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            async with store.database.read() as connection:
                if await connection.scalar(WAITING) == number:
                    return
            await asyncio.sleep(0.01)
