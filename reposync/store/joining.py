"""Asking for a sync that is about to happen in any case: the answer of the many, and it writes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Select, and_, bindparam, func, or_, select
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.store.claims import CLAIM_ORDER
from reposync.store.columns import storable
from reposync.store.database import Database
from reposync.store.run import Run, run_record
from reposync.store.status import PRIORITIES, WAITING, RunTrigger
from reposync.store.tables import REPOSITORIES, RUNS, is_active, status_is


def _fitting(now: ColumnElement[datetime]) -> Select[Any]:
    waits = and_(RUNS.c.repository_id == REPOSITORIES.c.id, is_active(), status_is(*WAITING), RUNS.c.not_before <= now)
    does_it = and_(
        RUNS.c.priority <= bindparam("rank"),
        or_(RUNS.c.full, ~bindparam("full", type_=Boolean)),
        or_(RUNS.c.approved, ~bindparam("approved", type_=Boolean)),
    )
    # What left the registry is not synced any more; whoever asks is told so by who enqueues.
    stays = or_(REPOSITORIES.c.is_active, REPOSITORIES.c.paused_reason.is_not(None))
    named = and_(REPOSITORIES.c.name == bindparam("repository"), stays)
    return (
        select(*RUNS.c).join_from(REPOSITORIES, RUNS, and_(waits, does_it)).where(named).order_by(*CLAIM_ORDER).limit(1)
    )


# Made once: putting the statement together takes longer than executing it.
_BY_SERVERS_CLOCK = _fitting(func.statement_timestamp(type_=UTCDateTime()))
_BY_OUR_CLOCK = _fitting(bindparam("now", type_=UTCDateTime()))


async def waiting_run(
    database: Database, repository: str, trigger: RunTrigger, *, full: bool = False, approved: bool = False
) -> Run | None:
    """A run that `Runs.enqueue` would return for the same request without anything to change in it; None where there is
    none, or where the repository left the registry.

    It had not begun at a moment after this was called, so it will see whatever the caller saw in the source. Raises
    StoreUnavailable.
    """
    asked: dict[str, Any] = {"repository": storable(repository), "rank": PRIORITIES[trigger]}
    asked |= {"full": full, "approved": approved}
    query = _BY_SERVERS_CLOCK
    if not database.is_postgresql:
        query = _BY_OUR_CLOCK
        asked["now"] = datetime.now(UTC)
    async with database.read() as connection:
        row = (await connection.execute(query, asked)).one_or_none()
    return None if row is None else run_record(row)
