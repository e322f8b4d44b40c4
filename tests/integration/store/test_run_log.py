"""The lines of the log about a run: how many are kept, and until when."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from reposync.app.run_log import HOLD_SECONDS, RunLog
from reposync.store.database import Database
from reposync.store.run import Run
from reposync.store.run_log import MAX_LINE_CHARS, MAX_LINES, RunLogLine, RunLogs
from reposync.store.status import RunStatus
from tests.integration.store.conftest import TICK, Store


def lines(count: int, attempt: int = 1, start: int = 1) -> list[RunLogLine]:
    return [
        RunLogLine(attempt, number, TICK + timedelta(seconds=number), "info", f"line {attempt}.{number}")
        for number in range(start, start + count)
    ]


async def texts(store: Store, run: Run) -> list[str]:
    return [line.text for line in await store.history.log_lines(run.id, MAX_LINES + 100)]


async def test_lines_of_all_attempts_are_read_in_order_and_page_by_page(store: Store) -> None:
    run, neighbour = await store.running("a"), await store.running("b")
    await store.logs.add(run.id, lines(3, attempt=2))
    await store.logs.add(neighbour.id, lines(1))
    await store.logs.add(run.id, lines(12))

    page = await store.history.log_lines(run.id, 10)
    rest = await store.history.log_lines(run.id, 10, after=(page[-1].attempt, page[-1].number))

    assert [line.cursor for line in page + rest] == [f"1.{n}" for n in range(1, 13)] + ["2.1", "2.2", "2.3"]
    assert rest[-1] == lines(3, attempt=2)[-1]


async def test_the_newest_lines_of_a_run_are_kept_and_those_of_others_stay(store: Store) -> None:
    run, neighbour = await store.running("a"), await store.running("b")
    await store.logs.add(neighbour.id, lines(2))
    await store.logs.add(run.id, lines(MAX_LINES))
    await store.logs.add(run.id, lines(30, attempt=2))

    kept = await texts(store, run)
    assert (len(kept), kept[0], kept[-1]) == (MAX_LINES, "line 1.31", "line 2.30")
    assert len(await texts(store, neighbour)) == 2


async def test_a_line_that_is_written_twice_is_one_line(store: Store) -> None:
    run = await store.running("a")
    await store.logs.add(run.id, lines(2))
    await store.logs.add(run.id, lines(3))

    assert await texts(store, run) == ["line 1.1", "line 1.2", "line 1.3"]


async def test_lines_go_with_their_run_and_those_of_a_run_that_is_gone_are_dropped(store: Store) -> None:
    run = await store.running("a")
    await store.logs.add(run.id, lines(2))
    await store.ended(run, RunStatus.COMPLETED)

    assert await store.history.purge(store.history.now() + timedelta(days=1)) == 1
    assert await texts(store, run) == []
    await store.logs.add(run.id, lines(2, start=3))
    await store.logs.add(str(uuid.uuid4()), lines(2))
    assert await texts(store, run) == []


async def test_hostile_lines_are_stored(store: Store) -> None:
    run = await store.running("a")
    hostile = "a\0b \ud800 \u202e <script>"
    await store.logs.add(run.id, [dataclasses.replace(line, text=hostile) for line in lines(1)])

    assert await texts(store, run) == ["a␀b \\ud800 \u202e <script>"]


# What a daemon collects ----------------------------------------------------------------------------------------------


@pytest.fixture
async def log(store: Store) -> AsyncIterator[RunLog]:
    yield RunLog(RunLogs(store.database), store.history.now)


async def test_what_is_logged_about_an_attempt_is_written_when_it_is_over(store: Store, log: RunLog) -> None:
    run = await store.running("a")
    with log.attempt(run):
        log.keep(run.id, run.attempt, "info", "run started")
        await log.flush()
        assert await texts(store, run) == [], "most attempts are over in a moment"
        log.keep(run.id, run.attempt, "warning", "x" * 5_000)
        log.keep(run.id, run.attempt + 1, "info", "of an attempt that this process has not")
    log.keep(run.id, run.attempt, "info", "of a task that outlives its run")
    await log.flush()

    kept = await store.history.log_lines(run.id)
    assert [(line.attempt, line.number, line.level) for line in kept] == [(1, 1, "info"), (1, 2, "warning")]
    assert (kept[0].text, len(kept[1].text)) == ("run started", MAX_LINE_CHARS)


async def test_a_long_attempt_is_read_while_it_lasts(store: Store, log: RunLog) -> None:
    run = await store.running("a")
    with log.attempt(run) as attempt:
        attempt.began -= HOLD_SECONDS
        log.keep(run.id, run.attempt, "info", "run started")
        await log.flush()
        assert await texts(store, run) == ["run started"]
        log.keep(run.id, run.attempt, "info", "planned")
    await log.flush()

    assert await texts(store, run) == ["run started", "planned"]


@pytest.mark.parametrize(("level", "kept"), [("info", []), ("warning", ["run started", "the lock is lost"])])
async def test_of_a_run_that_found_nothing_to_do_only_warnings_are_written(
    store: Store, log: RunLog, level: str, kept: list[str]
) -> None:
    run = await store.running("a")
    with log.attempt(run) as attempt:
        log.keep(run.id, run.attempt, "info", "run started")
        log.keep(run.id, run.attempt, level, "the lock is lost")
        ended = await store.ended(run, RunStatus.COMPLETED)
        assert ended.idle
        attempt.ended(ended)
    await log.flush()

    assert await texts(store, run) == kept


async def test_endless_lines_cost_a_bounded_number(store: Store, log: RunLog) -> None:
    run = await store.running("a")
    with log.attempt(run) as attempt:
        for number in range(MAX_LINES * 3):
            log.keep(run.id, run.attempt, "info", f"line {number}")
        assert len(attempt.waiting) == MAX_LINES
    await log.flush()

    kept = await texts(store, run)
    assert (len(kept), kept[-1]) == (MAX_LINES, f"line {MAX_LINES * 3 - 1}")


async def test_lines_wait_for_a_database_that_does_not_answer(database: Database, store: Store) -> None:
    run = await store.running("a")
    log = RunLog(RunLogs(database), store.history.now)
    with log.attempt(run):
        log.keep(run.id, run.attempt, "info", "run started")
    async with database.write() as connection:
        await connection.execute(text("ALTER TABLE run_log_lines RENAME TO away"))
    await log.flush()
    async with database.write() as connection:
        await connection.execute(text("ALTER TABLE away RENAME TO run_log_lines"))
    await log.flush()

    assert await texts(store, run) == ["run started"]
