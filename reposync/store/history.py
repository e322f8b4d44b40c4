"""Reading the execution log."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, literal_column, select, tuple_, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import Remedy, RunAmbiguous, RunNotFound
from reposync.store.attempts import RunAttempt, attempts_of
from reposync.store.claims import CLAIM_ORDER
from reposync.store.columns import storable
from reposync.store.database import Database
from reposync.store.requests import RunRequest, read_askers, read_requests
from reposync.store.run import QueueFigures, Run, RunProblem, parse_cursor, run_record
from reposync.store.status import ACTIVE, WAITING, RunStatus, RunTrigger, known
from reposync.store.tables import PROBLEMS, REPOSITORIES, RUNS, is_active, is_over, status_is
from reposync.store.unknown import unknown_repository

MAX_PAGE = 1_000
ASKERS_SHOWN = 5

_LOWEST_ID, _HIGHEST_ID = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RunHistory:
    """Every method raises StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> datetime:
        """By the database's clock, which all moments of runs are of. Aware UTC."""
        return self._database.clock.now()

    async def get(self, run_id: str) -> Run:
        """By id or by a beginning of it that no other run has. Raises RunNotFound, RunAmbiguous."""
        async with self._database.read() as connection:
            return await self._found(connection, run_id)

    async def history(
        self,
        repository: str | None = None,
        status: RunStatus | Collection[RunStatus] | None = None,
        limit: int = 50,
        before: str | None = None,
        *,
        trigger: RunTrigger | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Run]:
        """Newest first, at most 1,000. `repository`: its name now, or the last one of a removed one. `since` (from then
        on) and `until` (before then) are about `queued_at`. `before` is the `cursor` of the last run of the page
        before; runs that were queued since then do not shift the pages. Raises UsageError for a cursor that is not one.
        """
        query = select(RUNS)
        if since is not None:
            query = query.where(RUNS.c.queued_at >= since)
        if until is not None:
            query = query.where(RUNS.c.queued_at < until)
        if before is not None:
            query = query.where(tuple_(RUNS.c.queued_at, RUNS.c.id) < tuple_(*parse_cursor(before)))
        statuses = [status] if isinstance(status, RunStatus) else None if status is None else sorted(set(status))
        if trigger is not None:
            # Beside a repository SQLite, which knows nothing of how many there are of each, must not take its index.
            by_index = repository is None or self._database.is_postgresql
            column = RUNS.c.trigger if by_index else RUNS.c.trigger.concat("")
            # Written out: the plan of a prepared statement would be the same for the frequent and for the rare ones.
            query = query.where(column == literal_column(f"'{RunTrigger(trigger).value}'"))
            statuses = sorted(RunStatus) if statuses is None else statuses  # the index of triggers is by status, too
        if statuses is None:
            page = _newest(_of_repository(query, RUNS.c.repository, repository), limit)
        elif statuses:
            # One page of each, and the newest of these: one range of the index a status. With a list of them in the
            # condition both databases would read and sort all runs of the rarer ones, or pass by those of the others.
            pages = [select(_newest(each, limit).subquery()) for each in _by_status(query, statuses, repository)]
            page = _newest(select(union_all(*pages).subquery()), limit) if len(pages) > 1 else pages[0]
        else:
            return []
        async with self._database.read() as connection:
            return [run_record(row) for row in await connection.execute(page)]

    async def require_known(self, repository: str) -> None:
        """Raises RepositoryNotFound, naming the nearest, if no repository has that name and no run is of one that had
        it: for a filter that nothing fits."""
        async with self._database.read() as connection:
            for column in (REPOSITORIES.c.name, RUNS.c.repository):
                found = select(column).where(column == storable(repository)).limit(1)
                if (await connection.execute(found)).first() is not None:
                    return
            raise await unknown_repository(connection, repository)

    async def active(self, identity: str) -> list[Run]:
        """Runs of the repository with this id that something will still happen to: the running one first, then those
        that wait, in the order in which they will be claimed."""
        query = select(RUNS).where(RUNS.c.repository_id == identity, is_active())
        query = query.order_by(case((RUNS.c.status == RunStatus.RUNNING, 0), else_=1), *CLAIM_ORDER)
        async with self._database.read() as connection:
            return [run_record(row) for row in await connection.execute(query)]

    async def latest(self, identities: Collection[str] | None = None) -> dict[str, Run]:
        """The newest run of each registered repository (of these alone, where they are named) that has one, by its
        id."""
        # By the name, which has the index. With the id in the condition as well, PostgreSQL would expect few runs of
        # that name to fit, and read them all.
        newest = _newest(select(RUNS).where(RUNS.c.repository == REPOSITORIES.c.name), 1).with_only_columns(RUNS.c.id)
        query = select(REPOSITORIES.c.id, newest.correlate(REPOSITORIES).scalar_subquery())
        if identities is not None:
            query = query.where(REPOSITORIES.c.id.in_(identities))
        found: dict[str, Run] = {}
        async with self._database.read() as connection:
            bearers = {row[1]: row[0] for row in await connection.execute(query) if row[1] is not None}
            ids = list(bearers)
            for start in range(0, len(ids), MAX_PAGE):
                page = select(RUNS).where(RUNS.c.id.in_(ids[start : start + MAX_PAGE]))
                for row in await connection.execute(page):
                    found[bearers[row.id]] = run_record(row)
            for identity in [each for each, run in found.items() if run.repository_id != each]:
                # That was one which had the name before, and was removed.
                own = (
                    await connection.execute(_newest(select(RUNS).where(RUNS.c.repository_id == identity), 1))
                ).first()
                del found[identity]
                if own is not None:
                    found[identity] = run_record(own)
        return found

    async def latest_statuses(self, among: Collection[RunStatus]) -> dict[str, RunStatus | str]:
        """The status of the newest run of each registered repository for which it is one of these, by name."""
        mine = select(RUNS).where(RUNS.c.repository == REPOSITORIES.c.name)
        # A removed repository's runs keep the name that it had: they say nothing of one that bears it now.
        status = case((RUNS.c.repository_id == REPOSITORIES.c.id, RUNS.c.status))
        newest = _newest(mine, 1).with_only_columns(status).correlate(REPOSITORIES).scalar_subquery()
        async with self._database.read() as connection:
            # The others, which are nearly all, are left out by the database.
            rows = await connection.execute(select(REPOSITORIES.c.name, newest).where(newest.in_(sorted(among))))
            return {row[0]: known(RunStatus, row[1]) for row in rows}

    async def attempts(self, run_id: str) -> list[RunAttempt]:
        """Every attempt of the run, the first one first."""
        async with self._database.read() as connection:
            return await attempts_of(connection, run_id)

    async def requests(self, run_ids: Collection[str]) -> dict[str, list[RunRequest]]:
        """Who asked for these runs and for what, by the id of the run, the oldest request first."""
        async with self._database.read() as connection:
            return await read_requests(connection, run_ids)

    async def askers(self, run_ids: Collection[str]) -> dict[str, list[str]]:
        """In short who asked for these runs, by the id of the run."""
        async with self._database.read() as connection:
            return await read_askers(connection, run_ids, ASKERS_SHOWN)

    async def queue(self) -> QueueFigures:
        """How many runs wait, run or are blocked, and since when the oldest of those that are due waits."""
        active = select(RUNS.c.status, func.count()).where(is_active()).group_by(RUNS.c.status)
        blocked = select(RUNS.c.status, func.count()).where(is_over(), status_is(RunStatus.BLOCKED))
        now = self._database.moment()
        # What a retry waits for is no backlog.
        oldest = select(func.min(RUNS.c.not_before), now).where(
            is_active(), status_is(*WAITING), RUNS.c.not_before <= now
        )
        async with self._database.read() as connection:
            counted = union_all(active, blocked.group_by(RUNS.c.status))
            counts = {row[0]: row[1] for row in await connection.execute(counted)}
            since, moment = (await connection.execute(oldest)).one()
        return QueueFigures(counts, max(0.0, (moment - since).total_seconds()) if since is not None else 0.0)

    async def problems(
        self, run_id: str, limit: int = 100, offset: int = 0, *, after: str | None = None, reason: str | None = None
    ) -> list[RunProblem]:
        """By path. `after`: the path of the last one of the page before. `reason`: those alone that have it."""
        query = select(PROBLEMS.c.path, PROBLEMS.c.reason, PROBLEMS.c.detail).where(PROBLEMS.c.run_id == run_id)
        if reason is not None:
            query = query.where(PROBLEMS.c.reason == reason)
        if after is not None:
            query = query.where(PROBLEMS.c.path > after)
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
        # Between two ids of the same form, because a database whose collation is not C has no index for LIKE.
        lowest, highest = wanted + _LOWEST_ID[len(wanted) :], wanted + _HIGHEST_ID[len(wanted) :]
        if not wanted or not _ID.fullmatch(lowest):
            raise no_such_run(run_id)
        query = select(RUNS).where(RUNS.c.id.between(lowest, highest))
        rows = (await connection.execute(query.limit(2))).all()
        if len(rows) > 1:
            raise RunAmbiguous(f"Several runs begin with {run_id!r}.", remedy="Give more of the id.")
        if not rows:
            raise no_such_run(run_id)
        return run_record(rows[0])


def no_such_run(run_id: str) -> RunNotFound:
    remedy = Remedy("`reposync history` shows the latest runs.", "`GET /api/v1/runs` shows the latest ones.")
    return RunNotFound(f"No run has the id {run_id!r}.", remedy=remedy)


def _by_status(runs: Select[Any], statuses: Collection[RunStatus], repository: str | None) -> Iterator[Select[Any]]:
    if active := ACTIVE.intersection(statuses):
        few = runs.where(is_active(), status_is(*active))
        # Not by name: SQLite, which does not know that these are few, would look among all runs of the repository.
        yield _of_repository(few, RUNS.c.repository.concat(""), repository)
    for status in statuses:
        if status not in ACTIVE:
            yield _of_repository(runs.where(is_over(), status_is(status)), RUNS.c.repository, repository)


def _of_repository(runs: Select[Any], column: ColumnElement[str], name: str | None) -> Select[Any]:
    return runs if name is None else runs.where(column == name)


def _newest(runs: Select[Any], limit: int) -> Select[Any]:
    columns = runs.selected_columns
    return runs.order_by(columns.queued_at.desc(), columns.id.desc()).limit(max(0, min(limit, MAX_PAGE)))
