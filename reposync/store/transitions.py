"""The transitions between the states of a run. Every change of `sync_runs.status` goes through `move`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, cast

from sqlalchemy import ColumnElement, Row, Select, and_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import RunStateConflict
from reposync.store.database import QUEUE, Database
from reposync.store.status import FINAL, WAITING, RunStatus
from reposync.store.tables import RUNS, is_active, is_over, status_is


class Event(StrEnum):
    CLAIM = "claim"
    TAKE_OVER = "take over"
    """Its lease ended, and a different worker continues it."""
    HAND_BACK = "hand back"
    RETRY_LATER = "retry later"
    COMPLETE = "complete"
    FAIL = "fail"
    STOP = "stop"
    """Its worker ends it: all its requests were withdrawn, or a different run takes its place."""
    BLOCK = "block"
    BLOCK_AGAIN = "block again"
    """A later run of the repository met a deletion brake while this one is blocked."""
    ABANDON = "abandon"
    """Its lease ended, and no attempt is left."""
    WITHDRAW = "withdraw"
    """The last request was withdrawn."""
    APPROVE = "approve"
    RETRY = "retry"
    SUPERSEDE = "supersede"
    """A later run did the work of this blocked one."""
    REQUEUE = "requeue"
    """A later run was completed, but did less than this blocked one has to do."""
    REMOVE = "remove"
    """The repository was removed."""


@dataclass(frozen=True, slots=True)
class Transition:
    """`sets`: columns that always get this value."""

    to: RunStatus
    sets: Mapping[str, Any] = field(default_factory=dict)


_LEFT = {"lease_until": None}
_RESET = {
    "lease_until": None,
    "completed_at": None,
    "duration_seconds": None,
    "cancel_requested": False,
    "error_code": None,
    "error_message": None,
}


_Q, _T, _R = RunStatus.QUEUED, RunStatus.RETRYING, RunStatus.RUNNING
_C, _F, _X, _B = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.BLOCKED

_RULES: tuple[tuple[Event, tuple[RunStatus, ...], Transition], ...] = (
    (Event.CLAIM, (_Q, _T), Transition(_R, {"progress": None})),
    (Event.TAKE_OVER, (_R,), Transition(_R, {"progress": None})),
    (Event.HAND_BACK, (_R,), Transition(_Q, _LEFT)),
    (Event.RETRY_LATER, (_R,), Transition(_T, _LEFT)),
    (Event.COMPLETE, (_R,), Transition(_C, _LEFT)),
    (Event.FAIL, (_R,), Transition(_F, _LEFT)),
    (Event.STOP, (_R,), Transition(_X, _LEFT)),
    (Event.BLOCK, (_R,), Transition(_B, _LEFT)),
    (Event.BLOCK_AGAIN, (_B,), Transition(_B, _LEFT)),
    (Event.ABANDON, (_R,), Transition(_F, _LEFT)),
    (Event.WITHDRAW, (_Q, _T, _B), Transition(_X, _LEFT)),
    (Event.WITHDRAW, (_R,), Transition(_R, {"cancel_requested": True})),
    (Event.APPROVE, (_B,), Transition(_Q, _RESET)),
    (Event.RETRY, (_F, _X), Transition(_Q, _RESET)),
    (Event.SUPERSEDE, (_B,), Transition(_X, _LEFT)),
    (Event.REQUEUE, (_B,), Transition(_Q, {**_RESET, "brake": None})),
    (Event.REMOVE, (_Q, _T, _R, _B), Transition(_X, _LEFT)),
)

TABLE: Mapping[tuple[RunStatus, Event], Transition] = MappingProxyType(
    {(state, event): transition for event, states, transition in _RULES for state in states}
)


def transition(status: str, event: Event, run_id: str) -> Transition:
    """Raises RunStateConflict for events that do not apply to the state, including states of newer programs."""
    found = TABLE.get((cast(RunStatus, status), event))
    if found is None:
        raise RunStateConflict(f"Run {run_id} is {status}: {event} does not apply to it.")
    return found


def locked(database: Database, *which: ColumnElement[bool]) -> Select[Any]:
    """Rows of runs for `move`, locked until the transaction ends, with the database's time as `now`. Always in the same
    order, so that two transactions do not deadlock. If a repository's row is locked too, lock that one first."""
    query = select(*RUNS.c, database.moment().label("now")).where(*which)
    # Not by the bare id: SQLite would scan the whole history in that order to save sorting a few rows.
    return query.order_by(RUNS.c.id.concat("")).with_for_update()


async def lock_unfinished(connection: AsyncConnection, database: Database, identity: str) -> list[Row[Any]]:
    """The unfinished and blocked runs of the repository, `locked`. The caller has locked the repository."""
    mine = RUNS.c.repository_id == identity
    rows: list[Row[Any]] = []
    # Separate queries, each with its index.
    for which in (is_active(), and_(is_over(), status_is(RunStatus.BLOCKED))):
        rows += (await connection.execute(locked(database, mine, which))).all()
    return rows


async def move(
    connection: AsyncConnection, database: Database, row: Row[Any], event: Event, **columns: Any
) -> Row[Any]:
    """The row after `event`, with these columns changed as well; `row` as `locked` returned it. A run that waits again
    becomes `retrying` if a different run of its repository is queued: only one can be `queued`. In that case the caller
    has locked the repository. Raises RunStateConflict."""
    step = transition(row.status, event, row.id)
    status, changes = step.to, {**step.sets, **columns}
    if status in WAITING:
        if status is RunStatus.QUEUED and await _has_queued(connection, row):
            status = RunStatus.RETRYING
        await database.announce(connection, QUEUE)
    if status in FINAL:
        changes["completed_at"] = row.now
    if row.status == RunStatus.RUNNING and status in FINAL:
        changes["duration_seconds"] = max(0.0, (row.now - row.started_at).total_seconds()) if row.started_at else 0.0
    query = update(RUNS).where(RUNS.c.id == row.id).values(status=status, **changes)
    return (await connection.execute(query.returning(*RUNS.c, database.moment().label("now")))).one()


async def _has_queued(connection: AsyncConnection, row: Row[Any]) -> bool:
    queued = select(RUNS.c.id).where(
        RUNS.c.repository_id == row.repository_id, status_is(RunStatus.QUEUED), RUNS.c.id != row.id
    )
    return await connection.scalar(queued.limit(1)) is not None
