"""How old a lock is, the database says."""

from __future__ import annotations

import pytest

from reposync.errors import LockHeld
from reposync.runs.locks import lock_overviews, release_lock, stale_by
from reposync.runs.redis_locks import RedisLocks
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger
from tests.fixtures.clocks import DatabaseTime, ShiftedClock, database_time  # noqa: F401
from tests.fixtures.databases import database_kind, database_url, postgresql  # noqa: F401


@pytest.mark.parametrize("ahead_seconds", [20.0, 86_400.0])
async def test_a_living_workers_lock_is_left_alone_by_a_machine_whose_clock_is_ahead(
    database_time: DatabaseTime,  # noqa: F811
    redis_url: str,
    ahead_seconds: float,
) -> None:
    async with await database_time.open(ShiftedClock(ahead_seconds)) as database:
        runs, repositories = Runs(database), Repositories(database)
        await repositories.register(
            Registration(name="payments", location="/nowhere", source="path", origin="command", collection="code")
        )
        await runs.enqueue("payments", RunTrigger.COMMAND)
        run = await runs.claim("pod-1:1:aaaaaa", 15.0)
        assert run is not None
        locks = RedisLocks(redis_url, is_stale=stale_by(runs))
        try:
            async with locks.guard(run):
                await runs.heartbeat(run, 15.0)
                with pytest.raises(LockHeld, match="works on"):
                    await release_lock("payments", locks, repositories, runs)

                await runs.expire(run)
                (shown,) = await lock_overviews(locks, repositories, runs)
                assert shown.lease_is_over
                assert (await release_lock("payments", locks, repositories, runs)).released
        finally:
            await locks.close()
