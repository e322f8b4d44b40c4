"""A worker in a process of its own: `python -m tests.integration.runs.lock.worker_process REDIS DATABASE WORKER`.

Claims a run, says `locked` when it is within its guard (or the name of the error), then the error's name when it loses
the lock, and `left` when it was told a line and has given the lock back.
"""

from __future__ import annotations

import asyncio
import sys

from reposync.errors import LockHeld, LockLost
from reposync.runs.locks import stale_by
from reposync.runs.redis_locks import RedisLocks
from reposync.store.database import Database
from reposync.store.runs import Runs


async def main(redis_url: str, database_url: str, worker: str) -> None:
    async with await Database.open(database_url) as database:
        runs = Runs(database)
        locks = RedisLocks.open(redis_url, ttl_seconds=60.0, watchdog_seconds=0.2, is_stale=stale_by(runs))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        run = await runs.claim(worker, 60.0)
        assert run is not None
        try:
            async with locks.guard(run) as guard:
                print("locked", flush=True)
                told = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
                watch = asyncio.create_task(guard.watch())
                await asyncio.wait({told, watch}, return_when=asyncio.FIRST_COMPLETED)
                if watch.done():
                    print(type(watch.exception()).__name__, flush=True)
                    assert isinstance(watch.exception(), LockLost)
                    await told
                watch.cancel()
            print("left", flush=True)
        except LockHeld as error:
            print(type(error).__name__, flush=True)
        finally:
            await locks.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
