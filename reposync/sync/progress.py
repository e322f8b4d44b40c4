"""Progress of an active run, and the outcome of an ended one."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from reposync.store.run import RunFigures

_FIGURES = (
    *("phase", "files_total", "files_read", "files_done", "chunks_read", "chunks_done", "bytes_read"),
    *("file", "waiting_for", "commit", "commit_title", "commit_author"),
)

# In the order in which a run begins them.
_STAGES = ("listing", "planning", "reading", "embedding", "storing", "checking")
_PHASES = ("starting", "listing", "planning", "words", "indexing", "purging secrets", "checking")


@dataclass(slots=True)
class RunProgress:
    """Figures of a run. Files and chunks are read, then embedded, then stored."""

    phase: str = "starting"
    """This is starting, listing, planning, words, indexing, checking or done."""
    files_total: int = 0
    files_read: int = 0
    files_done: int = 0
    chunks_read: int = 0
    chunks_embedded: float = 0.0
    """This grows with each piece that the model finishes."""
    chunks_done: int = 0
    bytes_read: int = 0
    file: str | None = None
    """The first of those that are embedded now."""
    waiting_for: str | None = None
    """A server that has not answered for some seconds, and the number of the attempt."""
    commit: str | None = None
    """The index is brought to this commit, if it is a new one."""
    commit_title: str | None = None
    commit_author: str | None = None
    started: float = field(default_factory=time.monotonic)
    watch: Watch = field(default=lambda _: None, repr=False, compare=False)
    """This is called after each step."""
    figures: RunFigures = field(default_factory=RunFigures, repr=False, compare=False)
    """What the history says of the attempt."""
    _stages: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float), repr=False, compare=False)
    times: dict[str, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    """Begin of the first and end of the last of each phase and stage, in seconds of `time.monotonic`."""
    _entered: float = field(default_factory=time.monotonic, repr=False, compare=False)

    def enter(self, phase: str) -> None:
        now = time.monotonic()
        self._add(self.phase, self._entered, now)
        self.phase, self._entered = phase, now
        if phase in ("words", "indexing"):
            self.started = now
        self.watch(self)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time that is spent on reading, embedding or storing a batch; each may happen beside the others."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._add(name, began, time.monotonic())

    def _add(self, name: str, began: float, ended: float) -> None:
        self._stages[name] += ended - began
        self.times[name] = (min(began, self.times.get(name, (began,))[0]), ended)

    def restart(self) -> None:
        """Count the same files again: they are stored in one version of the index, the next one follows."""
        self.files_total = self.files_read = self.files_done = 0
        self.restart_chunks(0)

    def restart_chunks(self, total: int) -> None:
        """Count so many chunks again, whose files are stored: their meaning follows."""
        self.chunks_read, self.chunks_embedded, self.chunks_done = total, 0.0, 0

    def wait_for(self, server: str | None) -> None:
        self.waiting_for = server
        self.watch(self)

    def read(self, files: int, chunks: int) -> None:
        self.files_read += files
        self.chunks_read += chunks
        self.watch(self)

    def embedded(self, chunks: float) -> None:
        self.chunks_embedded += chunks
        self.watch(self)

    def advance(self, files: int, chunks: int = 0) -> None:
        self.files_done += files
        self.chunks_done += chunks
        self.watch(self)

    @property
    def chunks_total(self) -> int:
        """Estimated from the files that were read, until all are."""
        if not 0 < self.files_read < self.files_total:
            return self.chunks_read
        return max(self.chunks_read, round(self.chunks_read * self.files_total / self.files_read))

    @property
    def chunks_per_second(self) -> float:
        elapsed = time.monotonic() - self.started
        return self.chunks_embedded / elapsed if elapsed > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        rate, left = self.chunks_per_second, self.chunks_total - self.chunks_embedded
        return left / rate if rate and left > 0 else None

    def step_seconds(self) -> dict[str, float]:
        """How long each phase took, the present one so far; in the order in which they began."""
        spent = {phase: self._stages[phase] for phase in _PHASES if phase in self._stages}
        if self.phase in _PHASES:
            spent[self.phase] = spent.get(self.phase, 0.0) + time.monotonic() - self._entered
        return {phase: round(seconds, 2) for phase, seconds in spent.items()}

    @property
    def steps(self) -> tuple[float, int]:
        """How many are done, and of how many: chunks while they are embedded, otherwise files; 0 if not yet known."""
        if self.phase == "indexing" and self.chunks_total:
            return self.chunks_embedded, self.chunks_total
        return self.files_done, self.files_total

    def words(self) -> str:
        """`indexing 12 of 400 files, 38 of about 1,200 chunks embedded, waiting for the embedding server at HOST:
        attempt 2 of 3`."""
        files = f" {self.files_done:,} of {self.files_total:,} files" if self.files_total else ""
        chunks = f", {self.chunks_words()}" if self.phase == "indexing" and self.chunks_total else ""
        return f"{self.phase}{files}{chunks}{f', waiting for {self.waiting_for}' if self.waiting_for else ''}"

    def chunks_words(self) -> str:
        about = "" if self.files_read >= self.files_total else "about "
        return f"{int(self.chunks_embedded):,} of {about}{self.chunks_total:,} chunks embedded"

    def as_json(self) -> dict[str, Any]:
        elapsed = time.monotonic() - self.started
        eta = self.eta_seconds
        return {
            **{name: getattr(self, name) for name in _FIGURES},
            "chunks_embedded": int(self.chunks_embedded),
            "chunks_total": self.chunks_total,
            "elapsed_seconds": round(elapsed, 3),
            "files_per_second": round(self.files_done / elapsed, 2) if elapsed > 0 else 0.0,
            "chunks_per_second": round(self.chunks_per_second, 2),
            "eta_seconds": round(eta, 1) if eta is not None else None,
            "step_seconds": self.step_seconds(),
            "stage_seconds": {each: round(spent, 1) for each in _STAGES if (spent := self._stages[each]) >= 0.05},
        }


Watch = Callable[[RunProgress], None]
"""Called on the event loop; must return at once."""

MANY_HIDDEN = 0.1
"""Share of files that are masked or left out because of secrets, from which on a rule is likely to be wrong."""
FILES_FAILED = "FILES_FAILED"
INDEX_REBUILT = "INDEX_REBUILT"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run that completed."""

    code: str | None = None
    """The code of what a user should know besides, if anything."""
    notice: str | None = None
    """The sentence about it."""
    files_failed: int = 0
    """The index does not hold these files of the commit in that version; the run is retried for them."""
