"""Rows of repositories: locking and changing them, and what is said if one is missing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, select, update

from reposync.config.schedule import Schedule, ScheduleError
from reposync.errors import RepositoryNotFound
from reposync.next_steps import ListRepositories
from reposync.store.columns import sanitize_text
from reposync.store.database import Connection
from reposync.store.repository import Registration
from reposync.store.tables import REPOSITORIES, REPOSITORY_COLUMNS, VERSIONS


async def lock_repositories(
    connection: Connection, which: ColumnElement[bool], columns: Sequence[Any] = REPOSITORY_COLUMNS
) -> Sequence[Row[Any]]:
    """Lock these rows in the order of their ids. A transaction that changes several repositories locks them by one call
    of this: PostgreSQL aborts one of two transactions that lock in different orders.

    The order of all transactions: the registry document (a guard), repositories, runs
    (`locked`, in the order of their ids), then what belongs to these: attempts, problems, versions, manifest rows. One
    that begins with runs locks no repository after them, and does not wait for a second run (SKIP LOCKED)."""
    # NO KEY UPDATE: an insertion of a version holds a KEY SHARE lock by its foreign key, and need not wait.
    query = select(*columns).where(which).order_by(REPOSITORIES.c.id).with_for_update(key_share=True)
    return await connection.rows(query)


async def lock_repository(connection: Connection, name: str, identity: str | None = None) -> Row[Any]:
    """Lock the repository's row and thereby its queue. By `identity`, if given: it may have been renamed. Raises
    RepositoryNotFound."""
    for row in await lock_repositories(connection, same_repository(name, identity)):
        return row
    raise await missing_repository(connection, name, identity)


def same_repository(name: str, identity: str | None) -> ColumnElement[bool]:
    return REPOSITORIES.c.name == sanitize_text(name) if identity is None else REPOSITORIES.c.id == identity


async def missing_repository(connection: Connection, name: str, identity: str | None) -> RepositoryNotFound:
    if identity is None:
        return await unknown_repository(connection, name)
    # No suggestion: nothing was mistyped, and the caller may not see the other names.
    return RepositoryNotFound(f"No repository {name!r} is registered any more.", next_steps=[ListRepositories()])


async def unknown_repository(connection: Connection, name: str) -> RepositoryNotFound:
    """Suggests the nearest registered name."""
    near = difflib.get_close_matches(name, await connection.scalars(select(REPOSITORIES.c.name)), n=1)
    text = f"No repository {name!r} is registered."
    if near:
        return RepositoryNotFound(text, remedy=f"Did you mean {near[0]!r}?")
    return RepositoryNotFound(text, next_steps=[ListRepositories()])


async def change_repository(connection: Connection, identity: str, changes: Mapping[str, Any]) -> Row[Any]:
    query = update(REPOSITORIES).where(REPOSITORIES.c.id == identity).values(**changes).returning(*REPOSITORY_COLUMNS)
    return await connection.one(query)


def scheduled(definition: Registration, now: datetime, last_sync_at: datetime | None = None) -> dict[str, Any]:
    """Columns of a repository whose schedule begins now: earlier ticks are not missed. One that was never synced is due
    at once."""
    next_due_at: datetime | None = None
    if definition.cron_expression is not None:
        next_due_at = now
        if last_sync_at is not None:
            with suppress(ScheduleError):  # of a newer program, which takes it and knows the next moment
                next_due_at = Schedule.parse(definition.cron_expression, definition.timezone).next_after(now)
    return {"next_due_at": next_due_at, "last_tick_at": now}


async def outdate_links(connection: Connection, identity: str) -> None:
    """The name or the address has changed: the next run writes it to the points."""
    await connection.execute(update(VERSIONS).where(VERSIONS.c.repository_id == identity).values(links=""))
