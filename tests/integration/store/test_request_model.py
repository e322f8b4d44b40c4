"""Whatever is asked for and cancelled in whatever order: nothing that somebody asked for and that was not cancelled is
lost, a run does what was asked of it, and at most one run of a repository executes, one is queued, one is blocked."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from reposync.errors import LeaseLost
from reposync.store.database import Database
from reposync.store.endings import STOPPING, YIELDING, Fail, Retry
from reposync.store.run import IN_ADVANCE, Ask, Run, RunFigures
from reposync.store.status import FINAL, WAITING, RunStatus, RunTrigger
from reposync.store.ticks import TickOutcome
from tests.fixtures.endings import ending
from tests.fixtures.examples import SLOW_EXAMPLES
from tests.integration.store.conftest import TICK, Store

NAMES = ("a", "b")
TRIGGERS = (RunTrigger.COMMAND, RunTrigger.HTTP, RunTrigger.WEBHOOK)
ENDS = ("completed", "failed", "cancelled", "blocked")
names = st.sampled_from(NAMES)


@dataclass
class Wish:
    """What somebody asked for. `full` has to be done by the run that serves it."""

    repository: str
    trigger: RunTrigger
    asked_by: str
    full: bool
    cancelled: bool = False


class Requests(RuleBasedStateMachine):
    url: str
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.database: Database = self.do(Database.open(self.url))
        self.store = Store(self.database)
        self.clock = TICK
        self.numbers = itertools.count()
        self.wishes: dict[str, Wish] = {}
        """By who asked."""
        self.held: dict[str, Run] = {}
        self.stale: list[Run] = []
        self.paused: set[str] = set()
        self.missed = Counter[str]()
        self.runs: dict[str, Run] = {}
        self.do(self._empty())

    def do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    async def _empty(self) -> None:
        for table in ("sync_runs", "repositories"):
            await self.database.change(text(f"DELETE FROM {table}"))
        for name in NAMES:
            await self.store.repository(name)

    def teardown(self) -> None:
        self.do(self.work_off())
        self.do(self.database.close())

    async def work_off(self) -> None:
        for run in self.held.values():
            await self.store.runs.expire(run)
        await self.database.change(text("UPDATE sync_runs SET not_before = queued_at"))
        while run := await self.store.runs.claim("last", 60.0):
            await self.store.ended(run)
        left = await self.store.history.runs(status={*WAITING, RunStatus.RUNNING})
        assert left == []
        assert {run.repository for run in await self.store.history.runs(status=RunStatus.BLOCKED)} <= set(NAMES)

    # Asking ----------------------------------------------------------------------------------------------------------

    @initialize(name=names)
    def begin(self, name: str) -> None:
        self.somebody_asks(name, RunTrigger.WEBHOOK, full=False, approved=False)

    @rule(name=names, trigger=st.sampled_from(TRIGGERS), full=st.booleans(), approved=st.booleans())
    def somebody_asks(self, name: str, trigger: RunTrigger, full: bool, approved: bool) -> None:
        asked_by = f"{trigger} {next(self.numbers)}"
        self.wishes[asked_by] = Wish(name, trigger, asked_by, full)
        approval = IN_ADVANCE if approved else None
        self.do(self.store.runs.enqueue(name, Ask(trigger, asked_by, full=full, approval=approval)))

    @rule(name=names, late=st.booleans())
    def tick(self, name: str, late: bool) -> None:
        self.clock += timedelta(minutes=1)
        outcome = self.do(self.store.tick(self.clock, name, grace_seconds=1.0 if late else 1e10))
        assert sum((outcome.queued, outcome.joined, outcome.missed)) == (0 if name in self.paused else 1)
        self.missed[name] += outcome.missed
        assert self.do(self.store.take()) == TickOutcome(), "a pod that is late"

    # Cancelling ------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def ctrl_c(self, data: st.DataObject) -> None:
        """Of one of those who asked: the run ends only if nobody else did."""
        run = self._any(data)
        self.do(self.store.runs.interrupt(run.id))
        after = self.do(self.store.history.get(run.id))
        if run.status in (*WAITING, RunStatus.RUNNING) and len(run.asked) == 1:
            assert after.cancel_requested or after.status is RunStatus.CANCELLED
            self._cancelled(run)
        else:
            assert after == run

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run = self._any(data)
        if run.status not in FINAL or run.status is RunStatus.BLOCKED:
            self._cancelled(run)
        self.do(self.store.runs.cancel(run.id, by="somebody"))

    @rule(name=names)
    def pause(self, name: str) -> None:
        for run in self._of(name, *WAITING):
            if run.trigger in (RunTrigger.SCHEDULE, RunTrigger.WEBHOOK):  # no person asked
                self._cancelled(run)
        self.do(self.store.repositories.pause(name, "being moved"))
        self.paused.add(name)

    @precondition(lambda self: self.paused)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.paused)))
        self.do(self.store.repositories.resume(name))
        self.paused.discard(name)

    @rule(name=names)
    def send_back(self, name: str) -> None:
        for run in self._of(name, RunStatus.BLOCKED):
            self.do(self.store.runs.approve(run.id, Ask(RunTrigger.COMMAND, "a person")))
            return
        for run in self._of(name, RunStatus.FAILED, RunStatus.CANCELLED):
            self.do(self.store.runs.retry(run.id, Ask(RunTrigger.COMMAND, "a person")))
            return

    # Executing -------------------------------------------------------------------------------------------------------

    @rule()
    def claim(self) -> None:
        run = self.do(self.store.runs.claim(f"worker-{next(self.numbers)}", 60.0))
        if run is not None:
            assert run.attempt == self.runs[run.id].attempt + 1
            self.held[run.id] = run
            waited = self.runs[run.id]
            does = ("trigger", "full", "approval", "max_attempts", "asked")
            assert all(getattr(run, what) == getattr(waited, what) for what in does), "it does what is asked of it"

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        run = self._one(data)
        self.do(self.store.runs.expire(run))
        taken = self.do(self.store.runs.claim(f"worker-{next(self.numbers)}", 60.0, run_id=run.id))
        self._let_go(run)
        if taken is not None:
            self.held[run.id] = taken

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def wake_after_the_lease(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.stale))
        with pytest.raises(LeaseLost):
            self.do(self.store.runs.heartbeat(run, 60.0))
        with suppress(LeaseLost):  # otherwise it had ended the attempt so itself
            self.do(self.store.runs.end(run, STOPPING))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(ENDS), lost=st.integers(21, 23))
    def finish(self, data: st.DataObject, how: str, lost: int) -> None:
        run = self._one(data)
        brake = {"commit": "c", "planned": {"vanished": lost}, "losses": {"vanished": lost}, "indexed": 30}
        self.do(self.store.runs.end(run, ending(RunStatus(how), "WHY", "because", brake=brake), RunFigures()))
        self._let_go(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), yields=st.booleans())
    def hand_back(self, data: st.DataObject, yields: bool) -> None:
        run = self._one(data)
        self.do(self.store.runs.end(run, YIELDING if yields else STOPPING))
        self._let_go(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        run = self._one(data)
        self.do(self.store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=-1.0)))
        self._let_go(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail_at_a_command(self, data: st.DataObject) -> None:
        run = self._one(data)
        others = len(run.asked) > 1
        after = self.do(self.store.runs.end(run, Fail("SOURCE_UNAVAILABLE", "no route", own_requests=1)))
        assert (after.status is RunStatus.RETRYING) == (others and not self.runs[run.id].cancel_requested)
        del self.held[run.id]

    # What always holds -----------------------------------------------------------------------------------------------

    @invariant()
    def look(self) -> None:
        runs = self.do(self.store.history.runs(limit=1_000))
        self.runs = {run.id: run for run in runs}
        self.at_most_one_of_each()
        self.nobody_asks_who_did_not()
        self.nothing_is_lost()
        self.what_is_counted_is_what_happened()

    def at_most_one_of_each(self) -> None:
        counted = Counter((run.repository, run.status) for run in self.runs.values())
        for status in (RunStatus.RUNNING, RunStatus.QUEUED, RunStatus.BLOCKED):
            assert all(counted[name, status] <= 1 for name in NAMES), status
        assert {run.id for run in self.runs.values() if run.status is RunStatus.RUNNING} == set(self.held)
        ticks = Counter((run.repository, run.scheduled_for) for run in self.runs.values() if run.scheduled_for)
        assert set(ticks.values()) <= {1}

    def nobody_asks_who_did_not(self) -> None:
        for run in self.runs.values():
            assert run.asked and self._askers(run) <= {*self.wishes, "schedule", "first run", "a person"}
            assert len([who for who in run.requests if who.asked_by == "schedule"]) <= 1, "ticks are listed once"

    def nothing_is_lost(self) -> None:
        for who, wish in self.wishes.items():
            runs = [run for run in self._of(wish.repository, *RunStatus) if who in self._askers(run)]
            assert runs
            if wish.cancelled:
                continue
            if unfinished := [run for run in runs if run.status not in FINAL or run.status is RunStatus.BLOCKED]:
                assert any(run.full or not wish.full for run in unfinished)
                continue
            for run in runs:
                if run.error_code == "SUPERSEDED":
                    completed = self._of(wish.repository, RunStatus.COMPLETED)
                    done = [each for each in completed if each.id in str(run.error_message)]
                    assert [each for each in done if each.full or not wish.full], "another run did that"
                else:
                    assert run.attempt > 0, "it began after it was asked for"
                    asked_at = next(request.asked_at for request in run.requests if request.asked_by == who)
                    assert run.started_at >= asked_at

    def what_is_counted_is_what_happened(self) -> None:
        listed = [self.do(self.store.repositories.get(name)).missed_ticks for name in NAMES]
        assert [len(ticks) for ticks in listed] == [min(self.missed[name], 20) for name in NAMES]
        queue = self.do(self.store.history.queue()).counts
        expected = Counter(str(run.status) for run in self.runs.values())
        for status in ("queued", "retrying", "running", "blocked"):
            assert queue.get(status, 0) == expected[status]

    def _askers(self, run: Run) -> set[str]:
        return {request.asked_by for request in run.requests}

    def _cancelled(self, run: Run) -> None:
        for who in self._askers(run) & set(self.wishes):
            self.wishes[who].cancelled = True

    def _any(self, data: st.DataObject) -> Run:
        return data.draw(st.sampled_from(list(self.runs.values())))

    def _of(self, name: str, *statuses: RunStatus) -> list[Run]:
        return [run for run in self.runs.values() if run.repository == name and run.status in statuses]

    def _one(self, data: st.DataObject) -> Run:
        return data.draw(st.sampled_from(list(self.held.values())))

    def _let_go(self, run: Run) -> None:
        del self.held[run.id]
        self.stale.append(run)


def test_no_request_that_was_not_cancelled_is_lost(database_url: str) -> None:
    with asyncio.Runner() as runner:
        model = type("Kept", (Requests,), {"url": database_url, "loop": runner.get_loop()})
        run_state_machine_as_test(model, settings=settings(max_examples=SLOW_EXAMPLES, stateful_step_count=30))
