"""Whatever happens in whatever order: never two runs of a repository at once, never two queued, no tick twice, and
every run that waits is executed in the end. SQLite and PostgreSQL against a model of a few lines."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from reposync.errors import LeaseLost
from reposync.store.run import Run, RunFigures
from reposync.store.status import FINAL, WAITING, RunStatus, RunTrigger
from reposync.store.ticks import TickOutcome
from tests.integration.store.model import Model, keeps_its_promises

NAMES = ("a", "b", "c")

names = st.sampled_from(NAMES)
OUTCOMES = st.sampled_from([RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.BLOCKED, RunStatus.CANCELLED])


class Queue(Model):
    """The model: the status of every run, the holders of those that execute, and the ticks that were handled."""

    repositories = NAMES

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, Run] = {}
        self.stale: list[Run] = []
        self.ticks: dict[str, datetime] = {}
        self.attempts: dict[str, int] = {}
        self.workers = (f"worker-{number}" for number in itertools.count())
        self.runs: list[Run] = []

    async def work_off(self) -> None:
        for run in self.held.values():
            await self.store.runs.expire(run)
        for name in NAMES:
            await self.store.runs.enqueue(name, RunTrigger.HTTP)  # no pause before the next attempt any more
        for _ in range(200):
            run = await self.store.runs.claim("last", 60.0)
            if run is None:
                break
            await self.store.runs.finish(run, RunStatus.COMPLETED, RunFigures())
        left = await self.store.runs.history(status=set(RunStatus) - FINAL)
        assert [run for run in left if run.not_before <= datetime.now(UTC)] == []

    @initialize(name=names)
    def begin(self, name: str) -> None:
        self.click(name, RunTrigger.HTTP)

    # Asking ------------------------------------------------------------------------------------------------------

    @rule(name=names, trigger=st.sampled_from([RunTrigger.COMMAND, RunTrigger.HTTP, RunTrigger.WEBHOOK]))
    def click(self, name: str, trigger: RunTrigger) -> None:
        before = self._waiting(name)

        run, created = self.do(self.store.runs.enqueue(name, trigger))

        assert created == (not before)
        assert created or run.id in {each.id for each in before}

    @rule(name=names, back=st.integers(0, 3), late=st.booleans())
    def tick(self, name: str, back: int, late: bool) -> None:
        self.clock += timedelta(minutes=1)
        moment = self.clock - back * timedelta(minutes=1)
        if name in self.ticks and moment <= self.ticks[name]:
            expected = TickOutcome(handled=1)
        elif self._waiting(name):
            expected = TickOutcome(joined=1)
        else:
            expected = TickOutcome(missed=1) if late else TickOutcome(queued=1)
        self.ticks[name] = max(moment, self.ticks.get(name, moment))

        assert self.do(self.store.tick(moment, name, grace_seconds=1.0 if late else 1e10)) == expected

    # Executing -------------------------------------------------------------------------------------------------------

    @rule()
    def claim(self) -> None:
        due = {name for name in NAMES if self._due(name)} - {run.repository for run in self.held.values()}

        run = self.do(self.store.runs.claim(next(self.workers), 60.0))

        assert (run is not None) == bool(due)
        if run is not None:
            assert run.repository in due
            assert run.attempt == self.attempts.get(run.id, 0) + 1
            self.attempts[run.id] = run.attempt
            self.held[run.id] = run

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Its worker is gone; another one takes the run over, unless it may not."""
        run = self._one(data)
        self.do(self.store.runs.expire(run))
        self.stale.append(run)
        seen = next(each for each in self.runs if each.id == run.id)
        hopeless = run.attempt >= seen.max_attempts or seen.cancel_requested

        taken = self.do(self.store.runs.claim(next(self.workers), 60.0, run_id=run.id))

        assert (taken is None) == hopeless
        if taken is None:
            del self.held[run.id]
            assert self.do(self.store.runs.get(run.id)).status in (RunStatus.FAILED, RunStatus.CANCELLED)
        else:
            assert taken.attempt == run.attempt + 1
            self.attempts[run.id] = taken.attempt
            self.held[run.id] = taken

    @precondition(lambda self: self.held)
    @rule(data=st.data(), status=OUTCOMES)
    def finish(self, data: st.DataObject, status: RunStatus) -> None:
        run = self._one(data)
        self.do(self.store.runs.finish(run, status, RunFigures(files_processed=1)))
        self._let_go(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay=st.sampled_from([-1.0, 3600.0]))
    def fail(self, data: st.DataObject, delay: float) -> None:
        run = self._one(data)
        self.do(self.store.runs.retry_later(run, delay, "SOURCE_UNAVAILABLE", "503"))
        self._let_go(run)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        run = self._one(data)
        self.do(self.store.runs.release(run))
        self._let_go(run)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def wake_after_the_lease(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.stale))
        for write in (
            self.store.runs.heartbeat(run, 60.0),
            self.store.runs.retry_later(run, 0.0, "SOURCE_UNAVAILABLE", "late"),
            self.store.runs.release(run),
        ):
            with pytest.raises(LeaseLost):
                self.do(write)

    # A person --------------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.runs))
        self.do(self.store.runs.request_cancel(run.id))

    @rule(data=st.data())
    def send_back(self, data: st.DataObject) -> None:
        over = [run for run in self.runs if run.is_final and run.status is not RunStatus.COMPLETED]
        if over:
            run = data.draw(st.sampled_from(over))
            self.do((self.store.runs.approve if run.status == "blocked" else self.store.runs.retry)(run.id))

    # What always holds -----------------------------------------------------------------------------------------------

    @invariant()
    def promises_hold(self) -> None:
        runs = self.runs = self.do(self.store.runs.history(limit=1_000))
        running = [run for run in runs if run.status is RunStatus.RUNNING]
        assert {run.id: run.attempt for run in running} == {run.id: run.attempt for run in self.held.values()}
        assert len({run.repository for run in running}) == len(running)
        queued = [run.repository for run in runs if run.status is RunStatus.QUEUED]
        assert len(set(queued)) == len(queued)
        for run in runs:
            assert run.attempt == self.attempts.get(run.id, 0)
        ticked = [(run.repository, run.scheduled_for) for run in runs if run.scheduled_for is not None]
        assert len(set(ticked)) == len(ticked)
        ids = {self.do(self.store.repositories.get(name)).id: name for name in NAMES}
        latest = self.do(self.store.ticks.latest(ids))
        assert {ids[identity]: tick for identity, tick in latest.items()} == self.ticks

    def _waiting(self, name: str) -> list[Run]:
        return [run for run in self.runs if run.repository == name and run.status in WAITING]

    def _due(self, name: str) -> bool:
        return any(run.not_before < datetime.now(UTC) + timedelta(seconds=60) for run in self._waiting(name))

    def _one(self, data: st.DataObject) -> Run:
        return data.draw(st.sampled_from(list(self.held.values())))

    def _let_go(self, run: Run) -> None:
        del self.held[run.id]
        self.stale.append(run)


def test_the_queue_keeps_its_promises_in_any_order_of_events(database_url: str) -> None:
    keeps_its_promises(Queue, database_url, steps=25)
