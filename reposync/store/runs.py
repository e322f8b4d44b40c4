"""The execution log, which is the queue as well: a run is a row, and the row is the truth about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RepositoryNotFound, RepoSyncError, RunCancelled
from reposync.store.asking import Asking
from reposync.store.attempts import (
    RELEASED,
    LostAttempt,
    RunAttempt,
    end_attempt,
    explain_attempt,
    fold_attempt,
    note_figures,
)
from reposync.store.blocked import close_blocked, stop_again
from reposync.store.claims import anything_to_claim, claimable_but_for, end_abandoned, shorten_leases, take
from reposync.store.columns import path_key
from reposync.store.database import QUEUE, Database
from reposync.store.fence import Attempt, held_by, hold, lease_lost
from reposync.store.repositories import lock_repository_by_id
from reposync.store.requests import (
    RunRequest,
    follow_requests,
    live_requests,
    new_run,
    pass_on,
    read_requests,
    use_up_approvals,
)
from reposync.store.retention import PURGED_AT_ONCE, date_back, forget_missed_ticks, purge_some
from reposync.store.run import HeartbeatState, Run, RunFigures, RunProblem, run_record
from reposync.store.status import FINAL, RunStatus, RunTrigger
from reposync.store.tables import PROBLEMS, REQUESTS, RUNS, is_over, status_is
from reposync.store.transitions import Event, locked, move

__all__ = ["HeartbeatState", "Run", "RunAttempt", "RunFigures", "RunProblem", "RunStatus", "RunTrigger", "Runs"]

CLAIM_TRIES = 5
MAX_MESSAGE_CHARS = 10_000
MAX_DETAIL_CHARS = 1_000


class Runs(Asking):
    """Every method raises StoreUnavailable; those that take a run as its worker raise LeaseLost once it is another's,
    and then have written nothing."""

    def __init__(
        self,
        database: Database,
        *,
        redact: Callable[[str], str] = str,
        on_lost: Callable[[LostAttempt], None] = lambda _: None,
    ) -> None:
        """`redact` takes secrets out of every reason that is written: servers quote what they were sent. `on_lost` is
        called for each attempt that a claim here found without its worker."""
        super().__init__(database)
        self._redact = redact
        self._on_lost = on_lost

    # Executing a run -----------------------------------------------------------------------------------------------

    async def claim(self, worker: str, lease_seconds: float, *, run_id: str | None = None) -> Run | None:
        """The first run that may be executed (by priority, then age), as this worker's for `lease_seconds`; None where
        there is none. With `run_id` that one or none. Never two runs of one repository. A run whose lease is over is
        taken over, unless it was to be cancelled or has used up its attempts: then it is ended."""
        for _ in range(CLAIM_TRIES):
            async with self._database.read() as connection:
                if not await anything_to_claim(connection, self._database, run_id):
                    return None
            try:
                async with self._database.write() as connection:
                    await shorten_leases(connection, self._database)
                    lost = await end_abandoned(connection, self._database)
                    run, before = await take(connection, self._database, worker, lease_seconds, run_id)
            except IntegrityError:
                continue  # the race for this repository is lost; another one may have work
            for attempt in [*lost, *before]:
                self._on_lost(attempt)
            return run
        return None

    async def expire(self, run: Attempt) -> None:
        """End the lease of a run whose worker is known to be gone: anybody may claim it then. Nothing happens where it
        is another attempt's by now."""
        over = update(RUNS).where(held_by(run)).values(lease_until=self._database.moment(-1.0))
        async with self._database.write() as connection:
            await connection.execute(over)
            await self._database.announce(connection, QUEUE)

    async def heartbeat(
        self,
        run: Attempt,
        lease_seconds: float,
        progress: Mapping[str, Any] | None = None,
        figures: RunFigures | None = None,
    ) -> HeartbeatState:
        """Keep the run for `lease_seconds` more from now, and tell those who follow it how far it is. `figures`: of
        this attempt so far."""
        said = {} if progress is None else {"progress": dict(progress)}
        query = update(RUNS).where(held_by(run)).values(lease_until=self._database.moment(lease_seconds), **said)
        async with self._database.write() as connection:
            answer = await connection.execute(query.returning(RUNS.c.lease_until, RUNS.c.cancel_requested))
            row = answer.one_or_none()
            if row is not None and figures is not None:
                totals = await note_figures(connection, run, figures)
                await connection.execute(update(RUNS).where(RUNS.c.id == run.id).values(**totals))
        if row is None:
            raise lease_lost(run)
        return HeartbeatState(row.lease_until, row.cancel_requested)

    async def explain_lost(self, run: Attempt, reason: RepoSyncError) -> None:
        """Why the attempt was lost, which could not be written while the database was away; nothing where it is known
        already."""
        async with self._database.write() as connection:
            await explain_attempt(connection, run, reason.code, self._told(str(reason)))

    async def tell_progress(self, run: Attempt, progress: Mapping[str, Any]) -> None:
        """Tell those who follow the run how far it is; its lease stays as it is. No index has this column, so that
        PostgreSQL updates the row in its page."""
        query = update(RUNS).where(held_by(run)).values(progress=dict(progress))
        async with self._database.write() as connection:
            told = await connection.execute(query)
        if not told.rowcount:
            raise lease_lost(run)

    async def others_wait(self, run: Run) -> bool:
        """Whether a run of another repository could be executed now, if there were a place for it."""
        async with self._database.read() as connection:
            return await claimable_but_for(connection, self._database, run.repository_id)

    async def finish(
        self,
        run: Attempt,
        status: RunStatus,
        figures: RunFigures,
        error_code: str | None = None,
        error_message: str | None = None,
        *,
        brake: Mapping[str, Any] | None = None,
        followed_up: bool = False,
    ) -> Run:
        """The end of the run; `status` is one of FINAL. Saying the same again is fine: the answer to the first time may
        have been lost on the way. `brake`: what a blocked run stopped at. `followed_up`: another run takes its place,
        and its requests, in the same transaction.

        One that is to be blocked while an earlier run of its repository is ends `cancelled`: the earlier one waits for
        a person with the requests of both. One that is completed closes the blocked one, which is cancelled or, where
        it is to do more, queued again.
        """
        if status not in FINAL:
            raise ValueError(f"{status} is not an end of a run")
        async with self._database.write() as connection:
            row = await self._held(connection, run)
            if row is not None:
                said = {"error_code": error_code, "error_message": self._told(error_message)}
                if followed_up and not row.cancel_requested:
                    await self._follow_up(connection, row)
                return await self._end(connection, row, status, figures, said, brake)
            same = select(RUNS).where(RUNS.c.id == run.id, RUNS.c.attempt == run.attempt, RUNS.c.worker == run.worker)
            # A stop that joined an earlier one was written as cancelled.
            ends = [status, RunStatus.CANCELLED] if status is RunStatus.BLOCKED else [status]
            before = (await connection.execute(same.where(RUNS.c.status.in_(ends)))).one_or_none()
        if before is None:
            raise lease_lost(run)
        return run_record(before)

    async def note_brake(self, run: Attempt, brake: Mapping[str, Any]) -> None:
        """What a deletion that was approved beforehand turned out to be: the approval holds for that alone."""
        async with self._database.write() as connection:
            row = (await connection.execute(locked(self._database, held_by(run)))).one_or_none()
            if row is None:
                raise lease_lost(run)
            await connection.execute(update(RUNS).where(RUNS.c.id == run.id).values(brake=dict(brake)))
            requests = (await read_requests(connection, [run.id])).get(run.id, [])
            given = [each.id for each in requests if each.approval is not None and each.approval in ({}, row.brake)]
            await connection.execute(update(REQUESTS).where(REQUESTS.c.id.in_(given)).values(approval=dict(brake)))

    async def retry_later(
        self,
        run: Attempt,
        delay_seconds: float,
        error_code: str,
        error_message: str,
        figures: RunFigures | None = None,
        *,
        at_last: RunStatus = RunStatus.FAILED,
        final_unless_others: str | None = None,
    ) -> Run:
        """Hand the run back to be tried again after `delay_seconds`, as `retrying`. It ends instead as `at_last` if
        this was its last attempt, as cancelled if nobody asks for it any more.

        `final_unless_others`: the id of the caller's own request, who would rather see the failure now than wait. The
        run ends as `at_last` where that is its only request; where others ask for it too, the attempt does not count.
        """
        async with self._database.write() as connection:
            row = await self._held(connection, run)
            if row is None:
                raise lease_lost(run)
            said = {"error_code": error_code, "error_message": self._told(error_message)}
            live = await live_requests(connection, row)
            if final_unless_others is None:
                counts, is_last = True, row.attempt >= row.max_attempts
            else:
                counts, is_last = False, not any(each.id != final_unless_others for each in live)
            if row.cancel_requested or is_last:
                status = RunStatus.CANCELLED if row.cancel_requested else at_last
                return await self._end(connection, row, status, figures or RunFigures(), said)
            waits = {**said, "not_before": self._database.moment(delay_seconds)}
            return await self._wait(
                connection, row, Event.RETRY_LATER, RunStatus.RETRYING, figures, waits, live, counts=counts
            )

    async def release(
        self,
        run: Attempt,
        figures: RunFigures | None = None,
        *,
        outcome: str = RELEASED,
        delay_seconds: float = 0.0,
        priority: int | None = None,
        reason: RepoSyncError | None = None,
    ) -> Run:
        """Hand the run back: this process is about to stop, or lets others go first. The attempt does not count. It
        ends as cancelled if nobody asks for it any more. `priority`: of all its requests from now on. `reason`: why,
        where it is nobody's will."""
        said: dict[str, Any] = {}
        if reason is not None:
            said = {"error_code": reason.code, "error_message": self._told(str(reason))}
        async with self._database.write() as connection:
            row = await self._held(connection, run)
            if row is None:
                raise lease_lost(run)
            if row.cancel_requested:
                said = said or {"error_code": RunCancelled.code, "error_message": "Nobody asks for it any more."}
                return await self._end(connection, row, RunStatus.CANCELLED, figures or RunFigures(), said)
            live = await live_requests(connection, row)
            if priority is not None:
                ids = [each.id for each in live]
                await connection.execute(update(REQUESTS).where(REQUESTS.c.id.in_(ids)).values(priority=priority))
                live = [replace(each, priority=priority) for each in live]
            waits = {**said, "not_before": self._database.moment(delay_seconds)}
            return await self._wait(connection, row, Event.HAND_BACK, outcome, figures, waits, live, counts=False)

    async def add_problems(self, run: Attempt, problems: Sequence[RunProblem]) -> None:
        """One row a file; a file that has one already gets the new one instead."""
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
                "detail": self._told(problem.detail, MAX_DETAIL_CHARS),
            }
            for problem in problems
        ]
        async with self._database.write() as connection:
            await hold(connection, run)
            await connection.execute(upsert, rows)

    async def forget_problems(self, run: Attempt, reason: str) -> None:
        """Those of earlier attempts, which this one looks at again."""
        async with self._database.write() as connection:
            await hold(connection, run)
            await connection.execute(delete(PROBLEMS).where(PROBLEMS.c.run_id == run.id, PROBLEMS.c.reason == reason))

    async def failures(self, repository_id: str, detail: str) -> dict[tuple[str, str], int]:
        """(key of a path, detail of its problem) -> in how many runs of the repository the file failed with it, of
        details that begin like this one."""
        query = (
            select(PROBLEMS.c.path, PROBLEMS.c.detail, func.count())
            .join(RUNS, RUNS.c.id == PROBLEMS.c.run_id)
            .where(RUNS.c.repository_id == repository_id, PROBLEMS.c.reason == "failed")
            .where(PROBLEMS.c.detail.startswith(detail, autoescape=True))
            .group_by(PROBLEMS.c.path, PROBLEMS.c.detail)
        )
        async with self._database.read() as connection:
            return {(row[0], row[1]): int(row[2]) for row in await connection.execute(query)}

    async def purge(self, before: datetime, *, at_once: int = PURGED_AT_ONCE) -> int:
        """Delete the runs that ended before that moment, with all that belongs to them, and the missed ticks that were
        noticed before it; how many runs. Blocked ones wait, and stay. `at_once`: how many in one transaction."""
        gone, after = 0, None
        async with self._database.write() as connection:
            await date_back(connection, self.now())
            await forget_missed_ticks(connection, before)
        while True:
            began = time.monotonic()
            async with self._database.write() as connection:
                page = await purge_some(connection, before, after, at_once)
            gone += len(page)
            if len(page) < at_once:
                return gone
            after = page[-1]
            # Half of the time for others: SQLite hands its lock to whoever happens to ask at the right moment.
            await asyncio.sleep(time.monotonic() - began)

    # -----------------------------------------------------------------------------------------------------------------

    def _told(self, text: str | None, limit: int = MAX_MESSAGE_CHARS) -> str | None:
        return _capped(None if text is None else self._redact(text), limit)

    async def _held(self, connection: AsyncConnection, run: Attempt) -> Row[Any] | None:
        """The run, locked, if it is still this attempt's; its repository's row is locked before it."""
        identity = await connection.scalar(select(RUNS.c.repository_id).where(RUNS.c.id == run.id))
        # A removal ends after the row is gone.
        with suppress(RepositoryNotFound):
            await lock_repository_by_id(connection, str(identity), str(identity))
        row: Row[Any] | None = (await connection.execute(locked(self._database, held_by(run)))).one_or_none()
        return row

    async def _wait(
        self,
        connection: AsyncConnection,
        row: Row[Any],
        event: Event,
        outcome: str,
        figures: RunFigures | None,
        said: Mapping[str, Any],
        live: Sequence[RunRequest],
        *,
        counts: bool,
    ) -> Run:
        code, message = said.get("error_code"), said.get("error_message")
        totals = await end_attempt(connection, self._database, row, outcome, figures, code, message)
        if event is Event.HAND_BACK and code is not None:
            await fold_attempt(connection, row)
        handed_back = row.handed_back if counts else row.handed_back + 1
        row = await move(connection, self._database, row, event, **said, **totals, handed_back=handed_back)
        return run_record(await follow_requests(connection, row, live))

    async def _end(
        self,
        connection: AsyncConnection,
        row: Row[Any],
        status: RunStatus,
        figures: RunFigures,
        said: Mapping[str, Any],
        brake: Mapping[str, Any] | None = None,
    ) -> Run:
        event = _ENDS[status]
        others = []
        if status in (RunStatus.BLOCKED, RunStatus.COMPLETED):
            blocked = and_(RUNS.c.repository_id == row.repository_id, is_over(), status_is(RunStatus.BLOCKED))
            found = (await connection.execute(locked(self._database, blocked))).all()
            others = sorted(found, key=lambda each: each.queued_at, reverse=True)
        changes = dict(said)
        if event is Event.BLOCK and brake is not None:
            changes |= {"brake": dict(brake), "approved": False}
            await use_up_approvals(connection, row)
        if event is Event.BLOCK and row.cancel_requested:
            event = Event.STOP
        elif event is Event.BLOCK and others:
            event = Event.STOP
            await stop_again(connection, self._database, row, others, changes)
            changes["error_message"] = _capped(f"{changes['error_message']} Run {others[0].id} waits for a person.")
        elif event is Event.COMPLETE:
            await close_blocked(connection, self._database, row, others)
        why = changes.get("error_code"), changes.get("error_message")
        totals = await end_attempt(connection, self._database, row, _STATUS[event], figures, *why)
        commits = {"commit_before": figures.commit_before, "commit_after": figures.commit_after}
        return run_record(await move(connection, self._database, row, event, **changes, **commits, **totals))

    async def _follow_up(self, connection: AsyncConnection, row: Row[Any]) -> None:
        """The requests of the run, which is about to end, are those of the run that comes next."""
        live = await live_requests(connection, row)
        following = await self._next(connection, row.repository_id)
        there = [] if following is None else await live_requests(connection, following)
        if following is None:
            now = self._database.moment()
            new = insert(RUNS).values(**new_run(row.repository_id, row.repository, now, live))
            following = (await connection.execute(new.returning(*RUNS.c))).one()
        await pass_on(connection, self._database, live, following, there)
        await self._database.announce(connection, QUEUE)


_ENDS = {
    RunStatus.COMPLETED: Event.COMPLETE,
    RunStatus.FAILED: Event.FAIL,
    RunStatus.CANCELLED: Event.STOP,
    RunStatus.BLOCKED: Event.BLOCK,
}
_STATUS = {event: status for status, event in _ENDS.items()}


def _capped(text: str | None, limit: int = MAX_MESSAGE_CHARS) -> str | None:
    return text if text is None or len(text) <= limit else text[: limit - 1] + "…"
