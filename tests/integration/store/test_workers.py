"""Workers are alive as long as their heartbeat is recent, and sessions have ended once they were signed out."""

from __future__ import annotations

from sqlalchemy import select, update

from reposync.store.tables import ENDED_SESSIONS, WORKERS
from reposync.store.workers import ALIVE_SECONDS, SESSIONS_KEPT_SECONDS, StoredEndedSessions, Workers
from tests.integration.store.conftest import Store


async def alive(store: Store) -> list[str]:
    return [each.name for each in await Workers(store.database).alive()]


async def silent(store: Store, name: str, seconds: float) -> None:
    """The worker was last heard of so long ago."""
    mine = update(WORKERS).where(WORKERS.c.name == name)
    await store.database.change(mine.values(seen_at=store.database.moment(-seconds)))


async def test_a_worker_without_heartbeat_is_not_alive_until_the_next_one(store: Store) -> None:
    workers = Workers(store.database)
    await workers.join("pod-1:7:a", host="node-1", version="1.2.3")
    (joined,) = await workers.alive()
    await silent(store, "pod-1:7:a", ALIVE_SECONDS + 1)
    assert await alive(store) == []

    assert await workers.beat("pod-1:7:a") is True

    (again,) = await workers.alive()
    assert (again.name, again.started_at) == (joined.name, joined.started_at)


async def test_rows_of_dead_workers_are_deleted_when_a_worker_joins(store: Store) -> None:
    workers = Workers(store.database)
    await workers.join("pod-1:7:killed", host="node-1", version="1.2.3")
    await workers.join("pod-2:7:late", host="node-2", version="1.2.3")
    await silent(store, "pod-1:7:killed", 2 * 3600)
    await silent(store, "pod-2:7:late", 60)

    await workers.join("pod-3:7:new", host="node-3", version="1.2.3")

    assert set(await store.database.scalars(select(WORKERS.c.name))) == {"pod-2:7:late", "pod-3:7:new"}
    assert await workers.beat("pod-1:7:killed") is False, "it has to join again"


async def test_a_session_has_ended_once_it_was_signed_out(store: Store) -> None:
    ended = StoredEndedSessions(lambda: store.database)
    assert not await ended.has_ended("one")
    for _ in range(2):
        await ended.end("one")
        assert await ended.has_ended("one")
    assert not await ended.has_ended("two")


async def test_expired_sessions_are_deleted_when_a_session_ends(store: Store) -> None:
    ended = StoredEndedSessions(lambda: store.database)
    for name, age_seconds in (("old", SESSIONS_KEPT_SECONDS + 60), ("young", SESSIONS_KEPT_SECONDS - 60)):
        await ended.end(name)
        mine = update(ENDED_SESSIONS).where(ENDED_SESSIONS.c.id == name)
        await store.database.change(mine.values(ended_at=store.database.moment(-age_seconds)))

    await ended.end("new")

    assert set(await store.database.scalars(select(ENDED_SESSIONS.c.id))) == {"young", "new"}
