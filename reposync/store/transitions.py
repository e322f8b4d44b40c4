"""The states of a run and what leads from one to another. Every change of `sync_runs.status` goes through `move`."""

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
    """Its lease is over, and another worker goes on with it."""
    HAND_BACK = "hand back"
    RETRY_LATER = "retry later"
    COMPLETE = "complete"
    FAIL = "fail"
    STOP = "stop"
    """Its worker ends it because nobody asks for it any more, or because another run takes its place."""
    BLOCK = "block"
    STOP_AGAIN = "stop again"
    """A later run of the repository stopped for a person while this one is blocked."""
    ABANDON = "abandon"
    """Its lease is over, and no attempt is left."""
    NOBODY_ASKS = "nobody asks"
    """The last request was withdrawn."""
    APPROVE = "approve"
    RETRY = "retry"
    SUPERSEDE = "supersede"
    """A later run did what this blocked one was to do."""
    REQUEUE = "requeue"
    """A later run was completed, but did less than this blocked one is to do."""
    REMOVE = "remove"
    """The repository was removed."""


@dataclass(frozen=True, slots=True)
class Transition:
    """`sets`: columns that get this value, whatever they were."""

    to: RunStatus
    sets: Mapping[str, Any] = field(default_factory=dict)


_LEFT = {"lease_until": None}
_AFRESH = {
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
    (Event.STOP_AGAIN, (_B,), Transition(_B, _LEFT)),
    (Event.ABANDON, (_R,), Transition(_F, _LEFT)),
    (Event.NOBODY_ASKS, (_Q, _T, _B), Transition(_X, _LEFT)),
    (Event.NOBODY_ASKS, (_R,), Transition(_R, {"cancel_requested": True})),
    (Event.APPROVE, (_B,), Transition(_Q, _AFRESH)),
    (Event.RETRY, (_F, _X), Transition(_Q, _AFRESH)),
    (Event.SUPERSEDE, (_B,), Transition(_X, _LEFT)),
    (Event.REQUEUE, (_B,), Transition(_Q, {**_AFRESH, "brake": None})),
    (Event.REMOVE, (_Q, _T, _R, _B), Transition(_X, _LEFT)),
)

TABLE: Mapping[tuple[RunStatus, Event], Transition] = MappingProxyType(
    {(state, event): transition for event, states, transition in _RULES for state in states}
)


def transition(status: str, event: Event, run_id: str) -> Transition:
    """Raises RunStateConflict for what cannot happen to a run in that state, one that a newer program wrote too."""
    found = TABLE.get((cast(RunStatus, status), event))
    if found is None:
        raise RunStateConflict(f"Run {run_id} is {status}: {event} does not apply to it.")
    return found


def locked(database: Database, *which: ColumnElement[bool]) -> Select[Any]:
    """Rows of runs for `move`, kept from others until the transaction ends, with the database's time as `now`. Always
    in the same order, so that two who lock several wait for each other and do not deadlock. Where a repository's row is
    locked too, lock that one first."""
    query = select(*RUNS.c, database.moment().label("now")).where(*which)
    # Not by the bare id: SQLite would go through the whole history in that order to save the sorting of a few rows.
    return query.order_by(RUNS.c.id.concat("")).with_for_update()


async def lock_unfinished(connection: AsyncConnection, database: Database, identity: str) -> list[Row[Any]]:
    """The runs of the repository that something may still happen to, `locked`. The caller has locked the repository."""
    mine = RUNS.c.repository_id == identity
    rows: list[Row[Any]] = []
    # One query after the other: each has its index.
    for which in (is_active(), and_(is_over(), status_is(RunStatus.BLOCKED))):
        rows += (await connection.execute(locked(database, mine, which))).all()
    return rows


async def move(connection: AsyncConnection, database: Database, row: Row[Any], event: Event, **said: Any) -> Row[Any]:
    """The row after `event`, with the columns that are `said` besides; `row` as `locked` returned it. A run that waits
    again does so as `retrying` where another run of its repository is queued: there is one place for `queued`. The
    caller has locked the repository then. Raises RunStateConflict."""
    step = transition(row.status, event, row.id)
    status, changes = step.to, {**step.sets, **said}
    if status in WAITING:
        if status is RunStatus.QUEUED and await _is_taken(connection, row):
            status = RunStatus.RETRYING
        await database.announce(connection, QUEUE)
    if status in FINAL:
        changes["completed_at"] = row.now
    if row.status == RunStatus.RUNNING and status in FINAL:
        changes["duration_seconds"] = max(0.0, (row.now - row.started_at).total_seconds()) if row.started_at else 0.0
    query = update(RUNS).where(RUNS.c.id == row.id).values(status=status, **changes)
    return (await connection.execute(query.returning(*RUNS.c, database.moment().label("now")))).one()


async def _is_taken(connection: AsyncConnection, row: Row[Any]) -> bool:
    queued = select(RUNS.c.id).where(
        RUNS.c.repository_id == row.repository_id, status_is(RunStatus.QUEUED), RUNS.c.id != row.id
    )
    return await connection.scalar(queued.limit(1)) is not None
