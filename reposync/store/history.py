"""Reading the execution log."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import case, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RunNotFound
from reposync.store.attempts import RunAttempt, attempts_of
from reposync.store.claims import CLAIM_ORDER
from reposync.store.database import Database
from reposync.store.repositories import identity_of
from reposync.store.run import QueueFigures, Run, RunProblem, parse_cursor, run_record
from reposync.store.status import ACTIVE, WAITING, RunStatus
from reposync.store.tables import PROBLEMS, RUNS

MAX_PAGE = 1_000


class RunHistory:
    """Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
            query = query.where(RUNS.c.repository_id == identity_of(repository))
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

    async def attempts(self, run_id: str) -> list[RunAttempt]:
        """Every attempt of the run, the first one first."""
        async with self._database.read() as connection:
            return await attempts_of(connection, run_id)

    async def queue(self) -> QueueFigures:
        """How many runs wait, run or are blocked, and since when the oldest of those that are due waits."""
        counted = select(RUNS.c.status, func.count()).where(RUNS.c.status.in_(ACTIVE | {RunStatus.BLOCKED}))
        now = self._database.moment()
        # What a retry waits for is no backlog.
        oldest = select(func.min(RUNS.c.not_before), now).where(RUNS.c.status.in_(WAITING), RUNS.c.not_before <= now)
        async with self._database.read() as connection:
            counts = {row[0]: row[1] for row in await connection.execute(counted.group_by(RUNS.c.status))}
            since, moment = (await connection.execute(oldest)).one()
        return QueueFigures(counts, max(0.0, (moment - since).total_seconds()) if since is not None else 0.0)

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

    async def _found(self, connection: AsyncConnection, run_id: str) -> Run:
        wanted = run_id.strip().lower()
        query = select(RUNS).where(RUNS.c.id.startswith(wanted, autoescape=True)) if wanted else select(RUNS)
        rows = (await connection.execute(query.limit(2))).all()
        if len(rows) == 1 and wanted:
            return run_record(rows[0])
        if len(rows) > 1 and wanted:
            raise RunNotFound(f"Several runs begin with {run_id!r}.", remedy="Give more of the id.")
        raise RunNotFound(f"No run has the id {run_id!r}.", remedy="`reposync history` shows the latest runs.")
