"""The execution log, which is also the queue: executing a run, and recording its progress and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, and_, delete, exists, select, update
from sqlalchemy.exc import IntegrityError

from reposync.errors import CANNOT_HERE, DefinitionChanged
from reposync.store.attempts import (
    REPOSITORY_REMOVED,
    change_attempt,
    claimable,
    end_attempt,
    fence,
    held_by,
    is_attempt,
    lease_lost,
    others_claimable,
    take,
    take_over,
    total_counts,
)
from reposync.store.columns import MAX_MESSAGE_CHARS, path_key, truncate
from reposync.store.database import QUEUE, Connection, Database
from reposync.store.endings import Block, Ending, Fail, Finish, HandBack, Retry
from reposync.store.repositories import lock_repositories
from reposync.store.run import COUNTS, LostAttempt, Run, RunFigures, RunProblem
from reposync.store.run_queue import RunQueue
from reposync.store.run_state import Event, joined, locked, move
from reposync.store.status import RunStatus
from reposync.store.tables import ATTEMPTS, PROBLEMS, REPOSITORIES, RUNS, is_over, status_is

CLAIM_TRIES = 5
MAX_DETAIL_CHARS = 1_000


class Runs(RunQueue):
    """Methods that take a run raise LeaseLost once a different worker has it, and then have written nothing."""

    def __init__(
        self,
        database: Database,
        *,
        redact: Callable[[str], str] = str,
        on_lost: Callable[[LostAttempt], None] = lambda _: None,
    ) -> None:
        """`redact` removes secrets from every message that is stored: servers quote what they were sent. `on_lost` is
        called for each attempt that a claim here found without its worker."""
        super().__init__(database)
        self._redact = redact
        self._on_lost = on_lost

    async def claim(self, worker: str, lease_seconds: float, *, run_id: str | None = None) -> Run | None:
        """Claim the first run that can be executed (by priority, then age) for `lease_seconds`; None if there is none.
        With `run_id` only that run. Never two runs of one repository. A run whose lease ended is taken over first, or
        ended if it was to be cancelled or has no attempt left: waiting runs may depend on it."""
        for _ in range(CLAIM_TRIES):
            async with self._database.read() as connection:
                found = await claimable(connection, run_id)
            if not found.due and not found.expired:
                return None
            run: Run | None = None
            lost: list[LostAttempt] = []
            try:
                async with self._database.write() as connection:
                    if found.expired:
                        run, lost = await take_over(connection, worker, lease_seconds, run_id)
                    run = run or await take(connection, worker, lease_seconds, run_id)
            except IntegrityError:
                continue  # a different worker was faster; there may be other runs
            for attempt in lost:
                self._on_lost(attempt)
            return run
        return None

    async def others_wait(self, run: Run) -> bool:
        """Whether a run of a different repository could be executed now, if a worker were free."""
        async with self._database.read() as connection:
            return await others_claimable(connection, run.repository_id)

    async def expire(self, run: Run) -> None:
        """End the lease of a run whose worker is known to be gone, unless a different attempt has it."""
        over = update(RUNS).where(held_by(run)).values(lease_until=self._database.moment(-1.0))
        async with self._database.write() as connection:
            await connection.execute(over)
            await connection.announce(QUEUE)

    async def heartbeat(
        self,
        run: Run,
        lease_seconds: float,
        progress: Mapping[str, Any] | None = None,
        figures: RunFigures | None = None,
    ) -> bool:
        """Extend the lease from now; whether a person wants the run to end. `figures`: of this attempt so far."""
        columns = {} if progress is None else {"progress": dict(progress)}
        query = update(RUNS).where(held_by(run)).values(lease_until=self._database.moment(lease_seconds), **columns)
        async with self._database.write() as connection:
            row = await connection.one_or_none(query.returning(RUNS.c.cancel_requested))
            if row is None:
                raise lease_lost(run)
            if figures is not None:
                await change_attempt(connection, run, figures)
                totals = total_counts(run.id, is_over=False)
                await connection.execute(update(RUNS).where(RUNS.c.id == run.id).values(**totals))
        return bool(row.cancel_requested)

    async def report_progress(self, run: Run, progress: Mapping[str, Any]) -> None:
        """Record the progress without extending the lease. No index has this column, so that PostgreSQL updates the row
        in its page."""
        query = update(RUNS).where(held_by(run)).values(progress=dict(progress))
        if not await self._database.change(query):
            raise lease_lost(run)

    async def explain_lost(self, run: Run, error_code: str, error_message: str) -> None:
        """Record why the attempt was lost, unless a reason is recorded already. For reasons that could not be written
        earlier because the database was unavailable."""
        unknown = update(ATTEMPTS).where(is_attempt(run), ATTEMPTS.c.error_code.is_(None))
        reason = {"error_code": error_code, "error_message": self._message(error_message)}
        await self._database.change(unknown.values(**reason))

    async def record_brake(self, run: Run, brake: Mapping[str, Any]) -> None:
        """Bind an approval that was given beforehand to the deletion that the run met."""
        query = update(RUNS).where(held_by(run)).values(brake=dict(brake), approval=dict(brake))
        if not await self._database.change(query):
            raise lease_lost(run)

    async def end(self, run: Run, ending: Ending, figures: RunFigures | None = None) -> Run:
        """Write the end of the attempt, the only place that does, and return the run after it. May be repeated: the
        first answer may have been lost. `figures`: None if those of the last heartbeat count."""
        async with self._database.write() as connection:
            await lock_repositories(connection, REPOSITORIES.c.id == run.repository_id, [REPOSITORIES.c.id])
            row = await connection.one_or_none(locked(connection, held_by(run)))
            if row is None:
                return await self._ended_before(connection, run, ending)
            step = _step(row, ending, self._error(ending))
            if step.event in (Event.BLOCK, Event.COMPLETE):
                step = await self._settle_blocked(connection, row, step)
            error = {name: step.columns.get(name, getattr(row, name)) for name in ("error_code", "error_message")}
            totals = await end_attempt(connection, row, step.outcome, figures, **error)
            columns = {**step.columns, **totals}
            if step.delay_seconds is not None:
                columns["not_before"] = self._database.moment(step.delay_seconds)
                if step.event is Event.HAND_BACK and _is_same_wait(row.error_code, ending.code, figures):
                    columns["waits_since"] = row.waits_since
            elif figures is not None:
                columns["commit_after"] = figures.commit_after
            return Run.of(await move(connection, row, step.event, **columns))

    async def add_problems(self, run: Run, problems: Sequence[RunProblem]) -> None:
        """One row for each file, which replaces an earlier one."""
        if not problems:
            return
        new = self._database.insert(PROBLEMS)
        upsert = new.on_conflict_do_update(
            index_elements=[PROBLEMS.c.run_id, PROBLEMS.c.path],
            set_={"reason": new.excluded.reason, "detail": new.excluded.detail},
        )
        rows = [
            {
                "run_id": run.id,
                "path": path_key(problem.path),
                "reason": problem.reason,
                "detail": self._message(problem.detail, MAX_DETAIL_CHARS),
            }
            for problem in problems
        ]
        await self._database.change(upsert, rows, fence(run))

    async def forget_problems(self, run: Run, reason: str) -> None:
        """Delete those of earlier attempts, which this one examines again."""
        earlier = delete(PROBLEMS).where(PROBLEMS.c.run_id == run.id, PROBLEMS.c.reason == reason)
        await self._database.change(earlier, guard=fence(run))

    # -----------------------------------------------------------------------------------------------------------------

    def _message(self, text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
        return truncate(self._redact(text), limit)

    def _error(self, ending: Ending) -> dict[str, Any]:
        message = None if ending.message is None else self._message(ending.message)
        return {"error_code": ending.code, "error_message": message}

    async def _ended_before(self, connection: Connection, run: Run, ending: Ending) -> Run:
        """The run as it is now, if an earlier call has ended this attempt so. Raises LeaseLost."""
        by_itself = ATTEMPTS.c.worker == run.worker, ATTEMPTS.c.error_code.is_distinct_from(REPOSITORY_REMOVED)
        ended = exists().where(is_attempt(run), *by_itself, ATTEMPTS.c.outcome.in_(sorted(ending.outcomes)))
        row = await connection.one_or_none(select(RUNS).where(RUNS.c.id == run.id, ended))
        if row is None:
            raise lease_lost(run)
        return Run.of(row)

    async def _settle_blocked(self, connection: Connection, row: Row[Any], step: _Step) -> _Step:
        """A repository has one blocked run at most. If `row` is to be blocked as well, the earlier one waits for both.
        If it is completed, it did the work of the blocked one, which ends, or is queued again if it has to do more."""
        which = and_(RUNS.c.repository_id == row.repository_id, is_over(), status_is(RunStatus.BLOCKED))
        blocked = next(iter(await connection.rows(locked(connection, which))), None)
        if blocked is None:
            return step
        if step.event is Event.BLOCK:
            await move(connection, blocked, Event.BLOCK, **{**joined(blocked, row, row.asked), **step.columns})
            message = f"{step.columns['error_message'] or ''} Run {blocked.id} waits for a person."
            return _Step(Event.STOP, RunStatus.CANCELLED, {**step.columns, "error_message": truncate(message.strip())})
        if any(getattr(blocked, flag) and not getattr(row, flag) for flag in ("full", "repair", "removal")):
            await move(connection, blocked, Event.APPROVE, not_before=self._database.moment(), brake=None)
        else:
            error = {"error_code": DefinitionChanged.code, "error_message": f"Run {row.id} was completed since."}
            await move(connection, blocked, Event.STOP, **error)
        return step


@dataclass(frozen=True, slots=True)
class _Step:
    """What an ending does to the row of a run. `delay_seconds`: until the next attempt; None if there is none."""

    event: Event
    outcome: str
    columns: Mapping[str, Any]
    delay_seconds: float | None = None


def _step(row: Row[Any], ending: Ending, error: Mapping[str, Any]) -> _Step:
    uncounted = {**error, "handed_back": row.handed_back + 1, "max_attempts": row.max_attempts + 1}
    match ending:
        case Finish(status=RunStatus.COMPLETED):
            return _Step(Event.COMPLETE, RunStatus.COMPLETED, error)
        case Fail(own_requests=None):
            return _Step(Event.FAIL, RunStatus.FAILED, error)
        case _ if row.cancel_requested:  # with the reason of that
            return _Step(Event.STOP, RunStatus.CANCELLED, {})
        case Finish():
            return _Step(Event.STOP, RunStatus.CANCELLED, error)
        case Fail() if len(row.asked) <= (ending.own_requests or 0):
            return _Step(Event.FAIL, RunStatus.FAILED, error)
        case Fail():
            return _Step(Event.RETRY_LATER, RunStatus.RETRYING, uncounted, ending.delay_seconds)
        case Retry() if row.attempt < row.max_attempts:
            return _Step(Event.RETRY_LATER, RunStatus.RETRYING, error, ending.delay_seconds)
        case Retry():
            event = Event.COMPLETE if ending.at_last is RunStatus.COMPLETED else Event.FAIL
            return _Step(event, ending.at_last, error)
        case Block():
            # An approval holds for what the run met first, and for nothing later.
            brake = dict(ending.brake) if ending.brake else None
            return _Step(Event.BLOCK, RunStatus.BLOCKED, {**error, "brake": brake, "approval": None})
        case HandBack():
            priority = row.priority if ending.priority is None else ending.priority
            return _Step(Event.HAND_BACK, ending.outcome, uncounted | {"priority": priority}, ending.delay_seconds)
    raise NotImplementedError(ending)


def _is_same_wait(earlier: str | None, code: str | None, figures: RunFigures | None) -> bool:
    """Whether the attempt did nothing, for the reason of the one before."""
    worked = figures is not None and any(getattr(figures, name) for name in COUNTS)
    return not worked and code is not None and (code == earlier or {code, earlier} <= CANNOT_HERE)
