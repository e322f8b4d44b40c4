"""Waiting for the end of a run, whoever executes it, for as long as the client is there."""

from __future__ import annotations

import asyncio

from fastapi import Request

from reposync.api.leaving import leaving_of
from reposync.errors import StoreUnavailable
from reposync.store.row_watch import Following, TooManyWatchers
from reposync.store.run import Run

MAX_WAIT_SECONDS = 300


async def end_of(following: Following[Run], request: Request, run_id: str, seconds: float) -> Run | None:
    """The run as it ended; None where it does not within `seconds`, where the client or the server leaves first, and
    where this pod lets nobody wait any more: what was asked for is queued, and the answer says how to follow it."""
    leaving = leaving_of(request)
    gone = asyncio.ensure_future(_disconnected(request))
    ending = asyncio.ensure_future(leaving.wait())
    try:
        async with asyncio.timeout(seconds):
            with following.watching(run_id):
                while not gone.done() and not leaving.is_set():
                    try:
                        run = await following.look(run_id)
                    except StoreUnavailable:
                        pass  # it may be back before the time is over
                    else:
                        if run is None or run.is_final:
                            return run
                    await asyncio.wait(
                        {gone, ending}, timeout=following.pause_seconds, return_when=asyncio.FIRST_COMPLETED
                    )
    except (TimeoutError, TooManyWatchers):
        return None
    finally:
        gone.cancel()
        ending.cancel()
        await asyncio.gather(gone, ending, return_exceptions=True)
    return None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
