"""Python's cyclic collector in a process whose event loop must not stand still.

A full collection looks through every object that lives. What a daemon has loaded, and the statements that SQLAlchemy
keeps compiled (1,500 objects each), lives on: 255,000 objects took 140 ms (2 cores, AMD EPYC), and after 640 different
statements a collection took 400 ms, once in 300 requests. Set aside, they are looked through no more; reference counts
free them as before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LONG_SECONDS = 0.02
"""What survives a collection that took this long is set aside."""
THAW_SECONDS = 3_600.0
"""After this time, and after `MOST_OBJECTS`, everything is looked through once: cycles may have died there."""
MOST_OBJECTS = 1_000_000


class Collector:
    """Between `start` and `stop` full collections stay short. One per process."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = 0.0
        self._thawed = now()
        self._least = 0

    def start(self) -> None:
        """Takes as long as a full collection does."""
        gc.collect()
        gc.freeze()
        self._thawed, self._least = self._now(), gc.get_freeze_count()
        gc.callbacks.append(self._watch)

    def stop(self) -> None:
        gc.callbacks.remove(self._watch)
        gc.unfreeze()

    def _watch(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            if self._is_due():
                gc.unfreeze()
                self._thawed = self._now()
            self._began = self._now()
        elif self._now() - self._began >= LONG_SECONDS:
            gc.freeze()

    def _is_due(self) -> bool:
        more = gc.get_freeze_count() - self._least
        return more > MOST_OBJECTS or (more > 0 and self._now() - self._thawed > THAW_SECONDS)
