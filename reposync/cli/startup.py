"""What commands share before they do their work: one event loop, the database, the application."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import getpass
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.config.settings import Settings
    from reposync.store.database import Database

T = TypeVar("T")

M_ARENA_MAX = -8  # <malloc.h>


def run_with_app(action: Callable[[Application], Awaitable[T]], *, with_engine: bool = False) -> T:
    """The result of `action` with the application; `with_engine`: and with the index. Raises RepoSyncError."""

    async def main() -> T:
        from reposync.app.application import open_application

        async with open_application(settings(), with_engine=with_engine) as app:
            return await action(app)

    return run_async(main())


def run_with_database(action: Callable[[Database], Awaitable[T]], *, upgrade: bool = True) -> T:
    """The result of `action` with the database, for commands that need neither registry nor index.

    `upgrade`: bring the schema up to date first. Raises ConfigError, StoreUnavailable.
    """

    async def main() -> T:
        async with open_database() as database:
            if upgrade:
                await database.upgrade()
            return await action(database)

    return run_async(main())


@contextlib.asynccontextmanager
async def open_database() -> AsyncGenerator[Database, None]:
    """The database with the schema that it has. Raises ConfigError, StoreUnavailable."""
    from reposync.config.settings import make_state_dir
    from reposync.store.database import Database

    environment = settings()
    await asyncio.to_thread(make_state_dir, environment)
    async with await Database.open(environment.database_url) as database:
        yield database


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end. Ctrl-C and SIGTERM cancel it, so that it can clean up; the exit code is then 130."""

    share_one_heap()

    async def guarded() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        terminated = False

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            if task is not None:
                task.cancel()

        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(signal.SIGTERM, terminate)
        try:
            return await main
        except asyncio.CancelledError:
            if terminated:
                raise KeyboardInterrupt from None
            raise

    return asyncio.run(guarded())


def share_one_heap() -> None:
    """Keep glibc from giving each thread a heap of its own: batches that move between threads fragment them. A sync of
    50,000 files peaked at 292 MB with eight heaps, and at 264 MB with two. No effect on other systems."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def settings() -> Settings:
    """The settings from the environment. Raises ConfigError."""
    from reposync.config.settings import Settings

    return Settings.from_environment()


def current_user() -> str:
    """`user@host`, for the history. A container's user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
