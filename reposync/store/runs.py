"""The execution log, which is also the queue: executing a run, and recording its progress and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, delete, exists, or_, select, update
from sqlalchemy.exc import IntegrityError

from reposync.errors import DefinitionChanged, RunCancelled
from reposync.store.attempts import (
    REPOSITORY_REMOVED,
    anything_to_claim,
    change_attempt,
    end_abandoned,
    fence,
    fold_attempt,
    held_by,
    is_attempt,
    lease_lost,
    others_claimable,
    shorten_waits,
    take,
    total_counts,
)
from reposync.store.columns import MAX_MESSAGE_CHARS, path_key, truncate
from reposync.store.database import QUEUE, Connection, Database
from reposync.store.repositories import lock_repositories
from reposync.store.run import IN_ADVANCE, STOPPING, LostAttempt, Released, Run, RunFigures, RunProblem
from reposync.store.run_queue import RunQueue
from reposync.store.run_state import (
    Event,
    add_run,
    apply_requests,
    attempt_end,
    change_requests,
    derive,
    live_requests,
    locked,
    move,
    read_requests,
    transfer_requests,
)
from reposync.store.status import RELEASED, RunStatus
from reposync.store.tables import ATTEMPTS, PROBLEMS, REPOSITORIES, REQUESTS, RUNS, is_over, status_is

CLAIM_TRIES = 5
MAX_DETAIL_CHARS = 1_000

_ENDS = {
    RunStatus.COMPLETED: Event.COMPLETE,
    RunStatus.FAILED: Event.FAIL,
    RunStatus.CANCELLED: Event.STOP,
    RunStatus.BLOCKED: Event.BLOCK,
}
_STATUS = {event: status for status, event in _ENDS.items()}


class Runs(RunQueue):
    """Methods that take a run raise LeaseLost once a different worker has it, and then have written nothing. The end
    of an attempt (`finish`, `retry_later`, `release`) may be written again: the first answer may have been lost."""

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
        With `run_id` only that run. Never two runs of one repository. A run whose lease ended is taken over, or ended
        if it was to be cancelled or has no attempt left."""
        for _ in range(CLAIM_TRIES):
            async with self._database.read() as connection:
                if not await anything_to_claim(connection, run_id):
                    return None
            try:
                async with self._database.write() as connection:
                    await shorten_waits(connection)
                    lost = await end_abandoned(connection)
                    run, before = await take(connection, worker, lease_seconds, run_id)
            except IntegrityError:
                continue  # a different worker was faster; there may be other runs
            for attempt in [*lost, *before]:
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
                totals = await total_counts(connection, run.id, is_over=False)
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
        await self._database.change(unknown.values(**self._error(error_code, error_message)))

    async def finish(
        self,
        run: Run,
        status: RunStatus,
        figures: RunFigures,
        error_code: str | None = None,
        error_message: str | None = None,
        *,
        brake: Mapping[str, Any] | None = None,
        followed_up: bool = False,
    ) -> Run:
        """End the run; `status` is one of FINAL. `brake`: what a blocked run stopped at. `followed_up`: its requests
        move to a new run in the same transaction.

        A run that is to be blocked while an earlier run of its repository is blocked ends `cancelled`: the earlier one
        gets its requests. A completed run ends the blocked one, which is cancelled, or queued again if it has to do
        more.
        """
        async with self._database.write() as connection:
            row = await self._held(connection, run)
            if row is not None:
                if followed_up and not row.cancel_requested:
                    await self._follow_up(connection, row)
                return await self._end(connection, row, status, figures, self._error(error_code, error_message), brake)
            # A block that joined an earlier one was written as cancelled.
            ends = [status, RunStatus.CANCELLED] if status is RunStatus.BLOCKED else [status]
            return await self._ended_before(connection, run, ends)

    async def record_brake(self, run: Run, brake: Mapping[str, Any]) -> None:
        """Bind approvals that were given beforehand to the deletion that the run met."""
        async with self._database.write() as connection:
            row = await self._require_held(connection, run)
            await connection.execute(update(RUNS).where(RUNS.c.id == run.id).values(brake=dict(brake)))
            requests = (await read_requests(connection, [run.id])).get(run.id, [])
            given = [each.id for each in requests if each.approval and each.approval in (IN_ADVANCE, row.brake)]
            await change_requests(connection, given, approval=dict(brake))

    async def retry_later(
        self,
        run: Run,
        delay_seconds: float,
        error_code: str,
        error_message: str,
        figures: RunFigures | None = None,
        *,
        at_last: RunStatus = RunStatus.FAILED,
        final_unless_others: str | None = None,
    ) -> Run:
        """Hand the run back, as `retrying`, to be tried again after `delay_seconds`. Instead it ends as `at_last` if
        this was its last attempt, and as cancelled if no request is live.

        `final_unless_others`: the id of the caller's own request, if the caller prefers the failure to a wait. The run
        ends as `at_last` if this is its only live request; otherwise the attempt does not count.
        """
        async with self._database.write() as connection:
            if (row := await self._held(connection, run)) is None:
                return await self._ended_before(connection, run, [RunStatus.RETRYING, at_last, RunStatus.CANCELLED])
            error = self._error(error_code, error_message)
            if counts := final_unless_others is None:
                is_last = row.attempt >= row.max_attempts
            else:
                live = await live_requests(connection, row.id)
                is_last = not any(each.id != final_unless_others for each in live)
            if row.cancel_requested or is_last:
                status = RunStatus.CANCELLED if row.cancel_requested else at_last
                return await self._end(connection, row, status, figures or RunFigures(), error)
            waits = {**error, "not_before": self._database.moment(delay_seconds)}
            return await self._wait(
                connection, row, Event.RETRY_LATER, RunStatus.RETRYING, figures, waits, counts=counts
            )

    async def release(self, run: Run, figures: RunFigures | None = None, how: Released = STOPPING) -> Run:
        """Hand the run back. It ends as cancelled if no request is live."""
        error = {} if how.reason is None else self._error(how.reason.code, str(how.reason))
        async with self._database.write() as connection:
            if (row := await self._held(connection, run)) is None:
                return await self._ended_before(connection, run, [how.outcome, RunStatus.CANCELLED])
            if row.cancel_requested:
                error = error or {"error_code": RunCancelled.code, "error_message": "All its requests were withdrawn."}
                return await self._end(connection, row, RunStatus.CANCELLED, figures or RunFigures(), error)
            if how.priority is not None:
                mine = update(REQUESTS).where(REQUESTS.c.run_id == run.id)
                await connection.execute(mine.values(priority=how.priority))
            waits = {**error, "not_before": self._database.moment(how.delay_seconds)}
            return await self._wait(connection, row, Event.HAND_BACK, how.outcome, figures, waits, False)

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

    def _error(self, code: str | None, message: str | None) -> dict[str, Any]:
        return {"error_code": code, "error_message": None if message is None else self._message(message)}

    async def _held(self, connection: Connection, run: Run) -> Row[Any] | None:
        """The run, locked, if it is still this attempt's. Its repository's row, if there is one, is locked first."""
        await lock_repositories(connection, REPOSITORIES.c.id == run.repository_id, [REPOSITORIES.c.id])
        return await connection.one_or_none(locked(connection, held_by(run)))

    async def _require_held(self, connection: Connection, run: Run) -> Row[Any]:
        if (row := await self._held(connection, run)) is None:
            raise lease_lost(run)
        return row

    async def _ended_before(self, connection: Connection, run: Run, outcomes: Sequence[str]) -> Run:
        """The run as it is now, if an earlier call has ended this attempt so. Raises LeaseLost."""
        by_itself = ATTEMPTS.c.worker == run.worker, ATTEMPTS.c.error_code.is_distinct_from(REPOSITORY_REMOVED)
        ended: ColumnElement[bool] = exists().where(is_attempt(run), *by_itself, ATTEMPTS.c.outcome.in_(outcomes))
        if RELEASED in outcomes:  # a missing row was merged with that of an earlier attempt
            ended = or_(ended, ~exists().where(is_attempt(run)))
        row = await connection.one_or_none(select(RUNS).where(RUNS.c.id == run.id, ended))
        if row is None:
            raise lease_lost(run)
        return Run.of(row)

    async def _wait(
        self,
        connection: Connection,
        row: Row[Any],
        event: Event,
        outcome: str,
        figures: RunFigures | None,
        columns: Mapping[str, Any],
        counts: bool,
    ) -> Run:
        totals = await self._end_attempt(connection, row, outcome, figures, columns)
        if event is Event.HAND_BACK and "error_code" in columns:
            await fold_attempt(connection, row)
        handed_back = row.handed_back if counts else row.handed_back + 1
        row = await move(connection, row, event, **columns, **totals, handed_back=handed_back)
        return Run.of(await apply_requests(connection, row))

    async def _end(
        self,
        connection: Connection,
        row: Row[Any],
        status: RunStatus,
        figures: RunFigures,
        error: Mapping[str, Any],
        brake: Mapping[str, Any] | None = None,
    ) -> Run:
        event, changes = _ENDS[status], dict(error)
        blocked: Row[Any] | None = None
        if event in (Event.BLOCK, Event.COMPLETE):  # which is one at most
            which = and_(RUNS.c.repository_id == row.repository_id, is_over(), status_is(RunStatus.BLOCKED))
            blocked = next(iter(await connection.rows(locked(connection, which))), None)
        if event is Event.COMPLETE and blocked is not None:
            await self._close_blocked(connection, row, blocked)
        elif event is Event.BLOCK:
            changes |= {"brake": dict(brake) if brake else None, "approved": False}
            # What was approved in advance holds for what the run met first and for nothing later.
            given = [each.id for each in await live_requests(connection, row.id) if each.approval == IN_ADVANCE]
            await change_requests(connection, given, approval=None)
            if row.cancel_requested:
                event = Event.STOP
            elif blocked is not None:
                event = Event.STOP
                await self._block_again(connection, row, blocked, changes)
                message = f"{changes['error_message'] or ''} Run {blocked.id} waits for a person."
                changes["error_message"] = truncate(message.strip())
        totals = await self._end_attempt(connection, row, _STATUS[event], figures, changes)
        return Run.of(await move(connection, row, event, **changes, commit_after=figures.commit_after, **totals))

    async def _end_attempt(
        self, connection: Connection, row: Row[Any], outcome: str, figures: RunFigures | None, error: Mapping[str, Any]
    ) -> dict[str, int]:
        why = {key: error[key] for key in ("error_code", "error_message") if key in error}
        await change_attempt(connection, row, figures, outcome=outcome, ended_at=attempt_end(row), **why)
        return await total_counts(connection, row.id)

    async def _block_again(
        self, connection: Connection, stopped: Row[Any], blocked: Row[Any], changes: Mapping[str, Any]
    ) -> None:
        """`stopped` met a brake and is about to end: the `blocked` run of its repository represents it from now on."""
        await transfer_requests(connection, stopped, blocked)
        await apply_requests(connection, await move(connection, blocked, Event.BLOCK, **changes))

    async def _close_blocked(self, connection: Connection, completed: Row[Any], blocked: Row[Any]) -> None:
        """`completed` did the work of the blocked run of its repository; if that has more to do, it is queued again."""
        wanted = derive(await live_requests(connection, blocked.id), brake=None, handed_back=0)
        if any(wanted.get(flag) and not getattr(completed, flag) for flag in ("full", "repair", "removal")):
            again = {"not_before": self._database.moment(), "brake": None}
            await apply_requests(connection, await move(connection, blocked, Event.APPROVE, **again))
            return
        error = {"error_code": DefinitionChanged.code, "error_message": f"Run {completed.id} was completed since."}
        await move(connection, blocked, Event.STOP, **error)

    async def _follow_up(self, connection: Connection, row: Row[Any]) -> None:
        """Move the requests of the run, which is about to end, to the next run."""
        following = await self._next(connection, row.repository_id)
        if following is None:
            live = await live_requests(connection, row.id)
            following = await add_run(connection, row.repository_id, row.repository, live)
        await transfer_requests(connection, row, following)
        await connection.announce(QUEUE)
