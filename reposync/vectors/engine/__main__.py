"""`python -m reposync.vectors.engine`: one engine process on a folder, which it locks; it ends when it is idle."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import time
from pathlib import Path

import uvicorn

from reposync.vectors.embedded import EXIT_LOCKED, EXIT_UNREADABLE, LOG
from reposync.vectors.engine.asgi import EngineApp
from reposync.vectors.engine.claim import Claim, take_lock
from reposync.vectors.engine.collections import CatalogueUnreadable, Collections

log = logging.getLogger(__name__)

MAX_LOG_BYTES = 1_000_000
_WATCH_SECONDS = 1.0
# An event loop that is blocked for so long hangs: an allocation that fails inside the engine, which holds the GIL, may
# never return. The longest regular work, tidying up, takes 25 s.
HANG_SECONDS = 120.0
# Opening and tidying collections takes time by the number of points.
_PATIENT_FACTOR = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="reposync.vectors.engine", description="Qdrant's REST contract on a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--idle", type=float, default=60.0, help="end after so long without a request, in s; 0: never")
    arguments = parser.parse_args()
    line = "%(asctime)s %(process)d %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=line, stream=sys.stderr)
    # Closing a terminal ends its commands, not the engine, which others may be using.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if (lock := take_lock(arguments.folder)) is None:
        sys.exit(EXIT_LOCKED)
    _bound_log(arguments.folder)
    _end_unless_alive_within(_PATIENT_FACTOR * HANG_SECONDS)
    try:
        collections = Collections(arguments.folder)
    except CatalogueUnreadable as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_UNREADABLE)
    claim = Claim(arguments.folder, lock)
    try:
        asyncio.run(_serve(claim, collections, arguments.folder, arguments.idle))
    finally:
        # Under the lock, so that the next engine starts on closed collections.
        claim.release()
        collections.close()


def _end_unless_alive_within(seconds: float) -> None:
    """End this process unless this is called again in time; by a thread that does not need the GIL."""
    faulthandler.dump_traceback_later(seconds, exit=True)


async def _serve(claim: Claim, collections: Collections, folder: Path, idle_seconds: float) -> None:
    app = EngineApp(collections, server=claim.identity)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=120,  # longer than a client keeps one
        timeout_graceful_shutdown=10,
    )
    server = uvicorn.Server(config)

    def end() -> None:
        server.should_exit = True

    app.on_end = end
    # uvicorn raises a received signal again when it is done: that would end the process before the collections close.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: end())
    watch = asyncio.create_task(_watch(app, claim, collections, folder, idle_seconds))
    try:
        await server.serve(sockets=[claim.listener])
    finally:
        watch.cancel()


async def _watch(app: EngineApp, claim: Claim, collections: Collections, folder: Path, idle_seconds: float) -> None:
    """End the engine if it is idle, or if its files were taken away."""

    def is_idle() -> bool:
        return bool(idle_seconds) and not app.active and time.monotonic() - app.last_used >= idle_seconds

    while True:
        _end_unless_alive_within(HANG_SECONDS)
        await asyncio.sleep(min(_WATCH_SECONDS, idle_seconds / 4) if idle_seconds else _WATCH_SECONDS)
        _bound_log(folder)
        if not claim.folder_is_mine():
            # The open files were removed, or belong to a different engine by now: nothing may be flushed to them.
            log.error("The folder of this engine was removed or replaced: it ends.")
            os._exit(1)
        if not claim.is_whole():
            log.error("The socket or the record of this engine is gone: it ends, so that clients start a new one.")
            return app.on_end()
        claim.renew()
        if is_idle():
            _end_unless_alive_within(_PATIENT_FACTOR * HANG_SECONDS)
            collections.tidy()
            # A request may have arrived meanwhile: it is answered, and the idle time starts again.
            await asyncio.sleep(0.01)
            if is_idle():
                return app.on_end()


def _bound_log(folder: Path) -> None:
    """Standard error is opened for appending, so truncating the file is safe."""
    with contextlib.suppress(OSError):
        if (folder / LOG).stat().st_size > MAX_LOG_BYTES:
            os.truncate(folder / LOG, 0)


main()
