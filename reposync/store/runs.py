"""The execution log, which is the queue as well: a run is a row, and the row is the truth about it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import case, delete, func, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RepositoryNotFound, RunNotFound, UsageError
from reposync.store.claims import CLAIM_ORDER, anything_to_claim, end_abandoned, seconds_between, take
from reposync.store.columns import path_key
from reposync.store.database import Database
from reposync.store.fence import Attempt, held_by, hold, lease_lost
from reposync.store.repositories import lock_repository, repository_id
from reposync.store.run import HeartbeatState, Run, RunFigures, RunProblem, parse_cursor, run_record
from reposync.store.status import ACTIVE, FINAL, PRIORITIES, WAITING, RunStatus, RunTrigger
from reposync.store.tables import PROBLEMS, RUNS

__all__ = ["HeartbeatState", "Run", "RunFigures", "RunProblem", "RunStatus", "RunTrigger", "Runs"]

MAX_ATTEMPTS = 3
CLAIM_TRIES = 5
MAX_MESSAGE_CHARS = 10_000
MAX_DETAIL_CHARS = 1_000
MAX_PAGE = 1_000


class Runs:
    """Every method raises StoreUnavailable; those that take a run as its worker raise LeaseLost once it is another's,
    and then have written nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Asking for a run ----------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        repository: str,
        trigger: RunTrigger,
        *,
        scheduled_for: datetime | None = None,
        full: bool = False,
        approved: bool = False,
        priority: int | None = None,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> tuple[Run, bool]:
        """A run of the repository of that name, and whether it is a new one.

        One that waits already is returned instead, and takes over what this call asks for besides: full, approved, the
        better priority, the tick, and (except for a tick) no further wait before it is tried again. A tick that is not
        later than the latest one in the log was handled before: the run that did is returned, however it ended.
        Raises RepositoryNotFound.
        """
        async with self._database.write() as connection:
            identity = await lock_repository(connection, repository)
            mine = RUNS.c.repository_id == identity
            if scheduled_for is not None:
                latest = select(RUNS).where(mine, RUNS.c.scheduled_for >= scheduled_for)
                handled = (await connection.execute(latest.order_by(RUNS.c.scheduled_for).limit(1))).one_or_none()
                if handled is not None:
                    return run_record(handled), False
            rank = PRIORITIES[trigger] if priority is None else priority
            waiting = (
                select(RUNS.c.id)
                .where(mine, RUNS.c.status.in_(WAITING))
                .order_by(*CLAIM_ORDER)
                .limit(1)
                .with_for_update()
            )
            found = await connection.scalar(waiting)
            now = self._database.moment()
            if found is None:
                new = insert(RUNS).values(
                    id=str(uuid.uuid4()),
                    repository_id=identity,
                    repository=repository,
                    status=RunStatus.QUEUED,
                    trigger=trigger,
                    priority=rank,
                    scheduled_for=scheduled_for,
                    not_before=now,
                    queued_at=now,
                    full=full,
                    approved=approved,
                    max_attempts=max_attempts,
                )
                return run_record((await connection.execute(new.returning(*RUNS.c))).one()), True
            wanted: dict[str, Any] = {"priority": case((RUNS.c.priority > rank, rank), else_=RUNS.c.priority)}
            if scheduled_for is not None:
                wanted["scheduled_for"] = scheduled_for
            else:
                wanted["not_before"] = case((RUNS.c.not_before > now, now), else_=RUNS.c.not_before)
            if full:
                wanted["full"] = True
            if approved:
                wanted["approved"] = True
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

    async def approve(self, run_id: str) -> Run:
        """A person allows what a blocked run stopped at: it waits again, with as many attempts as before. Raises
        RunNotFound, UsageError where it is not blocked, RepositoryNotFound where the repository was removed."""
        seen = await self.get(run_id)
        async with self._database.write() as connection:
            await lock_repository(connection, seen.repository)
            run = await self._locked(connection, seen.id)
            if run.status is not RunStatus.BLOCKED:
                raise UsageError(
                    f"Run {run.id} is {run.status}, and only a blocked run can be approved.",
                    remedy=f"`reposync sync {run.repository} --allow-mass-delete` starts a new one.",
                )
            again = {"approved": True, "max_attempts": run.attempt + MAX_ATTEMPTS, "completed_at": None}
            return await self._wait_again(connection, run, again)

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

    async def heartbeat(self, run: Attempt, lease_seconds: float) -> HeartbeatState:
        """Keep the run for `lease_seconds` more from now."""
        query = update(RUNS).where(held_by(run)).values(lease_until=self._database.moment(lease_seconds))
        async with self._database.write() as connection:
            answer = await connection.execute(query.returning(RUNS.c.lease_until, RUNS.c.cancel_requested))
            row = answer.one_or_none()
        if row is None:
            raise lease_lost(run)
        return HeartbeatState(row.lease_until, row.cancel_requested)

    async def progress(self, run: Attempt, progress: Mapping[str, Any]) -> None:
        """What the run is at, for whoever follows it. Replaces what was said before."""
        async with self._database.write() as connection:
            answer = await connection.execute(update(RUNS).where(held_by(run)).values(progress=dict(progress)))
        if not answer.rowcount:
            raise lease_lost(run)

    async def finish(
        self,
        run: Attempt,
        status: RunStatus,
        figures: RunFigures,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> Run:
        """The end of the run; `status` is one of FINAL. Saying the same again is fine: the answer to the first time may
        have been lost on the way."""
        if status not in FINAL:
            raise ValueError(f"{status} is not an end of a run")
        async with self._database.write() as connection:
            ended = await self._end(connection, run, status, figures, error_code, error_message)
            if ended is not None:
                return ended
            same = select(RUNS).where(
                RUNS.c.id == run.id, RUNS.c.attempt == run.attempt, RUNS.c.worker == run.worker, RUNS.c.status == status
            )
            before = (await connection.execute(same)).one_or_none()
        if before is None:
            raise lease_lost(run)
        return run_record(before)

    async def retry_later(
        self,
        run: Attempt,
        delay_seconds: float,
        error_code: str,
        error_message: str,
        figures: RunFigures | None = None,
    ) -> Run:
        """Hand the run back to be tried again after `delay_seconds`, as `retrying`. It ends instead as failed if this
        was its last attempt, as cancelled if a person asked for that."""
        async with self._database.write() as connection:
            row = (await connection.execute(select(RUNS).where(held_by(run)).with_for_update())).one_or_none()
            if row is None:
                raise lease_lost(run)
            figures = figures or RunFigures()
            if row.cancel_requested or row.attempt >= row.max_attempts:
                status = RunStatus.CANCELLED if row.cancel_requested else RunStatus.FAILED
                ended = await self._end(connection, run, status, figures, error_code, error_message)
                if ended is None:
                    raise lease_lost(run)
                return ended
            waits = {"status": RunStatus.RETRYING, "not_before": self._database.moment(delay_seconds)}
            said = {**asdict(figures), "error_code": error_code, "error_message": _capped(error_message)}
            return await self._change(connection, run.id, {**waits, **said, "lease_until": None})

    async def release(self, run: Run) -> Run:
        """Hand the run back untouched, because this process is about to stop; the attempt does not count. It ends as
        cancelled if a person asked for that."""
        async with self._database.write() as connection:
            try:
                await lock_repository(connection, run.repository)
            except RepositoryNotFound as error:
                raise lease_lost(run) from error
            row = (await connection.execute(select(RUNS).where(held_by(run)).with_for_update())).one_or_none()
            if row is None:
                raise lease_lost(run)
            if row.cancel_requested:
                ended = await self._end(connection, run, RunStatus.CANCELLED, RunFigures(), None, None)
                return ended or run_record(row)
            return await self._wait_again(connection, run, {"max_attempts": RUNS.c.max_attempts + 1})

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

    # Reading -------------------------------------------------------------------------------------------------------

    async def get(self, run_id: str) -> Run:
        """By id or by a beginning of it that no other run has. Raises RunNotFound."""
        async with self._database.read() as connection:
            return await self._found(connection, run_id)

    async def history(
        self,
        repository: str | None = None,
        status: RunStatus | Collection[RunStatus] | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[Run]:
        """Newest first, at most 1,000. `before` is the `cursor` of the last run of the page before; runs that were
        queued since then do not shift the pages. Raises UsageError for a cursor that is not one."""
        query = select(RUNS).order_by(RUNS.c.queued_at.desc(), RUNS.c.id.desc()).limit(max(0, min(limit, MAX_PAGE)))
        if repository is not None:
            query = query.where(RUNS.c.repository_id == repository_id(repository))
        if status is not None:
            query = query.where(RUNS.c.status.in_([status] if isinstance(status, RunStatus) else list(status)))
        if before is not None:
            query = query.where(tuple_(RUNS.c.queued_at, RUNS.c.id) < tuple_(*parse_cursor(before)))
        async with self._database.read() as connection:
            return [run_record(row) for row in await connection.execute(query)]

    async def active(self, identity: str) -> list[Run]:
        """Runs of the repository with this id that something will still happen to: the running one first, then those
        that wait, in the order in which they will be claimed."""
        query = select(RUNS).where(RUNS.c.repository_id == identity, RUNS.c.status.in_(ACTIVE))
        query = query.order_by(case((RUNS.c.status == RunStatus.RUNNING, 0), else_=1), *CLAIM_ORDER)
        async with self._database.read() as connection:
            return [run_record(row) for row in await connection.execute(query)]

    async def last_ticks(self) -> dict[str, datetime]:
        """The latest tick of each repository (by id) that is in the log."""
        query = select(RUNS.c.repository_id, func.max(RUNS.c.scheduled_for)).where(RUNS.c.scheduled_for.is_not(None))
        async with self._database.read() as connection:
            rows = (await connection.execute(query.group_by(RUNS.c.repository_id))).all()
        return {row[0]: row[1] for row in rows}

    async def problems(self, run_id: str, limit: int = 100, offset: int = 0) -> list[RunProblem]:
        """By path."""
        query = select(PROBLEMS.c.path, PROBLEMS.c.reason, PROBLEMS.c.detail).where(PROBLEMS.c.run_id == run_id)
        query = query.order_by(PROBLEMS.c.path).limit(max(0, min(limit, MAX_PAGE))).offset(max(0, offset))
        async with self._database.read() as connection:
            return [RunProblem(*row) for row in await connection.execute(query)]

    async def count_problems(self, run_id: str) -> dict[str, int]:
        """How many of each reason, the most frequent first."""
        query = select(PROBLEMS.c.reason, func.count()).where(PROBLEMS.c.run_id == run_id).group_by(PROBLEMS.c.reason)
        async with self._database.read() as connection:
            rows = (await connection.execute(query.order_by(func.count().desc(), PROBLEMS.c.reason))).all()
        return {row[0]: row[1] for row in rows}

    async def purge(self, before: datetime) -> int:
        """Delete the runs that ended before that moment, with their problems; how many. Blocked ones wait, and stay."""
        done = RUNS.c.status.in_(FINAL - {RunStatus.BLOCKED})
        async with self._database.write() as connection:
            answer = await connection.execute(delete(RUNS).where(done, RUNS.c.completed_at < before))
        return answer.rowcount

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
        return await self._change(connection, run.id, {**ending, **asdict(figures)})

    async def _wait_again(self, connection: AsyncConnection, run: Run, changes: Mapping[str, Any]) -> Run:
        """Queued, or retrying where another run of the repository is queued since: there is one place for `queued`. The
        caller has locked the repository."""
        taken = await connection.scalar(
            select(RUNS.c.id).where(
                RUNS.c.repository_id == run.repository_id, RUNS.c.status == RunStatus.QUEUED, RUNS.c.id != run.id
            )
        )
        waits = {"status": RunStatus.RETRYING if taken else RunStatus.QUEUED, "not_before": self._database.moment()}
        return await self._change(connection, run.id, {**waits, "lease_until": None, **changes})

    async def _change(self, connection: AsyncConnection, run_id: str, changes: Mapping[str, Any]) -> Run:
        query = update(RUNS).where(RUNS.c.id == run_id).values(**changes).returning(*RUNS.c)
        return run_record((await connection.execute(query)).one())

    async def _locked(self, connection: AsyncConnection, run_id: str) -> Run:
        found = await self._found(connection, run_id)
        return run_record((await connection.execute(select(RUNS).where(RUNS.c.id == found.id).with_for_update())).one())

    async def _found(self, connection: AsyncConnection, run_id: str) -> Run:
        wanted = run_id.strip().lower()
        query = select(RUNS).where(RUNS.c.id.startswith(wanted, autoescape=True)) if wanted else select(RUNS)
        rows = (await connection.execute(query.limit(2))).all()
        if len(rows) == 1 and wanted:
            return run_record(rows[0])
        if len(rows) > 1 and wanted:
            raise RunNotFound(f"Several runs begin with {run_id!r}.", remedy="Give more of the id.")
        raise RunNotFound(f"No run has the id {run_id!r}.", remedy="`reposync history` shows the latest runs.")


def _capped(text: str | None, limit: int = MAX_MESSAGE_CHARS) -> str | None:
    return text if text is None or len(text) <= limit else text[: limit - 1] + "…"
