"""Progress of an active run, and the outcome of an ended one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_FIGURES = ("phase", "files_total", "files_done", "chunks_done", "bytes_read", "waiting_for")


@dataclass(slots=True)
class RunProgress:
    """Figures of a run. `phase`: starting, listing, planning, words, indexing, checking, evaluating or done.
    `waiting_for`: a server that has not answered for some seconds, and the number of the attempt. `watch` is called
    after each step."""

    phase: str = "starting"
    files_total: int = 0
    files_done: int = 0
    chunks_done: int = 0
    bytes_read: int = 0
    waiting_for: str | None = None
    started: float = field(default_factory=time.monotonic)
    watch: Watch = field(default=lambda _: None, repr=False, compare=False)

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.watch(self)

    def restart(self) -> None:
        """Count the same files again: their words are stored, their meaning follows."""
        self.files_done = self.chunks_done = 0
        self.started = time.monotonic()

    def wait_for(self, server: str | None) -> None:
        self.waiting_for = server
        self.watch(self)

    def advance(self, files: int, chunks: int = 0) -> None:
        self.files_done += files
        self.chunks_done += chunks
        self.watch(self)

    def words(self) -> str:
        """`indexing 12 of 400 files, waiting for the embedding server at HOST: attempt 2 of 3`."""
        files = f" {self.files_done:,} of {self.files_total:,} files" if self.files_total else ""
        return f"{self.phase}{files}{f', waiting for {self.waiting_for}' if self.waiting_for else ''}"

    def as_json(self) -> dict[str, Any]:
        elapsed = time.monotonic() - self.started
        rate = self.files_done / elapsed if elapsed > 0 else 0.0
        left = self.files_total - self.files_done
        return {
            **{name: getattr(self, name) for name in _FIGURES},
            "elapsed_seconds": round(elapsed, 3),
            "files_per_second": round(rate, 2),
            "eta_seconds": round(left / rate, 1) if rate and left else None,
        }


Watch = Callable[[RunProgress], None]
"""Called on the event loop; must return at once."""

FILES_FAILED = "FILES_FAILED"
INDEX_REBUILT = "INDEX_REBUILT"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a run that completed. `code` and `notice`: what a user should know besides, if anything. `files_failed`: files
    of the commit that the index does not hold in that version; the run is retried for them."""

    code: str | None = None
    notice: str | None = None
    files_failed: int = 0
