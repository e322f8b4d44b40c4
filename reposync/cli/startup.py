"""What every command that touches the state does first: settings, the engine under way, one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

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


def early_engine() -> None:
    """Start the embedded engine, if this configuration uses it, while the heavy imports are still under way."""
    from reposync.config.settings import Settings
    from reposync.vectors.embedded import EmbeddedEngine

    settings = Settings.from_environment()
    if settings.qdrant_url is None:
        EmbeddedEngine(settings.state_dir).ensure_started()
