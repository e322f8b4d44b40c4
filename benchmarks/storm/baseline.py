"""The design that people usually start from: every pod runs APScheduler on one shared RedisJobStore, and a job that
takes a plain `SET NX` lock with a time to live, works, and deletes the lock.

    python -m benchmarks.storm.baseline REDIS_URL POD_NAME LATE_SECONDS PERIOD_SECONDS REPOSITORIES JOURNAL

One pod. `LATE_SECONDS`: how much later than the others it gets to the lock after a tick has fired (a slower network, a
busier event loop). Each execution is a line of the journal: repository, tick, when.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from urllib.parse import urlsplit

import redis.asyncio as redis
from apscheduler.events import EVENT_JOB_SUBMITTED, JobSubmissionEvent  # type: ignore[import-untyped]
from apscheduler.jobstores.redis import RedisJobStore  # type: ignore[import-untyped]
from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]

JOB_SECONDS = 0.005
LOCK_SECONDS = 1800
JOBS_DATABASE, LOCKS_DATABASE = 1, 2


class Pod:
    def __init__(self, url: str, name: str, late_seconds: float, journal: str) -> None:
        host, port = urlsplit(url).hostname, urlsplit(url).port
        self.name = name
        self.late_seconds = late_seconds
        self.ticks: dict[str, float] = {}
        self.locks = redis.Redis(host=host or "127.0.0.1", port=port or 6379, db=LOCKS_DATABASE)
        self.store = RedisJobStore(db=JOBS_DATABASE, host=host, port=port)
        self.journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def submitted(self, event: JobSubmissionEvent) -> None:
        self.ticks[event.job_id] = event.scheduled_run_times[-1].timestamp()

    async def sync(self, repository: str) -> None:
        tick = self.ticks[repository]
        await asyncio.sleep(self.late_seconds)
        if not await self.locks.set(f"lock:{repository}", self.name, nx=True, ex=LOCK_SECONDS):
            return
        try:
            os.write(self.journal, f"{repository} {tick} {time.time()}\n".encode())
            await asyncio.sleep(JOB_SECONDS)
        finally:
            await self.locks.delete(f"lock:{repository}")


POD: Pod


async def sync(repository: str) -> None:
    """A job store keeps a job as the name of a function."""
    await POD.sync(repository)


async def main(url: str, name: str, late_seconds: str, period: str, repositories: str, journal: str) -> None:
    global POD
    POD = Pod(url, name, float(late_seconds), journal)
    scheduler = AsyncIOScheduler(
        jobstores={"default": POD.store},
        timezone="UTC",
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": 300},
    )
    scheduler.add_listener(POD.submitted, EVENT_JOB_SUBMITTED)
    for number in range(int(repositories)):
        identity = f"repo-{number:02d}"
        scheduler.add_job(sync, "cron", second=f"*/{period}", id=identity, args=[identity], replace_existing=True)
    scheduler.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    # By its own name, so that the store can find `sync` again.
    from benchmarks.storm import baseline

    asyncio.run(baseline.main(*sys.argv[1:]))
