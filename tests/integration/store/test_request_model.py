"""Whatever is asked for and taken back in whatever order: nothing that somebody asked for and did not take back is
lost, a run does what its requests say, and at most one run of a repository executes, one is queued, one is blocked."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Iterator
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
from reposync.store.run import STOPPING, YIELDING, Run, RunFigures, RunRequest
from reposync.store.run_state import derive
from reposync.store.status import FINAL, WAITING, RunStatus, RunTrigger
from reposync.store.ticks import TickOutcome
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
    taken_back: bool = False


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
        """By request id."""
        self.held: dict[str, Run] = {}
        self.stale: list[Run] = []
        self.paused: set[str] = set()
        self.missed = 0
        self.runs: dict[str, Run] = {}
        self.requests: dict[str, list[RunRequest]] = {}
        self.do(self._empty())

    def do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    async def _empty(self) -> None:
        for table in ("run_requests", "missed_ticks", "sync_runs", "repositories"):
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
        left = await self.store.runs.history(status={*WAITING, RunStatus.RUNNING})
        assert left == []
        assert {run.repository for run in await self.store.runs.history(status=RunStatus.BLOCKED)} <= set(NAMES)

    # Asking ----------------------------------------------------------------------------------------------------------

    @initialize(name=names)
    def begin(self, name: str) -> None:
        self.somebody_asks(name, RunTrigger.WEBHOOK, full=False, approved=False)

    @rule(name=names, trigger=st.sampled_from(TRIGGERS), full=st.booleans(), approved=st.booleans())
    def somebody_asks(self, name: str, trigger: RunTrigger, full: bool, approved: bool) -> None:
        number = next(self.numbers)
        request_id, asked_by = f"00000000-0000-4000-8000-{number:012}", f"{trigger} {number}"
        self.wishes[request_id] = Wish(name, trigger, asked_by, full)
        asked = {"asked_by": asked_by, "request_id": request_id, "full": full, "approved": approved}
        self.do(self.store.runs.enqueue(name, trigger, **asked))

    @rule(name=names, late=st.booleans())
    def tick(self, name: str, late: bool) -> None:
        self.clock += timedelta(minutes=1)
        outcome = self.do(self.store.tick(self.clock, name, grace_seconds=1.0 if late else 1e10))
        assert sum((outcome.queued, outcome.joined, outcome.missed)) == (0 if name in self.paused else 1)
        self.missed += outcome.missed
        assert self.do(self.store.take()) == TickOutcome(), "a pod that is late"

    # Taking back -----------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def ctrl_c(self, data: st.DataObject) -> None:
        mine = data.draw(st.sampled_from(sorted(self.wishes)))
        run = self.runs[next(each.run_id for each in self._requests() if each.id == mine)]
        self.do(self.store.runs.withdraw(mine, by="an interrupt"))
        if run.status not in FINAL or run.status is RunStatus.BLOCKED:  # what is over stays as it is
            self.wishes[mine].taken_back = True

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(list(self.runs.values())))
        if run.status not in FINAL or run.status is RunStatus.BLOCKED:
            for each in self._live(run):
                if each.id in self.wishes:
                    self.wishes[each.id].taken_back = True
        self.do(self.store.runs.request_cancel(run.id, by="somebody"))

    @rule(name=names)
    def pause(self, name: str) -> None:
        for run in self._of(name, *WAITING):
            for each in self._live(run):
                if each.id in self.wishes and each.trigger == RunTrigger.WEBHOOK:
                    self.wishes[each.id].taken_back = True
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
            self.do(self.store.runs.approve(run.id, by="a person"))
            return
        for run in self._of(name, RunStatus.FAILED, RunStatus.CANCELLED):
            self.do(self.store.runs.retry(run.id, by="a person"))
            return

    # Executing -------------------------------------------------------------------------------------------------------

    @rule()
    def claim(self) -> None:
        run = self.do(self.store.runs.claim(f"worker-{next(self.numbers)}", 60.0))
        if run is not None:
            assert run.attempt == self.runs[run.id].attempt + 1
            self.held[run.id] = run
            expected = derive(self._live(self.runs[run.id]), brake=run.brake, handed_back=run.handed_back)
            assert {key: getattr(run, key) for key in expected} == expected, "it does what is asked of it"

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
            self.do(self.store.runs.release(run))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(ENDS), lost=st.integers(21, 23))
    def finish(self, data: st.DataObject, how: str, lost: int) -> None:
        run = self._one(data)
        brake = {"commit": "c", "planned": {"vanished": lost}, "losses": {"vanished": lost}, "indexed": 30}
        said = {"brake": brake} if how == "blocked" else {}
        self.do(self.store.runs.finish(run, RunStatus(how), RunFigures(), "WHY", "because", **said))
        self._let_go(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def be_overtaken(self, data: st.DataObject) -> None:
        run = self._one(data)
        self.do(self.store.runs.finish(run, RunStatus.CANCELLED, RunFigures(), "SUPERSEDED", "anew", followed_up=True))
        del self.held[run.id]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), yields=st.booleans())
    def hand_back(self, data: st.DataObject, yields: bool) -> None:
        run = self._one(data)
        self.do(self.store.runs.release(run, how=YIELDING if yields else STOPPING))
        self._let_go(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        run = self._one(data)
        self.do(self.store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "503"))
        self._let_go(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail_at_a_command(self, data: st.DataObject) -> None:
        run = self._one(data)
        live = self._live(self.runs[run.id])
        mine = live[0].id if live else "none"
        others = len(live) > 1
        after = self.do(
            self.store.runs.retry_later(run, -1.0, "SOURCE_UNAVAILABLE", "no route", final_unless_others=mine)
        )
        assert (after.status is RunStatus.RETRYING) == (others and not self.runs[run.id].cancel_requested)
        del self.held[run.id]

    # What always holds -----------------------------------------------------------------------------------------------

    @invariant()
    def look(self) -> None:
        runs = self.do(self.store.runs.history(limit=1_000))
        self.runs = {run.id: run for run in runs}
        self.requests = self.do(self.store.runs.requests(list(self.runs)))
        self.at_most_one_of_each()
        self.a_run_that_waits_does_what_is_asked_of_it()
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

    def a_run_that_waits_does_what_is_asked_of_it(self) -> None:
        for run in self.runs.values():
            if run.status in WAITING or run.status is RunStatus.BLOCKED:
                live = self._live(run)
                assert live, f"nobody asks for {run}"
                expected = derive(live, brake=run.brake, handed_back=run.handed_back)
                assert {key: getattr(run, key) for key in expected} == expected

    def nobody_asks_who_did_not(self) -> None:
        askers = {wish.asked_by for wish in self.wishes.values()} | {"schedule", "first run", "a person"}
        for run in self.runs.values():
            live = self._live(run)
            assert {each.asked_by for each in live} <= askers
            assert len([each for each in live if each.asked_by == "schedule"]) <= 1, "one tick asks for all"

    def nothing_is_lost(self) -> None:
        placed = {each.id: each for each in self._requests()}
        for request_id, wish in self.wishes.items():
            request = placed[request_id]
            run = self.runs[request.run_id]
            assert run.repository == wish.repository
            if wish.taken_back:
                assert not request.is_live or run.status in FINAL
                continue
            assert request.is_live, f"{wish} was withdrawn by {request.withdrawn_by}"
            if run.status in WAITING or run.status is RunStatus.BLOCKED:
                assert run.full or not wish.full
            elif run.status in FINAL and run.error_code == "SUPERSEDED":
                done = [each for each in self._of(wish.repository, RunStatus.COMPLETED) if each.id in run.error_message]
                assert [each for each in done if each.full or not wish.full], "another run did that"
            elif run.status in FINAL:
                assert run.attempt > 0, "it began after it was asked for"
                assert run.started_at >= request.asked_at

    def what_is_counted_is_what_happened(self) -> None:
        missed = sum(len(self.do(self.store.ticks.missed(self._id(name), 1_000))) for name in NAMES)
        assert missed == self.missed
        queue = self.do(self.store.runs.queue()).counts
        expected = Counter(str(run.status) for run in self.runs.values())
        for status in ("queued", "retrying", "running", "blocked"):
            assert queue.get(status, 0) == expected[status]

    def _id(self, name: str) -> str:
        return str(self.do(self.store.repositories.get(name)).id)

    def _requests(self) -> Iterator[RunRequest]:
        return itertools.chain.from_iterable(self.requests.values())

    def _live(self, run: Run) -> list[RunRequest]:
        return [each for each in self.requests.get(run.id, []) if each.is_live]

    def _of(self, name: str, *statuses: RunStatus) -> list[Run]:
        return [run for run in self.runs.values() if run.repository == name and run.status in statuses]

    def _one(self, data: st.DataObject) -> Run:
        return data.draw(st.sampled_from(list(self.held.values())))

    def _let_go(self, run: Run) -> None:
        del self.held[run.id]
        self.stale.append(run)


def test_no_request_that_was_not_withdrawn_is_lost(database_url: str) -> None:
    with asyncio.Runner() as runner:
        model = type("Kept", (Requests,), {"url": database_url, "loop": runner.get_loop()})
        run_state_machine_as_test(model, settings=settings(max_examples=SLOW_EXAMPLES, stateful_step_count=30))
