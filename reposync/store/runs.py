"""The execution log, which is the queue as well: a run is a row, and the row is the truth about it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from sqlalchemy import case, delete, insert, not_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RepositoryNotFound, RepoSyncError, RunStateConflict
from reposync.store.attempts import RELEASED, RunAttempt, end_attempt, note_figures
from reposync.store.claims import (
    CLAIM_ORDER,
    MAX_ATTEMPTS,
    anything_to_claim,
    claimable_but_for,
    end_abandoned,
    new_run,
    seconds_between,
    take,
)
from reposync.store.columns import path_key
from reposync.store.database import QUEUE
from reposync.store.fence import Attempt, held_by, hold, lease_lost
from reposync.store.history import RunHistory, no_such_run
from reposync.store.repositories import lock_repository, lock_repository_by_id
from reposync.store.retention import PURGED_AT_ONCE, purge_some
from reposync.store.run import HeartbeatState, Run, RunFigures, RunProblem, run_record
from reposync.store.status import FINAL, PRIORITIES, WAITING, RunStatus, RunTrigger
from reposync.store.tables import PROBLEMS, RUNS, is_active, status_is

__all__ = ["HeartbeatState", "Run", "RunAttempt", "RunFigures", "RunProblem", "RunStatus", "RunTrigger", "Runs"]

CLAIM_TRIES = 5
MAX_MESSAGE_CHARS = 10_000
MAX_DETAIL_CHARS = 1_000


class Runs(RunHistory):
    """Every method raises StoreUnavailable; those that take a run as its worker raise LeaseLost once it is another's,
    and then have written nothing."""

    # Asking for a run ----------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        repository: str,
        trigger: RunTrigger,
        *,
        full: bool = False,
        approved: bool = False,
        removal: bool = False,
        repair: bool = False,
        priority: int | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        within: AsyncConnection | None = None,
    ) -> tuple[Run, bool]:
        """A run of the repository of that name, and whether it is a new one (for ticks see `Ticks`).

        One that waits already is returned instead, and takes over what this call asks for besides: full, approved,
        removal (of the repository, in place of a sync), repair, the better priority, and no further wait before it is
        tried again. `within`: as a part of that transaction. Raises RepositoryNotFound.
        """
        async with self._database.write() if within is None else nullcontext(within) as connection:
            identity = await lock_repository(connection, repository)
            waiting = (
                select(RUNS.c.id)
                .where(RUNS.c.repository_id == identity, is_active(), status_is(*WAITING))
                .order_by(*CLAIM_ORDER)
                .limit(1)
                .with_for_update()
            )
            found = await connection.scalar(waiting)
            now = self._database.moment()
            asked = {"full": full, "approved": approved, "removal": removal, "repair": repair}
            new = new_run(identity, repository, trigger, now, priority=priority, max_attempts=max_attempts, **asked)
            await self._database.announce(connection, QUEUE)
            if found is None:
                return run_record((await connection.execute(insert(RUNS).values(**new).returning(*RUNS.c))).one()), True
            rank = new["priority"]
            wanted: dict[str, Any] = {
                "priority": case((RUNS.c.priority > rank, rank), else_=RUNS.c.priority),
                "not_before": case((RUNS.c.not_before > now, now), else_=RUNS.c.not_before),
            }
            wanted |= {key: True for key, value in asked.items() if value}
            if removal or repair:  # a removal that repairs is another thing: see `leftovers`
                wanted["repair"] = False if removal else not_(RUNS.c.removal)
            return await self._change(connection, found, wanted), False

    async def request_cancel(self, run_id: str) -> Run:
        """A waiting or blocked run ends at once; a running one is told at its next heartbeat, and ends by itself if its
        worker is gone; a finished one stays as it is. Raises RunNotFound."""
        async with self._database.write() as connection:
            run = await self._locked(connection, run_id)
            if run.status is RunStatus.RUNNING:
                return await self._change(connection, run.id, {"cancel_requested": True})
            if run.status in WAITING or run.status is RunStatus.BLOCKED:
                ending = {"status": RunStatus.CANCELLED, "cancel_requested": True}
                return await self._change(connection, run.id, {**ending, "completed_at": self._database.moment()})
            return run

    async def approve(self, run_id: str, *, max_attempts: int = MAX_ATTEMPTS) -> Run:
        """A person allows what a blocked run stopped at: it waits again, with so many attempts more and before what the
        clock asks for. Raises RunNotFound, RunStateConflict where it is not blocked, RepositoryNotFound where the
        repository was removed."""
        return await self._again(
            run_id,
            {RunStatus.BLOCKED},
            max_attempts,
            "only a blocked run can be approved",
            remedy="`reposync sync {run.repository} --allow-mass-delete` starts a new one.",
            approved=True,
        )

    async def retry(self, run_id: str, *, max_attempts: int = MAX_ATTEMPTS) -> Run:
        """A person sends a run that failed or was cancelled back into the queue, with so many attempts more and before
        what the clock asks for. Raises RunNotFound, RunStateConflict where it is in no such state,
        RepositoryNotFound."""
        return await self._again(
            run_id,
            {RunStatus.FAILED, RunStatus.CANCELLED},
            max_attempts,
            "only a failed or cancelled run can be tried again",
            remedy="`reposync sync {run.repository}` starts a new one.",
            error_code=None,
            error_message=None,
            cancel_requested=False,
        )

    async def _again(
        self,
        run_id: str,
        fitting: Collection[RunStatus],
        max_attempts: int,
        words: str,
        *,
        remedy: str,
        **changes: Any,
    ) -> Run:
        seen = await self.get(run_id)
        async with self._database.write() as connection:
            await lock_repository_by_id(connection, seen.repository_id, seen.repository)
            run = await self._locked(connection, seen.id)
            if run.status not in fitting:
                raise RunStateConflict(f"Run {run.id} is {run.status}, and {words}.", remedy=remedy.format(run=run))
            again = {
                "max_attempts": run.attempt + max_attempts,
                "priority": min(run.priority, PRIORITIES[RunTrigger.COMMAND]),
                "completed_at": None,
                "duration_seconds": None,
            }
            return await self._wait_again(connection, run, again | changes)

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
                    await end_abandoned(connection, self._database)
                    return await take(connection, self._database, worker, lease_seconds, run_id)
            except IntegrityError:
                continue  # the race for this repository is lost; another one may have work
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
        queued in the same transaction."""
        if status not in FINAL:
            raise ValueError(f"{status} is not an end of a run")
        async with self._database.write() as connection:
            if followed_up:
                await self._lock_repository_of(connection, run)
            ended = await self._end(connection, run, status, figures, error_code, error_message)
            if ended is not None:
                if brake is not None:
                    changes = {"brake": dict(brake), "approved": False}
                    ended = await self._change(connection, ended.id, changes)
                if followed_up:
                    asked = {"full": ended.full, "approved": ended.approved and ended.brake is None}
                    await self.enqueue(ended.repository, ended.trigger, **asked, within=connection)
                return ended
            same = select(RUNS).where(
                RUNS.c.id == run.id, RUNS.c.attempt == run.attempt, RUNS.c.worker == run.worker, RUNS.c.status == status
            )
            before = (await connection.execute(same)).one_or_none()
        if before is None:
            raise lease_lost(run)
        return run_record(before)

    async def _lock_repository_of(self, connection: AsyncConnection, run: Attempt) -> None:
        """Before the run's own row: the order that all keep."""
        identity = await connection.scalar(select(RUNS.c.repository_id).where(RUNS.c.id == run.id))
        await lock_repository_by_id(connection, str(identity), str(identity))

    async def note_brake(self, run: Attempt, brake: Mapping[str, Any]) -> None:
        """What a deletion that was approved beforehand turned out to be: the approval holds for that alone."""
        async with self._database.write() as connection:
            noted = await connection.execute(update(RUNS).where(held_by(run)).values(brake=dict(brake)))
        if not noted.rowcount:
            raise lease_lost(run)

    async def retry_later(
        self,
        run: Attempt,
        delay_seconds: float,
        error_code: str,
        error_message: str,
        figures: RunFigures | None = None,
        *,
        at_last: RunStatus = RunStatus.FAILED,
    ) -> Run:
        """Hand the run back to be tried again after `delay_seconds`, as `retrying`. It ends instead as `at_last` if
        this was its last attempt, as cancelled if a person asked for that."""
        async with self._database.write() as connection:
            row = (await connection.execute(select(RUNS).where(held_by(run)).with_for_update())).one_or_none()
            if row is None:
                raise lease_lost(run)
            if row.cancel_requested or row.attempt >= row.max_attempts:
                status = RunStatus.CANCELLED if row.cancel_requested else at_last
                ended = await self._end(connection, run, status, figures or RunFigures(), error_code, error_message)
                if ended is None:
                    raise lease_lost(run)
                return ended
            said = {"error_code": error_code, "error_message": _capped(error_message)}
            totals = await end_attempt(connection, self._database, run, RunStatus.RETRYING, figures, **said)
            waits = {"status": RunStatus.RETRYING, "not_before": self._database.moment(delay_seconds)}
            return await self._change(connection, run.id, {**waits, **totals, **said, "lease_until": None})

    async def release(
        self,
        run: Run,
        figures: RunFigures | None = None,
        *,
        outcome: str = RELEASED,
        delay_seconds: float = 0.0,
        priority: int | None = None,
        reason: RepoSyncError | None = None,
    ) -> Run:
        """Hand the run back: this process is about to stop, or lets others go first. The attempt does not count. It
        ends as cancelled if a person asked for that. `reason`: why, where it is nobody's will."""
        code, message = (reason.code, _capped(str(reason))) if reason is not None else (None, None)
        async with self._database.write() as connection:
            try:
                await lock_repository_by_id(connection, run.repository_id, run.repository)
            except RepositoryNotFound as error:
                raise lease_lost(run) from error
            row = (await connection.execute(select(RUNS).where(held_by(run)).with_for_update())).one_or_none()
            if row is None:
                raise lease_lost(run)
            if row.cancel_requested:
                ended = await self._end(connection, run, RunStatus.CANCELLED, figures or RunFigures(), None, None)
                return ended or run_record(row)
            totals = await end_attempt(connection, self._database, run, outcome, figures, code, message)
            changes: dict[str, Any] = {"max_attempts": RUNS.c.max_attempts + 1, **totals}
            if priority is not None:
                changes["priority"] = priority
            if reason is not None:
                changes |= {"error_code": code, "error_message": message}
            return await self._wait_again(connection, run, changes, delay_seconds)

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
                "detail": _capped(problem.detail, MAX_DETAIL_CHARS),
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

    async def purge(self, before: datetime, *, at_once: int = PURGED_AT_ONCE) -> int:
        """Delete the runs that ended before that moment, with their attempts and problems; how many. Blocked ones wait,
        and stay; so does the run of each repository's latest tick, which is how every pod knows that it was handled.
        `at_once`: how many in one transaction."""
        gone, after = 0, None
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

    async def _end(
        self,
        connection: AsyncConnection,
        run: Attempt,
        status: RunStatus,
        figures: RunFigures,
        error_code: str | None,
        error_message: str | None,
    ) -> Run | None:
        query = select(RUNS.c.started_at, self._database.moment().label("now")).where(held_by(run)).with_for_update()
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        ending = {
            "status": status,
            "completed_at": row.now,
            "duration_seconds": seconds_between(row.started_at, row.now),
            "lease_until": None,
            "error_code": error_code,
            "error_message": _capped(error_message),
        }
        totals = await end_attempt(
            connection, self._database, run, status, figures, error_code, ending["error_message"]
        )
        commits = {"commit_before": figures.commit_before, "commit_after": figures.commit_after}
        return await self._change(connection, run.id, {**ending, **commits, **totals})

    async def _wait_again(
        self, connection: AsyncConnection, run: Run, changes: Mapping[str, Any], delay_seconds: float = 0.0
    ) -> Run:
        """Queued, or retrying where another run of the repository is queued since: there is one place for `queued`. The
        caller has locked the repository."""
        taken = await connection.scalar(
            select(RUNS.c.id).where(
                RUNS.c.repository_id == run.repository_id, status_is(RunStatus.QUEUED), RUNS.c.id != run.id
            )
        )
        status = RunStatus.RETRYING if taken else RunStatus.QUEUED
        waits = {"status": status, "not_before": self._database.moment(delay_seconds)}
        await self._database.announce(connection, QUEUE)
        return await self._change(connection, run.id, {**waits, "lease_until": None, **changes})

    async def _change(self, connection: AsyncConnection, run_id: str, changes: Mapping[str, Any]) -> Run:
        query = update(RUNS).where(RUNS.c.id == run_id).values(**changes).returning(*RUNS.c)
        return run_record((await connection.execute(query)).one())

    async def _locked(self, connection: AsyncConnection, run_id: str) -> Run:
        found = await self._found(connection, run_id)
        row = (await connection.execute(select(RUNS).where(RUNS.c.id == found.id).with_for_update())).one_or_none()
        if row is None:  # purged in between
            raise no_such_run(run_id)
        return run_record(row)


def _capped(text: str | None, limit: int = MAX_MESSAGE_CHARS) -> str | None:
    return text if text is None or len(text) <= limit else text[: limit - 1] + "…"
