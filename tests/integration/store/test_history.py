"""The execution log as people page through it, and the problems of a run."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import asyncpg

from reposync.store.columns import MAX_MESSAGE_CHARS
from reposync.store.database import Database
from reposync.store.endings import Fail
from reposync.store.run import Run, RunFigures, RunProblem
from reposync.store.runs import MAX_DETAIL_CHARS
from reposync.store.status import FINAL, RunStatus, RunTrigger
from tests.integration.store.conftest import ON_POSTGRESQL, Store


async def finished(store: Store, name: str, status: RunStatus = RunStatus.COMPLETED) -> Run:
    return await store.ended(await store.running(name), status)


async def test_pages_follow_each_other_without_gap_or_repetition_while_runs_are_added(store: Store) -> None:
    runs = [await finished(store, name) for name in "abcdefg"]

    seen = page = await store.history.runs(limit=3)
    await finished(store, "a")
    while page:
        page = await store.history.runs(limit=3, before=page[-1].cursor)
        seen = seen + page

    assert seen == runs[::-1]


async def test_a_run_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    run = await finished(store, "a")

    assert await store.history.get(run.id[:8]) == run
    assert await store.history.get(f" {run.id.upper()} ") == run


async def test_each_file_with_a_problem_has_one_row(store: Store) -> None:
    run = await store.running()

    await store.runs.add_problems(
        run, [RunProblem("b.bin", "binary", "NUL bytes"), RunProblem("a.py", "failed", "one")]
    )
    await store.runs.add_problems(run, [RunProblem("a.py", "too_large", "2 MB"), RunProblem("c.bin", "binary", "NUL")])

    problems = await store.history.problems(run.id)
    assert [(each.path, each.reason, each.detail) for each in problems] == [
        ("a.py", "too_large", "2 MB"),
        ("b.bin", "binary", "NUL bytes"),
        ("c.bin", "binary", "NUL"),
    ]
    assert list((await store.history.count_problems(run.id)).items()) == [("binary", 2), ("too_large", 1)]
    assert await store.history.problems(run.id, limit=1, after=problems[0].path) == [problems[1]]


async def test_names_and_words_from_a_hostile_repository_do_not_fail_the_run(store: Store) -> None:
    run = await store.running()

    await store.runs.add_problems(
        run, [RunProblem("a\0\udce9" + "x" * 5_000, "failed", "y\0" * 100_000), RunProblem("", "failed", "")]
    )
    done = await store.runs.end(run, Fail("SOURCE_ERROR", "\0\udce9" + "z" * 100_000), RunFigures())

    problems = await store.history.problems(run.id)
    assert [len(each.detail) for each in problems] == [0, MAX_DETAIL_CHARS]
    assert problems[1].path.startswith("a␀\\udce9xxx")
    assert done.error_message.startswith("␀\\udce9zzz")
    assert len(done.error_message) <= MAX_MESSAGE_CHARS + len("\\udce9")


async def test_a_long_history_is_shortened_a_few_runs_at_a_time(store: Store) -> None:
    run = await store.running("a")
    await store.runs.add_problems(run, [RunProblem("a.py", "failed", "why")])
    runs = [await store.ended(run)]
    runs += [await finished(store, "a") for _ in range(7)]
    blocked = await finished(store, "b", RunStatus.BLOCKED)
    waiting = await store.queued("c")
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    assert await store.history.purge(runs[0].completed_at) == 0
    assert await store.history.purge(runs[1].completed_at) == 1, "only what ended before"
    assert await store.history.problems(run.id) == []
    assert await store.history.purge(tomorrow, batch=3) == 7
    assert await store.history.purge(tomorrow, batch=3) == 0

    assert {each.id for each in await store.history.runs()} == {blocked.id, waiting.id}
    assert len(await store.attempts(blocked)) == 1


async def test_the_latest_run_of_each_repository_is_known_at_once(store: Store) -> None:
    await finished(store, "a")
    b = await finished(store, "b", RunStatus.FAILED)
    a = await finished(store, "a", RunStatus.BLOCKED)
    await store.repository("new")
    gone = await finished(store, "gone")
    await store.renamed(await store.repositories.get("gone"), "renamed")
    await store.repositories.remove("renamed")
    assert await store.history.past_names([gone.repository_id, "unheard of"]) == {gone.repository_id: "renamed"}

    assert await store.history.latest() == {a.repository_id: a, b.repository_id: b}
    assert await store.history.latest([b.repository_id, "nobody"]) == {b.repository_id: b}


async def test_the_latest_run_of_a_repository_is_not_that_of_an_earlier_one_with_its_name(store: Store) -> None:
    old = await finished(store, "old")
    silent = await store.repository("silent")
    await finished(store, "name")
    await store.repositories.remove("name")
    await store.renamed(await store.repositories.get("old"), "name")

    assert [(key, run.id) for key, run in (await store.history.latest()).items()] == [(old.repository_id, old.id)]

    await store.repositories.remove("name")
    await store.renamed(silent, "name")
    assert await store.history.latest() == {}


async def test_history_is_narrowed_by_trigger_and_time_and_states_together(store: Store) -> None:
    runs = []
    for name in ("a", "b"):
        for trigger in (RunTrigger.HTTP, RunTrigger.SCHEDULE, RunTrigger.WEBHOOK):
            for status in (RunStatus.COMPLETED, RunStatus.FAILED):
                runs.insert(0, await store.ended(await store.running(name, trigger=trigger), status))
            runs.insert(0, await store.runs.cancel((await store.queued(name, trigger)).id))
    since, until = runs[-3].queued_at, runs[2].queued_at

    assert await store.history.runs(since=since) == runs[:-2]
    assert await store.history.runs(until=until) == runs[3:]
    assert await store.history.runs(trigger=RunTrigger.WEBHOOK) == [run for run in runs if run.trigger == "webhook"]
    assert await store.history.runs(status=set()) == []
    for repository, trigger, status in itertools.product(
        (None, "a"),
        (None, RunTrigger.HTTP, RunTrigger.SCHEDULE),
        (None, RunStatus.COMPLETED, RunStatus.FAILED, FINAL, {RunStatus.COMPLETED, RunStatus.QUEUED}),
    ):
        statuses = {status} if isinstance(status, RunStatus) else status
        expected = [
            run
            for run in runs
            if (repository is None or run.repository == repository)
            and (trigger is None or run.trigger is trigger)
            and (statuses is None or run.status in statuses)
        ]
        assert await store.history.runs(repository, status, trigger=trigger) == expected
        assert await store.history.runs(repository, status, trigger=trigger, since=since, until=until) == [
            run for run in expected if since <= run.queued_at < until
        ]
        for last in (runs[1], runs[-4]):
            assert await store.history.runs(repository, status, trigger=trigger, before=last.cursor, until=until) == [
                run for run in expected if run in runs[runs.index(last) + 1 :] and run.queued_at < until
            ]


@ON_POSTGRESQL
async def test_hours_of_the_history_begin_on_the_hour_whatever_time_zone_the_database_has(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    name = await connection.fetchval("SELECT current_database()")
    try:
        await connection.execute(f"ALTER DATABASE {name} SET timezone = 'Asia/Kolkata'")
        async with await Database.open(database_url) as database:
            store = Store(database)
            await store.queued()
            (count,) = await store.history.by_hour(store.history.now() - timedelta(days=1))
    finally:
        await connection.execute(f"ALTER DATABASE {name} RESET timezone")
        await connection.close()

    assert count.hour.astimezone(UTC).minute == 0
