"""Reading the execution log, and deleting old runs from it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    and_,
    case,
    delete,
    func,
    literal_column,
    select,
    tuple_,
    union_all,
    update,
)

from reposync.errors import CANNOT_HERE, LOCKED, RunAmbiguous, RunNotFound
from reposync.next_steps import ShowHistory
from reposync.store.columns import sanitize_text
from reposync.store.database import Connection, Stored
from reposync.store.repository_rows import unknown_repository
from reposync.store.run import QueueFigures, Run, RunChange, RunCount, RunFilter, RunMark, RunProblem, parse_cursor
from reposync.store.run_log import RunLogLine
from reposync.store.status import ACTIVE, FINAL, WAITING, RunStatus, RunTrigger
from reposync.store.tables import (
    CHANGES,
    CLAIM_ORDER,
    IS_NOT_IDLE,
    LOG_LINES,
    PROBLEMS,
    REPOSITORIES,
    RUNS,
    is_active,
    is_over,
    status_is,
)

MAX_PAGE = 1_000
# One batch takes some tens of milliseconds, during which SQLite's other writers wait.
PURGE_BATCH = 500
# Runs that are less far ahead of the clock keep their time.
_FAR = timedelta(days=1)

_LOWEST_ID, _HIGHEST_ID = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class RunHistory(Stored):
    """Reads only, but for `purge`."""

    async def get(self, run_id: str) -> Run:
        """By id, or by a prefix that no other run has. Raises RunNotFound, RunAmbiguous."""
        async with self._database.read() as connection:
            return await find_run(connection, run_id)

    async def runs(
        self,
        repository: str | None = None,
        status: RunStatus | Collection[RunStatus] | None = None,
        limit: int = 50,
        before: str | None = None,
        *,
        oldest_first: bool = False,
        **conditions: Any,
    ) -> list[Run]:
        """Newest first, at most 1,000. `conditions`: fields of `RunFilter`. `before`: the `cursor` of the last run of
        the page before; runs that were queued since then do not shift the pages. Raises UsageError for an invalid
        cursor."""
        wanted = RunFilter(repository=repository, **conditions)
        since, until, trigger = wanted.since, wanted.until, wanted.trigger
        query = narrowed(select(RUNS), wanted)
        # One bound at the side of the cursor, the narrower one: with both, SQLite starts at the wider one, and reads
        # all runs up to the cursor.
        cursor = parse_cursor(before) if before is not None else None
        key = tuple_(RUNS.c.queued_at, RUNS.c.id)
        if oldest_first and cursor is not None and (since is None or cursor[0] >= since):
            query, since = query.where(key > tuple_(*cursor)), None
        elif cursor is not None and not oldest_first and (until is None or cursor[0] < until):
            query, until = query.where(key < tuple_(*cursor)), None
        if since is not None:
            query = query.where(RUNS.c.queued_at >= since)
        if until is not None:
            query = query.where(RUNS.c.queued_at < until)
        statuses = [status] if isinstance(status, RunStatus) else None if status is None else sorted(set(status))
        if trigger is not None:
            # With a repository, SQLite, which has no statistics, must not use the index over triggers.
            by_index = repository is None or self._database.is_postgresql
            column = RUNS.c.trigger if by_index else RUNS.c.trigger.concat("")
            # A literal: the plan of a prepared statement would be the same for frequent and for rare triggers.
            query = query.where(column == literal_column(f"'{RunTrigger(trigger).value}'"))
            statuses = sorted(RunStatus) if statuses is None else statuses  # the index over triggers is also by status
        if statuses is None:
            page = _newest(_of_repository(query, RUNS.c.repository, repository), limit, oldest_first)
        elif statuses:
            # The newest of one page for each status, which is one range of the index. With a list of them in the
            # condition, both databases would read and sort all runs with the rarer ones.
            parts = _by_status(query, statuses, repository, hides_idle=wanted.hides_idle)
            pages = [select(_newest(each, limit, oldest_first).subquery()) for each in parts]
            page = _newest(select(union_all(*pages).subquery()), limit, oldest_first) if len(pages) > 1 else pages[0]
        else:
            return []
        return await self._runs(page)

    async def require_known(self, repository: str) -> None:
        """For a filter without results: raises RepositoryNotFound unless a repository, or a run, has this name."""
        async with self._database.read() as connection:
            for column in (REPOSITORIES.c.name, RUNS.c.repository):
                found = select(column).where(column == sanitize_text(repository)).limit(1)
                if await connection.rows(found):
                    return
            raise await unknown_repository(connection, repository)

    async def active(self, identity: str) -> list[Run]:
        """Active runs of the repository with this id: the running one first, the others in the order of claims."""
        query = select(RUNS).where(RUNS.c.repository_id == identity, is_active())
        return await self._runs(query.order_by(case((RUNS.c.status == RunStatus.RUNNING, 0), else_=1), *CLAIM_ORDER))

    async def by_ids(self, ids: Collection[str]) -> dict[str, Run]:
        """By full ids, at most 1,000. Purged runs are left out."""
        found = await self._runs(select(RUNS).where(RUNS.c.id.in_(sorted(ids)[:MAX_PAGE])))
        return {run.id: run for run in found}

    async def latest(self, identities: Collection[str] | None = None) -> dict[str, Run]:
        """The newest run of each registered repository (with one of `identities`, if given), by repository id."""
        of_each = select(_of_newest_run(RUNS.c.id)).select_from(REPOSITORIES)
        if identities is not None:
            of_each = of_each.where(REPOSITORIES.c.id.in_(identities))
        return {run.repository_id: run for run in await self._runs(select(RUNS).where(RUNS.c.id.in_(of_each)))}

    async def strips(self, identities: Collection[str], limit: int = 20) -> dict[str, list[RunMark]]:
        """The newest runs of each of these repositories (at most 500), at most `limit`, by repository id."""
        if not identities:
            return {}
        run = RUNS.c
        is_unchanged = and_(status_is(RunStatus.COMPLETED), run.files_processed + run.files_deleted == 0)
        columns = run.id, run.repository_id, run.status, run.queued_at, run.files_failed, is_unchanged.label("is_idle")
        newest = select(*columns).order_by(run.queued_at.desc(), run.id.desc()).limit(limit)
        # A query for each: in a join, or with a window function, PostgreSQL may read all runs (0.5 s for 100,000), and
        # SQLite has no lateral joins. SQLite wants a limited query of a union in brackets.
        each = [select(newest.where(run.repository_id == identity).subquery()) for identity in sorted(identities)]
        found: dict[str, list[RunMark]] = {}
        rows = await self._database.rows(union_all(*each))
        for row in sorted(rows, key=lambda row: (row.queued_at, row.id), reverse=True):
            found.setdefault(row.repository_id, []).append(RunMark(*row))
        return found

    async def latest_statuses(self, among: Collection[RunStatus]) -> dict[str, RunStatus | str]:
        """Name -> status of the newest run, for each registered repository with one of these statuses."""
        newest = _of_newest_run(RUNS.c.status)
        rows = await self._database.rows(select(REPOSITORIES.c.name, newest).where(newest.in_(sorted(among))))
        return {row[0]: row[1] for row in rows}

    async def queue(self) -> QueueFigures:
        """How many runs wait, run or are blocked, and how long the run that waits longest has waited, also if it pauses
        because a server asked for that."""
        active = select(RUNS.c.status, func.count()).where(is_active()).group_by(RUNS.c.status)
        blocked = select(RUNS.c.status, func.count()).where(is_over(), status_is(RunStatus.BLOCKED))
        now, since = self._database.moment(), _waits_since()
        waiting = is_active(), status_is(*WAITING)
        async with self._database.read() as connection:
            counted = union_all(active, blocked.group_by(RUNS.c.status))
            counts = {row[0]: row[1] for row in await connection.rows(counted)}
            first = await connection.one(select(func.min(since).label("since"), now.label("now")).where(*waiting))
        return QueueFigures(counts, max(0.0, (first.now - first.since).total_seconds()) if first.since else 0.0)

    async def long_waits(self, seconds: float) -> list[Run]:
        """Queued runs that pause for at least so long, because a server asked for that; the next one first."""
        paused = select(*RUNS.c, _waits_since().label("since")).where(
            is_active(), status_is(RunStatus.QUEUED), RUNS.c.error_code.not_in(CANNOT_HERE | LOCKED)
        )
        paused = paused.where(RUNS.c.not_before > self._database.moment()).order_by(RUNS.c.not_before).limit(MAX_PAGE)
        rows = await self._database.rows(paused)
        return [Run.of(row) for row in rows if (row.not_before - row.since).total_seconds() >= seconds]

    async def by_hour(self, since: datetime) -> list[RunCount]:
        """Count the runs that were queued since then, by hour."""
        text_hour = func.strftime("%Y-%m-%dT%H:00:00+00:00", RUNS.c.queued_at)
        hour = func.date_trunc("hour", RUNS.c.queued_at) if self._database.is_postgresql else text_hour
        lacks_files = (RUNS.c.status == RunStatus.COMPLETED) & (RUNS.c.files_failed > 0)
        key = (hour, RUNS.c.status, lacks_files)
        query = select(*key, func.count()).where(RUNS.c.queued_at >= since).group_by(*key)
        return [
            RunCount(_moment(row[0]), str(row[1]), bool(row[2]), row[3]) for row in await self._database.rows(query)
        ]

    async def problems(
        self,
        run_id: str,
        limit: int = 100,
        *,
        after: str | None = None,
        reason: str | None = None,
    ) -> list[RunProblem]:
        """By path. `after`: the path of the last problem of the page before. `reason`: only those with this reason."""
        query = select(PROBLEMS.c.path, PROBLEMS.c.reason, PROBLEMS.c.detail).where(PROBLEMS.c.run_id == run_id)
        if reason is not None:
            query = query.where(PROBLEMS.c.reason == reason)
        if after is not None:
            query = query.where(PROBLEMS.c.path > after)
        query = query.order_by(PROBLEMS.c.path).limit(max(0, min(limit, MAX_PAGE)))
        return [RunProblem(*row) for row in await self._database.rows(query)]

    async def count_problems(self, run_id: str) -> dict[str, int]:
        """By reason, the most frequent first."""
        query = select(PROBLEMS.c.reason, func.count()).where(PROBLEMS.c.run_id == run_id).group_by(PROBLEMS.c.reason)
        rows = await self._database.rows(query.order_by(func.count().desc(), PROBLEMS.c.reason))
        return {row[0]: row[1] for row in rows}

    async def changes(
        self, run_id: str, limit: int = 100, *, after: str | None = None, change: str | None = None
    ) -> list[RunChange]:
        """By path. `after`: the path of the last one of the page before. `change`: only of this kind."""
        query = select(CHANGES.c.path, CHANGES.c.change).where(CHANGES.c.run_id == run_id)
        if change is not None:
            query = query.where(CHANGES.c.change == change)
        if after is not None:
            query = query.where(CHANGES.c.path > after)
        rows = await self._database.rows(query.order_by(CHANGES.c.path).limit(max(0, min(limit, MAX_PAGE))))
        return [RunChange(*row) for row in rows]

    async def count_changes(self, run_id: str) -> dict[str, int]:
        """How many are listed, by kind."""
        query = select(CHANGES.c.change, func.count()).where(CHANGES.c.run_id == run_id).group_by(CHANGES.c.change)
        return {row[0]: row[1] for row in await self._database.rows(query)}

    async def log_lines(
        self, run_id: str, limit: int = 100, *, after: tuple[int, int] | None = None
    ) -> list[RunLogLine]:
        """What daemons logged about the run, oldest first. `after`: attempt and number of the last line of the page
        before."""
        columns = LOG_LINES.c
        query = select(columns.attempt, columns.number, columns.at, columns.level, columns.text)
        query = query.where(columns.run_id == run_id)
        if after is not None:
            query = query.where(tuple_(columns.attempt, columns.number) > tuple_(*after))
        rows = await self._database.rows(
            query.order_by(columns.attempt, columns.number).limit(max(0, min(limit, MAX_PAGE)))
        )
        return [RunLogLine(*row) for row in rows]

    async def commit_words(self, repository_id: str, commit: str) -> tuple[str, str] | None:
        """Title and author of a commit that one of the newest 100 runs of the repository is at, if they are known."""
        run = RUNS.c
        latest = _newest(select(RUNS).where(run.repository_id == repository_id), 100).subquery().c
        query = select(latest.commit_title, latest.commit_author).where(latest.commit_after == commit)
        rows = await self._database.rows(query.where(latest.commit_title.is_not(None)).limit(1))
        return next(((row[0], row[1] or "") for row in rows), None)

    async def past_names(self, identities: Collection[str]) -> dict[str, str]:
        """The latest name in the log of each of these repository ids that has runs."""
        mine = select(RUNS.c.repository_id, RUNS.c.repository).where(RUNS.c.repository_id.in_(identities))
        return {row[0]: row[1] for row in await self._database.rows(mine.order_by(RUNS.c.queued_at))}

    async def purge(self, before: datetime, *, batch: int = PURGE_BATCH) -> int:
        """Delete the runs that ended before that time, with their problems, changes and lines. Blocked runs stay.
        Returns how many runs. `batch`: runs in one transaction."""
        count = 0
        async with self._database.write() as connection:
            await self._correct_future_times(connection)
        ended = select(RUNS.c.id).where(
            RUNS.c.queued_at < before,  # implied by the next condition; it has the index
            RUNS.c.completed_at < before,
            RUNS.c.status.in_(FINAL - {RunStatus.BLOCKED}),
        )
        first = ended.order_by(RUNS.c.queued_at, RUNS.c.id).limit(batch).with_for_update(skip_locked=True)
        while True:
            began = time.monotonic()
            async with self._database.write() as connection:
                ids = await connection.scalars(first)
                await connection.execute(delete(RUNS).where(RUNS.c.id.in_(ids)))
            count += len(ids)
            if len(ids) < batch:
                return count
            # Pause for as long as the batch took: SQLite gives its lock to whichever writer happens to try first.
            await asyncio.sleep(time.monotonic() - began)

    async def _correct_future_times(self, connection: Connection) -> None:
        """Runs of a time in the future get the current time: they were written while the database's clock was ahead,
        and would be kept, and be the latest, until that date."""
        now = self.now()
        runs = update(RUNS).where(RUNS.c.queued_at > now + _FAR)
        times = (RUNS.c[name] for name in ("started_at", "completed_at"))
        past = {column.name: case((column > now, now), else_=column) for column in times}
        await connection.execute(runs.values(queued_at=now, **past))

    async def _runs(self, query: Select[Any]) -> list[Run]:
        return [Run.of(row) for row in await self._database.rows(query)]


async def find_run(connection: Connection, run_id: str) -> Run:
    """See `RunHistory.get`."""
    wanted = run_id.strip().lower()
    # A range and not LIKE, for which a database whose collation is not C has no index.
    lowest, highest = wanted + _LOWEST_ID[len(wanted) :], wanted + _HIGHEST_ID[len(wanted) :]
    if not wanted or not _ID.fullmatch(lowest):
        raise no_such_run(run_id)
    rows = await connection.rows(select(RUNS).where(RUNS.c.id.between(lowest, highest)).limit(2))
    if len(rows) > 1:
        raise RunAmbiguous(f"The ids of several runs begin with {run_id!r}.", remedy="Give more of the id.")
    if not rows:
        raise no_such_run(run_id)
    return Run.of(rows[0])


def _waits_since() -> ColumnElement[datetime]:
    """When a waiting run was queued, or handed back for the first time for one reason."""
    since = func.coalesce(RUNS.c.waits_since, RUNS.c.queued_at)
    return case((RUNS.c.not_before < since, RUNS.c.not_before), else_=since)


def _moment(hour: datetime | str) -> datetime:
    return datetime.fromisoformat(hour) if isinstance(hour, str) else hour


def no_such_run(run_id: str) -> RunNotFound:
    return RunNotFound(f"No run has the id {run_id!r}.", next_steps=[ShowHistory()])


def narrowed(runs: Select[Any], wanted: RunFilter) -> Select[Any]:
    """With the conditions that every kind of query has in the same form."""
    if wanted.hides_idle:
        runs = runs.where(IS_NOT_IDLE)
    if wanted.code is not None:
        runs = runs.where(RUNS.c.error_code == sanitize_text(wanted.code))
    if wanted.commit is not None:
        # A range and not LIKE, for which a database whose collation is not C has no index. Commits are hexadecimal.
        runs = runs.where(RUNS.c.commit_after >= wanted.commit, RUNS.c.commit_after < f"{wanted.commit}g")
    if wanted.worker is not None:
        runs = runs.where(RUNS.c.worker.startswith(sanitize_text(wanted.worker), autoescape=True))
    return runs


def _by_status(
    runs: Select[Any], statuses: Collection[RunStatus], repository: str | None, *, hides_idle: bool
) -> Iterator[Select[Any]]:
    if active := ACTIVE.intersection(statuses):
        few = runs.where(is_active(), status_is(*active))
        # Not by the index over names: SQLite, which has no statistics, would search all runs of the repository.
        yield _of_repository(few, RUNS.c.repository.concat(""), repository)
    for status in statuses:
        if status not in ACTIVE:
            over = runs.where(is_over(), status_is(status))
            if hides_idle and status is RunStatus.COMPLETED:
                # Not by the index over statuses: SQLite would pass over all that had nothing to do.
                over = runs.where(RUNS.c.status.concat("") == status.value)
            yield _of_repository(over, RUNS.c.repository, repository)


def _of_repository(runs: Select[Any], column: ColumnElement[str], name: str | None) -> Select[Any]:
    return runs if name is None else runs.where(column == name)


def _of_newest_run(column: ColumnElement[Any]) -> ScalarSelect[Any]:
    """This column of the newest run of a repository of the query."""
    newest = _newest(select(RUNS).where(RUNS.c.repository_id == REPOSITORIES.c.id), 1)
    return newest.with_only_columns(column).correlate(REPOSITORIES).scalar_subquery()


def _newest(runs: Select[Any], limit: int, oldest_first: bool = False) -> Select[Any]:
    columns = runs.selected_columns
    keys = (columns.queued_at, columns.id)
    return runs.order_by(*(keys if oldest_first else (key.desc() for key in keys))).limit(max(0, min(limit, MAX_PAGE)))
