"""A tick or a push: one run however many pods report it, and none if it is too late or nothing changed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, text, update

from reposync.config.schedule import Schedule
from reposync.store.endings import Finish
from reposync.store.repository import MissedTick, Repository, repository_id
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import REPOSITORIES
from reposync.store.ticks import TickOutcome, Ticks
from tests.integration.store.conftest import ANY_GRACE_SECONDS, ON_EVERY_DATABASE, TICK, Store, registration

# Once --------------------------------------------------------------------------------------------------------------


async def test_a_tick_joins_a_click_that_waits_and_is_not_run_again_later(store: Store) -> None:
    clicked = await store.queued()

    assert await store.tick(TICK) == TickOutcome(joined=1)
    joined = await store.ended()
    assert await store.take() == TickOutcome(), "by a pod that is late"

    assert (joined.id, joined.trigger, joined.scheduled_for) == (clicked.id, RunTrigger.COMMAND, TICK)
    assert await store.history.runs() == [joined]
    assert await store.history.purge(datetime.now(UTC) + timedelta(days=1)) == 1
    assert await store.take() == TickOutcome(), "also if the history does not know it any more"
    row = await store.repositories.get("payments")
    assert row.next_due_at == TICK.replace(year=TICK.year + 1), "a year later"


async def test_ticks_of_what_was_removed_or_paused_meanwhile_are_dropped_and_the_others_run(store: Store) -> None:
    for name in ("paused", "removed", "there"):
        await store.repository(name)
    await store.due(TICK, "paused", "removed", "there")
    await store.repositories.pause("paused", "being moved")
    await store.repositories.remove("removed")

    assert await store.take() == TickOutcome(queued=1)

    assert [run.repository for run in await store.history.runs()] == ["there"]
    assert (await store.repositories.get("paused")).next_due_at is None


async def test_ticks_that_passed_together_are_one_run_of_the_latest(store: Store) -> None:
    await store.repository()
    await store.due(TICK - timedelta(days=1))
    hourly = update(REPOSITORIES).values(cron_expression="0 * * * *")
    await store.database.change(hourly)

    assert await store.take() == TickOutcome(queued=1)

    run = await store.claimed()
    now = store.history.now()
    assert run.scheduled_for == now.replace(minute=0, second=0, microsecond=0)
    assert (await store.repositories.get("payments")).next_due_at == run.scheduled_for + timedelta(hours=1)


async def test_hundreds_of_ticks_of_one_moment_are_hundreds_of_runs(store: Store) -> None:
    names = [f"repository-{number}" for number in range(450)]
    await store.repositories.register_all([registration(name) for name in names])

    first = await store.tick(TICK, *names)
    second = await store.take()

    assert (first, second) == (TickOutcome(queued=450), TickOutcome())
    runs = await store.history.runs(limit=1_000)
    assert {run.repository for run in runs} == set(names)
    assert {run.scheduled_for for run in runs} == {TICK}


async def test_pods_that_look_at_the_same_moment_queue_each_tick_once(store: Store, open_database) -> None:
    names = [f"repository-{number}" for number in range(250)]
    await store.repositories.register_all([registration(name) for name in names])
    pods = [Ticks(await open_database()) for _ in range(4)]
    await store.due(TICK, *names)

    outcomes = await asyncio.gather(*(pod.take(grace_seconds=ANY_GRACE_SECONDS) for pod in pods))

    assert sum(outcome.queued for outcome in outcomes) == 250
    assert sum(outcome.joined for outcome in outcomes) == 0
    assert len(await store.history.runs(limit=1_000)) == 250


_REFUSED = {
    "sqlite": (
        "CREATE TRIGGER refuses BEFORE INSERT ON sync_runs WHEN NEW.repository = 'broken' "
        "BEGIN SELECT RAISE(ABORT, 'no such row'); END",
        "DROP TRIGGER refuses",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.repository = 'broken' THEN RAISE 'no such row'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuses BEFORE INSERT ON sync_runs FOR EACH ROW EXECUTE FUNCTION refuse()",
        "DROP FUNCTION refuse CASCADE",
    ),
}


@ON_EVERY_DATABASE
@pytest.mark.parametrize("first", [False, True], ids=["ticks", "first runs"])
async def test_a_repository_whose_run_the_database_refuses_stops_no_schedule_of_the_others(
    store: Store, database_kind: str, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    names = [*(f"well-{number}" for number in range(9)), "broken"]
    await store.repositories.register_all([registration(name) for name in names])
    *begin, over = _REFUSED[database_kind]
    for statement in begin:
        async with store.database.write() as connection:
            await connection.execute(text(statement))
    try:
        if first:
            await store.repositories.register_all([registration(name, cron_expression="@daily") for name in names])
            assert await store.take() == TickOutcome(first_runs=9, failed=1)
        else:
            assert await store.tick(TICK, *names) == TickOutcome(queued=9, failed=1)
    finally:
        async with store.database.write() as connection:
            await connection.execute(text(over))

    assert {run.repository for run in await store.history.runs()} == set(names) - {"broken"}
    assert f"a run of repository {repository_id('broken')} could not be queued" in caplog.text
    assert await store.take() == TickOutcome(), "the defect is not repeated at each turn"


# Too late ----------------------------------------------------------------------------------------------------------


async def test_a_tick_that_comes_too_late_is_not_run_and_is_recorded_as_missed(store: Store) -> None:
    await store.queued()
    synced = await store.ended()

    assert await store.tick(TICK, grace_seconds=300.0) == TickOutcome(missed=1)

    (missed,) = await missed_ticks(store)
    assert missed.scheduled_for == TICK
    assert missed.late_seconds == (missed.noticed_at - TICK).total_seconds()
    assert await store.history.runs() == [synced], "it is no run"
    assert await store.runs.claim("worker-1", 60.0) is None
    assert await store.take(grace_seconds=300.0) == TickOutcome(), "noted once, by whichever pod"


async def test_the_latest_twenty_missed_ticks_are_listed_the_newest_first(store: Store) -> None:
    await store.queued()
    await store.ended()
    days = [TICK - timedelta(days=back) for back in range(22)]
    for day in reversed(days):
        assert await store.tick(day, grace_seconds=300.0) == TickOutcome(missed=1)

    assert [missed.scheduled_for for missed in await missed_ticks(store)] == days[:20]


async def missed_ticks(store: Store) -> list[MissedTick]:
    return [MissedTick.model_validate(tick) for tick in (await store.repositories.get("payments")).missed_ticks]


# Whose ticks -------------------------------------------------------------------------------------------------------


NIGHTLY = {"cron_expression": "0 3 * * *", "timezone": "Europe/Zurich"}


async def unattended(store: Store) -> None:
    """No scheduler has been running since TICK, and all repositories were synced before."""
    await store.database.change(update(REPOSITORIES).values(last_tick_at=TICK, last_sync_at=TICK))


async def test_active_repositories_with_a_schedule_are_due_at_its_next_moment(store: Store) -> None:
    zurich = Schedule.parse(*NIGHTLY.values())
    for name in ("scheduled", "paused", "gone"):
        await store.repository(name, **NIGHTLY)
    await store.repository("without")
    await store.repositories.pause("paused", "being moved")
    await store.repositories.deactivate("gone")
    before = store.history.now()
    assert await store.take() == TickOutcome(first_runs=1)

    rows = {row.name: row for row in await store.repositories.list()}
    due_at = rows.pop("scheduled").next_due_at
    assert due_at in (zurich.next_after(before), zurich.next_after(store.history.now()))
    assert {row.next_due_at for row in rows.values()} == {None}
    assert await store.take() == TickOutcome()


async def test_ticks_during_a_pause_are_not_missed(store: Store) -> None:
    await store.repository(**NIGHTLY)
    await unattended(store)
    await store.repositories.pause("payments", "being moved")
    await store.repositories.resume("payments")

    back = await store.repositories.get("payments")
    assert back.is_active
    assert back.next_due_at is not None and back.next_due_at > store.history.now()
    assert await store.take() == TickOutcome()


@pytest.mark.parametrize("change", ["its hour", "its time zone", "it came back"])
async def test_ticks_before_a_schedule_was_set_or_its_repository_came_back_are_not_missed(
    store: Store, change: str
) -> None:
    await store.repository(**NIGHTLY)
    await unattended(store)
    if change == "it came back":
        await store.repositories.deactivate("payments")
    new = {"its hour": {"cron_expression": "0 4 * * *"}, "its time zone": {"timezone": "UTC"}}

    row = await store.repository(**NIGHTLY | new.get(change, {}))

    assert row.next_due_at is not None and row.next_due_at > store.history.now()
    assert await store.take() == TickOutcome()
    await unattended(store)
    await store.due(TICK)
    assert (await store.repositories.get("payments")).next_due_at == TICK
    changed = await store.repositories.get("payments")
    await store.repository(cron_expression=changed.cron_expression, timezone=changed.timezone, collection="other")
    assert await store.take() == TickOutcome(queued=1), "a change of anything else skips none"


# The first run -----------------------------------------------------------------------------------------------------


async def test_a_new_repository_is_synced_before_its_first_tick_however_many_pods_see_it(
    store: Store, open_database
) -> None:
    for name in ("a", "b", "c"):
        await store.repository(name, **NIGHTLY)
    pods = [Ticks(await open_database()) for _ in range(4)]

    outcomes = await asyncio.gather(
        *(pod.take(grace_seconds=ANY_GRACE_SECONDS, max_attempts=5) for pod in pods for _ in range(2))
    )

    assert sum(outcome.first_runs for outcome in outcomes) == 3
    runs = await store.history.runs()
    assert {(run.repository, run.trigger, run.scheduled_for) for run in runs} == {
        (name, RunTrigger.SCHEDULE, None) for name in ("a", "b", "c")
    }
    assert {run.max_attempts for run in runs} == {5}


async def test_who_ever_ran_or_waits_is_no_beginner(store: Store) -> None:
    run = await store.running("forgotten")
    await store.publishes(run)
    await store.ended(run)
    assert await store.history.purge(datetime.now(UTC) + timedelta(days=1)) == 1
    await store.queued("ran")
    await store.ended()
    await store.queued("failed")
    await store.ended(status=RunStatus.FAILED)
    cancelled = await store.queued("cancelled")
    await store.runs.cancel(cancelled.id)
    await store.queued("queued")
    for name in ("forgotten", "ran", "failed", "cancelled", "queued"):
        await store.repository(name, **NIGHTLY)

    assert await store.take() == TickOutcome()
    await store.repositories.remove("ran")
    await store.repository("ran", **NIGHTLY)
    assert await store.take() == TickOutcome(first_runs=1), "what came back is new"


# Pushes ---------------------------------------------------------------------------------------------------------------


HERE, OLD, NEW = "https://gitlab.example.com/a/b", "1" * 40, "2" * 40


async def registered(store: Store, name: str = "app", location: str = HERE, **said: Any) -> Repository:
    return await store.repository(name, location=location, **{"source": "gitlab", **said})


async def found(store: Store, number: int, *locations: str) -> list[str]:
    return [each.name for each in await store.repositories.of_project(number, locations)]


async def test_a_project_is_found_by_its_number_and_by_its_place_as_long_as_it_has_none(store: Store) -> None:
    await registered(store, "numbered", "https://gitlab.example.com/former/place", project_id=7)
    await registered(store, "unnumbered", "https://gitlab.example.com/A/B")
    await registered(store, "another", project_id=8)
    await registered(store, "cloned", f"{HERE}.git", source="git")
    await registered(store, "by-hand", cron_expression=None, origin="command", by_hand=True)

    assert await found(store, 7, HERE, f"{HERE}.git") == ["cloned", "numbered", "unnumbered"]
    assert await found(store, 8, HERE) == ["another", "unnumbered"]
    assert await found(store, 9) == []


async def test_a_push_queues_a_run_of_webhooks_and_the_next_one_joins_it(store: Store) -> None:
    pushed, runs = await registered(store), store.runs
    asked = await asyncio.gather(
        *(runs.enqueue_for_push(pushed, NEW, Ask(RunTrigger.WEBHOOK, max_attempts=5)) for _ in range(4))
    )
    (run,) = await store.history.runs()
    assert (run.trigger, run.max_attempts, run.status) == (RunTrigger.WEBHOOK, 5, RunStatus.QUEUED)
    assert sorted(each[1] for each in asked if not isinstance(each, Repository)) == [False, False, False, True]


async def test_a_push_of_the_indexed_commit_is_ignored_unless_a_run_is_active(store: Store) -> None:
    runs, pushed = store.runs, await registered(store)
    await runs.enqueue("app", Ask(RunTrigger.COMMAND))
    claimed = await store.claimed()
    await store.publishes(claimed, commit=OLD)

    under_way = await runs.enqueue_for_push(pushed, OLD, Ask(RunTrigger.WEBHOOK, max_attempts=3))
    assert isinstance(under_way, tuple)
    assert under_way[1]
    await runs.cancel(under_way[0].id)
    await runs.end(claimed, Finish(), RunFigures())

    ignored = await runs.enqueue_for_push(pushed, OLD, Ask(RunTrigger.WEBHOOK, max_attempts=3))
    assert isinstance(ignored, Repository) and ignored.is_active
    assert isinstance(await runs.enqueue_for_push(pushed, NEW, Ask(RunTrigger.WEBHOOK, max_attempts=3)), tuple)


async def test_an_index_is_behind_from_the_push_on_until_a_run_has_published_what_was_pushed(store: Store) -> None:
    runs, pushed = store.runs, await registered(store)

    async def behind_since() -> datetime | None:
        (state,) = await store.repositories.states()
        assert state.behind_since == (await store.repositories.get("app")).behind_since
        return state.behind_since

    async def behind() -> bool:
        return await behind_since() is not None

    async def begun() -> Run:
        await runs.enqueue("app", Ask(RunTrigger.COMMAND))
        return await store.claimed()

    assert not await behind(), "nothing is known of its source"
    claimed = await begun()
    await store.versions.record_head(claimed, OLD, known=None)
    assert await behind()
    await store.publishes(claimed, commit=OLD)
    assert not await behind()
    await runs.end(claimed, Finish(), RunFigures())

    claimed = await begun()
    await runs.enqueue_for_push(pushed, "3" * 40, Ask(RunTrigger.WEBHOOK, max_attempts=3), is_head=False)
    assert not await behind(), "of which branch the head is, is not known"
    await runs.enqueue_for_push(pushed, NEW, Ask(RunTrigger.WEBHOOK, max_attempts=3))
    assert await behind()
    # It read the head before the push, and writes it down after.
    await store.versions.record_head(claimed, OLD, known=OLD)
    pushed_at = await behind_since()
    await store.publishes(claimed, commit=NEW, complete=False)
    assert await behind_since() == pushed_at, "a file of the head could not be read"
    await store.publishes(claimed, commit=OLD)
    published_at = await behind_since()
    assert pushed_at is not None
    assert published_at is not None
    assert published_at > pushed_at, "it held another head in between"
    await runs.enqueue_for_push(pushed, "4" * 40, Ask(RunTrigger.WEBHOOK, max_attempts=3))
    assert await behind_since() == published_at, "it was behind before"
    await store.publishes(claimed, commit="4" * 40)
    assert not await behind()

    await runs.enqueue_for_push(pushed, OLD, Ask(RunTrigger.WEBHOOK, max_attempts=3))
    assert await behind()
    await registered(store, "app", "https://gitlab.example.com/c/d")
    (state,) = await store.repositories.states()
    assert state.behind_since is None, "the head was that of another project"


async def test_a_tick_takes_no_more_statements_for_many_waiting_runs_than_for_few(store: Store) -> None:
    """They are locked together."""
    statements: list[object] = []

    def executed(*statement: object) -> None:
        statements.append(statement[2])

    names = [f"repository-{number}" for number in range(20)]
    counts = []
    for name in names:
        await store.queued(name)
    event.listen(Engine, "before_cursor_execute", executed)
    try:
        for moment, few in ((TICK, names[:2]), (TICK + timedelta(hours=1), names), (TICK + timedelta(hours=2), names)):
            await store.due(moment, *few)
            statements.clear()
            assert await store.take() == TickOutcome(joined=len(few))
            counts.append(len(statements))
    finally:
        event.remove(Engine, "before_cursor_execute", executed)

    assert max(counts) <= counts[0] + 1  # some have a tick already, and some have none
    runs = await store.history.runs(limit=100)
    assert [run.scheduled_for for run in runs] == [TICK + timedelta(hours=2)] * 20
    assert [[request.trigger for request in run.requests] for run in runs] == [["command", "schedule"]] * 20
