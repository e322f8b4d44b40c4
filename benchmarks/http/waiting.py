"""The design that is replaced: a request takes the repository's lock in Redis, waiting for it as long as need be, then
begins the sync in the background, which gives the lock back, and answers.

    python -m benchmarks.http.waiting REDIS_URL SYNC_SECONDS

FastAPI on uvicorn, one process. The lock is redis-py's own, with its defaults but for the 30 minutes. A sync takes
SYNC_SECONDS and nothing else: no CPU, no database. Prints the port.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import uuid

import redis.asyncio as redis
import uvicorn
from fastapi import FastAPI
from redis.asyncio.lock import Lock

LOCK_SECONDS = 1800


def application(url: str, sync_seconds: float) -> FastAPI:
    app = FastAPI()
    client = redis.Redis.from_url(url)
    syncs: set[asyncio.Task[None]] = set()

    async def sync(lock: Lock) -> None:
        await asyncio.sleep(sync_seconds)
        await lock.release()

    @app.post("/api/v1/repositories/{name}/sync", status_code=202)
    async def trigger(name: str) -> dict[str, str]:
        lock = client.lock(f"lock:{name}", timeout=LOCK_SECONDS)
        await lock.acquire()
        task = asyncio.create_task(sync(lock))
        syncs.add(task)
        task.add_done_callback(syncs.discard)
        return {"id": str(uuid.uuid4()), "status": "running"}

    return app


async def main(url: str, sync_seconds: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(application(url, float(sync_seconds)), lifespan="off", log_level="warning")
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
