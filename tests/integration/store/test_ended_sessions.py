"""Which sessions of browsers were signed out."""

from __future__ import annotations

from sqlalchemy import select, update

from reposync.api.auth import EndedInMemory, EndedSessions
from reposync.store.tables import ENDED_SESSIONS
from reposync.store.workers import SESSIONS_KEPT_SECONDS as KEPT_SECONDS
from reposync.store.workers import StoredEndedSessions
from tests.integration.store.conftest import Store


async def test_a_session_has_ended_once_it_was_signed_out_and_twice_does_no_harm(store: Store) -> None:
    kinds: list[EndedSessions] = [StoredEndedSessions(lambda: store.database), EndedInMemory()]
    for ended in kinds:
        assert not await ended.has_ended("one")
        for _ in range(2):
            await ended.end("one")
            assert await ended.has_ended("one")
        assert not await ended.has_ended("two")


async def test_what_is_over_in_any_case_is_forgotten_when_another_one_ends(store: Store) -> None:
    ended = StoredEndedSessions(lambda: store.database)
    for name, age_seconds in (("old", KEPT_SECONDS + 60), ("young", KEPT_SECONDS - 60)):
        await ended.end(name)
        async with store.database.write() as connection:
            mine = update(ENDED_SESSIONS).where(ENDED_SESSIONS.c.id == name)
            await connection.execute(mine.values(ended_at=store.database.moment(-age_seconds)))

    await ended.end("new")

    async with store.database.read() as connection:
        assert set(await connection.scalars(select(ENDED_SESSIONS.c.id))) == {"young", "new"}
