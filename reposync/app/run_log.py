"""Writing what this daemon logs about its runs into the database, beside the runs: none waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from reposync.clock import elapsed_seconds
from reposync.errors import StoreUnavailable
from reposync.store.columns import truncate
from reposync.store.run import Run
from reposync.store.run_log import MAX_LINE_CHARS, MAX_LINES, RunLogLine, RunLogs
from reposync.telemetry.redaction import Secrets

FLUSH_SECONDS = 1.0
HOLD_SECONDS = 2.0
"""Until an attempt has lasted that long, its lines wait: most runs find nothing to do, and end before. Their lines say
no more than the run itself, and would double what the history writes."""


@dataclass(slots=True, eq=False)
class AttemptLines:
    """The lines of one attempt that wait: the newest MAX_LINES."""

    run_id: str
    attempt: int
    began: float = field(default_factory=elapsed_seconds)
    is_over: bool = False
    is_dispensable: bool = False
    """The run says all that is in them."""
    waiting: deque[RunLogLine] = field(default_factory=lambda: deque(maxlen=MAX_LINES))
    _count: int = 0

    def add(self, at: datetime, level: str, text: str) -> None:
        self._count += 1
        self.waiting.append(RunLogLine(self.attempt, self._count, at, level, truncate(text, MAX_LINE_CHARS)))

    def ended(self, run: Run) -> None:
        """The attempt brought the run to this state."""
        self.is_dispensable = run.idle

    @property
    def are_due(self) -> bool:
        return self.is_over or elapsed_seconds() - self.began >= HOLD_SECONDS

    def take(self) -> list[RunLogLine]:
        """All that wait; a thread may add one at the same time."""
        taken = [self.waiting.popleft() for _ in range(len(self.waiting))]
        if self.is_over and self.is_dispensable and all(line.level == "info" for line in taken):
            return []
        return taken

    def put_back(self, taken: Sequence[RunLogLine]) -> None:
        """As far as there is room beside the newer ones."""
        if room := MAX_LINES - len(self.waiting):
            self.waiting.extendleft(reversed(taken[-room:]))


class RunLog:
    """Collects the lines of the attempts of this process, and writes them. `now`: by the database's clock."""

    def __init__(self, logs: RunLogs, now: Callable[[], datetime]) -> None:
        self._logs = logs
        self._now = now
        self._attempts: dict[tuple[str, int], AttemptLines] = {}

    @contextlib.contextmanager
    def attempt(self, run: Run) -> Generator[AttemptLines, None, None]:
        """Lines are kept while the attempt lasts: a task that outlives its run has the run's context too."""
        lines = self._attempts[run.id, run.attempt] = AttemptLines(run.id, run.attempt)
        try:
            yield lines
        finally:
            lines.is_over = True

    def keep(self, run_id: str, attempt: int, level: str, text: str) -> None:
        """See `telemetry.run_lines.Keep`."""
        lines = self._attempts.get((run_id, attempt))
        if lines is not None and not lines.is_over:
            lines.add(self._now(), level, text)

    @contextlib.contextmanager
    def listening(self, secrets: Secrets, pod: str) -> Generator[None, None, None]:
        """What is logged meanwhile is kept."""
        from reposync.telemetry.run_lines import RunLineHandler

        handler, root = RunLineHandler(secrets, pod, self.keep), logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)

    async def run(self) -> None:
        """Write until it is cancelled, and then what is left."""
        try:
            while True:
                await asyncio.sleep(FLUSH_SECONDS)
                await self.flush()
        finally:
            await asyncio.shield(self.flush())

    async def flush(self) -> None:
        """Write what is due. If the database does not answer, lines wait for the next time, and no run fails."""
        for key, lines in list(self._attempts.items()):
            if not lines.are_due:
                continue
            taken = lines.take()
            try:
                await self._logs.add(lines.run_id, taken)
            except StoreUnavailable:
                lines.put_back(taken)
                return
            # Lines may have come, and the attempt ended, while these were written.
            if lines.is_over and not lines.waiting:
                del self._attempts[key]
