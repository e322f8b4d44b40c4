"""No line of a run is lost between its log and the database, and of too many the newest are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from reposync.app.run_log import RunLog
from reposync.errors import StoreUnavailable
from reposync.store.run import Run
from reposync.store.run_log import MAX_LINES, RunLogLine, RunLogs

RUN = cast(Run, SimpleNamespace(id="run-1", attempt=1, idle=False))


class Writing:
    """A database in which something happens while it writes."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.meanwhile: Callable[[], Any] = lambda: None
        self.is_away = False

    async def add(self, run_id: str, lines: Sequence[RunLogLine]) -> None:
        self.meanwhile()
        if self.is_away:
            raise StoreUnavailable("The database is away.")
        self.written += [line.text for line in lines]


def log_of(database: Writing) -> RunLog:
    return RunLog(cast(RunLogs, database), lambda: datetime(2026, 1, 1, tzinfo=UTC))


async def test_a_line_that_comes_while_the_ones_before_it_are_written_is_written_too() -> None:
    database = Writing()
    log = log_of(database)
    with log.attempt(RUN) as lines:
        log.keep("run-1", 1, "info", "planned")
        lines.began -= 10

        def ends() -> None:
            log.keep("run-1", 1, "info", "run completed")
            lines.is_over = True
            database.meanwhile = lambda: None

        database.meanwhile = ends
        await log.flush()
        await log.flush()

    assert database.written == ["planned", "run completed"]


async def test_while_the_database_is_away_the_newest_lines_wait() -> None:
    database = Writing()
    database.is_away = True
    log = log_of(database)
    with log.attempt(RUN) as lines:
        for number in range(MAX_LINES):
            log.keep("run-1", 1, "info", f"line {number}")
        lines.began -= 10
        database.meanwhile = lambda: log.keep("run-1", 1, "info", "while it was away")
        await log.flush()
        database.is_away, database.meanwhile = False, lambda: None

    await log.flush()

    assert len(database.written) == MAX_LINES
    assert database.written[-2:] == [f"line {MAX_LINES - 1}", "while it was away"]
