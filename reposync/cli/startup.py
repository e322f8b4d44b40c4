"""What every command that touches the state does first: settings, the engine under way, one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from reposync.config.configuration import Configuration

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end. Ctrl-C and SIGTERM cancel it, so that it can say its last word; the exit code is 130."""

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


def configuration() -> Configuration:
    """Settings and registry, checked before anything is started. Where the embedded engine will be used, it comes
    up from here on, beside the imports of what works with it (Qdrant's client takes a second). Raises ConfigError."""
    from reposync.config.configuration import Configuration

    found = Configuration.load()
    if found.qdrant.url is None:
        from reposync.vectors.embedded import EmbeddedEngine

        EmbeddedEngine(found.settings.state_dir).ensure_started()
    return found
