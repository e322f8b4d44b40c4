"""How far a run is, for whoever watches (the terminal, the run's row, a page), and how far it came."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class RunProgress:
    """Figures of a run under way. `phase` is one of starting, listing, planning, indexing, checking, done.
    `waiting_for`: a server that has not answered for longer than a moment, and which attempt it is."""

    phase: str = "starting"
    files_total: int = 0
    files_done: int = 0
    chunks_done: int = 0
    bytes_read: int = 0
    waiting_for: str | None = None
    started: float = field(default_factory=time.monotonic)

    def words(self) -> str:
        """`indexing 12 of 400 files, waiting for the embedding server at HOST: attempt 2 of 3`."""
        far = f" {self.files_done:,} of {self.files_total:,} files" if self.files_total else ""
        return f"{self.phase}{far}{f', waiting for {self.waiting_for}' if self.waiting_for else ''}"

    def as_json(self) -> dict[str, Any]:
        elapsed = time.monotonic() - self.started
        figures = asdict(self)
        del figures["started"]
        rate = self.files_done / elapsed if elapsed > 0 else 0.0
        left = self.files_total - self.files_done
        return {
            **figures,
            "elapsed_seconds": round(elapsed, 3),
            "files_per_second": round(rate, 2),
            "eta_seconds": round(left / rate, 1) if rate and left else None,
        }


Watch = Callable[[RunProgress], None]
"""Called on the event loop after every step; must return at once."""

FILES_FAILED = "FILES_FAILED"
INDEX_REBUILT = "INDEX_REBUILT"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a run that did what it was to do. `notice`: what a person should know besides; `code`: what it is about, if
    that is more than what was asked for.
    `files_failed`: files of the commit that the index does not hold as they are; the run is tried again for them."""

    code: str | None = None
    notice: str | None = None
    files_failed: int = 0
