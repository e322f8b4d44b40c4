"""Frequent queries read a few rows, however long the history is: SQLite's plans are the same for any number of rows."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from reposync.config.database_url import sqlite_url
from reposync.errors import RunNotFound
from reposync.store.database import Database
from reposync.store.index_queries import search_scope, searched_version
from reposync.store.run import EVERY_RUN, Ask
from reposync.store.run_queries import count_by_status, equal_errors
from reposync.store.status import WAITING, RunStatus, RunTrigger
from tests.fixtures.released_schemas import RELEASED, make_tables
from tests.integration.store.conftest import ON_POSTGRESQL, Store

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

RUNNING, WAITING_IN_ORDER = "uq_sync_runs_running", "ix_sync_runs_queue"
BY_ID, BY_REPOSITORY = "sqlite_autoindex_sync_runs_1", "ix_sync_runs_active"
OF_REPOSITORY = "ix_sync_runs_repository_id"
ACTIVE, NEWEST, OF_ONE = "ix_sync_runs_active_newest", "ix_sync_runs_newest", "ix_sync_runs_repository_newest"
OVER, OF_TRIGGER = "ix_sync_runs_over_newest", "ix_sync_runs_trigger_over_newest"
OF_ONE_OVER = "ix_sync_runs_repository_over_newest"
EVENTFUL, IDLE = "ix_sync_runs_eventful_newest", "ix_sync_runs_idle"
OF_ERROR, OF_COMMIT = "ix_sync_runs_error_newest", "ix_sync_runs_commit_after"

OVER_RUNS = re.compile(r"(SEARCH|SCAN) (sync_runs|other|later)\b")


async def looked_up(store: Store, run_id: str) -> None:
    with suppress(RunNotFound):
        await store.history.get(run_id)


async def interrupted(store: Store) -> None:
    run, _ = await store.runs.enqueue("payments", Ask(RunTrigger.COMMAND))
    await store.runs.interrupt(run.id)


CASES: dict[str, tuple[Callable[[Store], Awaitable[object]], set[str]]] = {
    "claim": (lambda store: store.runs.claim("worker-1", 60.0), {RUNNING, WAITING_IN_ORDER, ACTIVE, BY_ID}),
    "queue": (lambda store: store.history.queue(), {ACTIVE, OVER}),
    "enqueue": (lambda store: store.runs.enqueue("payments", Ask(RunTrigger.HTTP)), {BY_REPOSITORY, BY_ID}),
    "pause": (lambda store: store.repositories.pause("payments", "why"), {BY_REPOSITORY}),
    "tick": (lambda store: store.tick(NOW), {BY_REPOSITORY, OF_REPOSITORY, BY_ID}),
    "first run": (lambda store: store.ticks.take(grace_seconds=0.0), {BY_REPOSITORY, OF_REPOSITORY}),
    "remove": (lambda store: store.repositories.remove("payments"), {OF_REPOSITORY, BY_ID}),
    "finish": (lambda store: store.ended(), {BY_REPOSITORY, OVER, BY_ID, RUNNING, WAITING_IN_ORDER, ACTIVE}),
    "interrupt": (interrupted, {BY_REPOSITORY, BY_ID}),
    "latest runs": (lambda store: store.history.latest(), {OF_REPOSITORY, BY_ID}),
    "strips": (lambda store: store.history.strips(["1", "2"]), {OF_REPOSITORY}),
    "purge": (lambda store: store.history.purge(NOW + timedelta(days=999)), {NEWEST, OF_REPOSITORY, BY_ID}),
    "get": (lambda store: looked_up(store, "0"), {BY_ID}),
    "counts": (lambda store: count_by_status(store.database, EVERY_RUN), {EVENTFUL, IDLE}),
    "errors": (lambda store: equal_errors(store.database, EVERY_RUN), {OVER, OF_ERROR}),
}
HISTORIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "history": ({}, {NEWEST}),
    "of one": ({"repository": "payments"}, {OF_ONE}),
    "of one, failed": ({"repository": "payments", "status": RunStatus.FAILED}, {OF_ONE_OVER}),
    "of one, http": ({"repository": "payments", "trigger": RunTrigger.HTTP}, {OF_ONE_OVER, ACTIVE}),
    "waiting": ({"status": WAITING}, {ACTIVE}),
    "blocked": ({"status": RunStatus.BLOCKED}, {OVER}),
    "http": ({"trigger": RunTrigger.HTTP}, {OF_TRIGGER, ACTIVE}),
    "completed, http": ({"status": RunStatus.COMPLETED, "trigger": RunTrigger.HTTP}, {OF_TRIGGER}),
    "without idle ones": ({"hides_idle": True}, {EVENTFUL}),
    "oldest first": ({"oldest_first": True}, {NEWEST}),
    "completed, without idle ones": ({"status": RunStatus.COMPLETED, "hides_idle": True}, {EVENTFUL}),
    "with an error": ({"code": "SOURCE_GONE"}, {OF_ERROR}),
    "of a commit": ({"commit": "1f2e3d"}, {OF_COMMIT}),
    "waiting or failed, by the clock, since": (
        {"status": WAITING | {RunStatus.FAILED}, "trigger": RunTrigger.SCHEDULE, "since": NOW, "until": NOW},
        {ACTIVE, OF_TRIGGER},
    ),
}


@pytest.fixture(params=["new", "upgraded"])
async def store(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    url = sqlite_url(tmp_path / "reposync.db")
    if request.param == "upgraded":
        await make_tables(url, RELEASED, is_postgresql=False)
    async with await Database.open(url) as database:
        await database.upgrade()
        yield Store(database)


async def plan(
    store: Store, operation: Callable[[Store], Awaitable[object]], over: re.Pattern[str] = OVER_RUNS
) -> list[str]:
    """Every step over `sync_runs` (or what else matches) of what the operation asks the database."""
    asked: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, ___: Any, is_many: bool) -> None:
        asked.append((statement, parameters[0] if is_many else parameters))

    engines = (store.database._reader.sync_engine, store.database._writer.sync_engine)
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        await operation(store)
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)
    steps = []
    async with store.database.read() as connection:
        for statement, parameters in asked:
            if statement.startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
                rows = await connection.sqlalchemy.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                steps += [row.detail for row in rows if over.match(row.detail)]
    return steps


@pytest.mark.parametrize("name", [*CASES, *HISTORIES])
async def test_frequent_queries_use_their_indexes(store: Store, name: str) -> None:
    asked, listed = HISTORIES.get(name, ({}, set()))
    operation, indexes = CASES.get(name, (lambda store: store.history.runs(**asked), listed))
    waiting = await store.queued()
    if name in ("tick", "first run", "purge"):
        await store.runs.cancel(waiting.id)
    if name == "first run":
        await store.repository("new", cron_expression="0 3 * * *")

    steps = await plan(store, operation)

    assert steps != []
    for step in steps:
        assert any(f"INDEX {index} " in f"{step} " for index in indexes), step
        if step.startswith("SCAN"):
            short = (RUNNING, WAITING_IN_ORDER, ACTIVE, NEWEST, EVENTFUL, IDLE, OF_ERROR)
            assert any(index in step for index in short), step


@pytest.mark.parametrize("status", [None, RunStatus.FAILED])
@pytest.mark.parametrize("trigger", [None, RunTrigger.HTTP])
async def test_a_page_far_back_before_a_moment_begins_at_its_cursor(
    store: Store, status: RunStatus | None, trigger: RunTrigger | None
) -> None:
    last = await store.queued()
    later = last.queued_at + timedelta(days=1)

    steps = await plan(
        store, lambda each: each.history.runs(None, status, 50, last.cursor, trigger=trigger, until=later)
    )

    assert steps != []
    assert all("(queued_at,id)<(?,?)" in step for step in steps if "newest" in step), steps


COPIES = """
INSERT INTO sync_runs SELECT (
    jsonb_populate_record(
        run, jsonb_build_object('id', run.repository || n, 'queued_at', run.queued_at - n * interval '1 hour')
    )
).* FROM sync_runs run, generate_series(1, 500) n
"""


@ON_POSTGRESQL
async def test_the_latest_runs_of_repositories_are_read_and_no_others(database: Database) -> None:
    store = Store(database)
    for name in ("payments", "billing"):
        await store.repository(name)
        run, _ = await store.runs.enqueue(name, Ask(RunTrigger.HTTP))
        await store.runs.cancel(run.id)
    ids = [row.id for row in await store.repositories.list()]
    read = []

    def note(connection: Any, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        read.append((statement, parameters))

    async with database.write() as connection:
        await connection.sqlalchemy.exec_driver_sql(COPIES)
        await connection.sqlalchemy.exec_driver_sql("ANALYZE sync_runs")
    engine = database._reader.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    strips = await store.history.strips(ids)
    event.remove(engine, "before_cursor_execute", note)
    async with database.read() as connection:
        plans = [
            (
                await connection.sqlalchemy.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            ).scalar()
            for statement, parameters in read
            if "FROM sync_runs" in statement
        ]

    assert {len(strip) for strip in strips.values()} == {20}
    assert sum(rows_of(plan[0]["Plan"]) for plan in plans) == 2 * 20


def rows_of(step: dict[str, Any]) -> int:
    """Of `sync_runs`, read by this step of a plan and those below it."""
    own = step["Actual Rows"] * step["Actual Loops"] if step.get("Relation Name") == "sync_runs" else 0
    return own + sum(map(rows_of, step.get("Plans", ())))


OVER_CATALOGUE = re.compile(r"(SEARCH|SCAN) (repositories|index_versions)\b")
FEW = ("ix_index_versions_not_live", "ix_index_versions_pending", "ix_repositories_inactive")
PLACE = "https://gitlab.example.com/platform/payments"


@pytest.mark.parametrize(
    ("operation", "indexes"),
    [
        (lambda store: search_scope(store.database), {"ix_index_versions_physical", "ix_index_versions_live_at"}),
        (
            lambda store: search_scope(store.database, ["1", "2"]),
            {"ix_index_versions_physical", "ix_index_versions_live_at"},
        ),
        (lambda store: searched_version(store.database, "payments"), set()),
        (
            lambda store: store.repositories.of_project(1, [PLACE, f"{PLACE}.git"]),
            {"ix_repositories_project_id", "ix_repositories_location"},
        ),
        (lambda store: store.tick(NOW), set()),
    ],
)
async def test_searches_pushes_and_ticks_read_no_row_of_a_repository_that_they_are_not_about(
    store: Store, operation: Callable[[Store], Awaitable[object]], indexes: set[str]
) -> None:
    await store.queued()

    steps = await plan(store, operation, OVER_CATALOGUE)

    assert steps != []
    for step in steps:
        # Those that are read whole hold what is few: versions that are not live or not complete, repositories that
        # have none yet, and repositories that have left the registry.
        assert step.startswith("SEARCH") or any(index in step for index in FEW), step
        assert "INDEX" in step
    assert {index for index in indexes if any(index in step for step in steps)} == indexes
