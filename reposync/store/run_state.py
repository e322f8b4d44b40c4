"""What decides about a run: the requests for it, and the transitions between its states.

Every change of `sync_runs.status` goes through `move`. A run that waits does what its live requests (those that are not
withdrawn) ask for.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from sqlalchemy import ColumnElement, Row, Select, and_, insert, select, update

from reposync.errors import RunStateConflict
from reposync.store.database import QUEUE, Connection
from reposync.store.run import IN_ADVANCE, RunRequest
from reposync.store.status import FINAL, PRIORITIES, WAITING, RunStatus, RunTrigger
from reposync.store.tables import REPOSITORIES, REQUESTS, RUNS, is_active, is_over, status_is

MAX_ATTEMPTS = 3
MAX_REQUESTER_CHARS = 300

_COLUMNS = tuple(REQUESTS.c[name] for name in RunRequest.model_fields)


class Event(StrEnum):
    CLAIM = "claim"
    """Of a run that waits, or whose lease ended."""
    HAND_BACK = "hand back"
    RETRY_LATER = "retry later"
    COMPLETE = "complete"
    FAIL = "fail"
    STOP = "stop"
    """Its requests were withdrawn, a different run takes its place, or the repository was removed."""
    BLOCK = "block"
    """At a deletion brake: its own, or, while it is blocked, that of a later run of the repository."""
    WITHDRAW = "withdraw"
    """The last request was withdrawn."""
    APPROVE = "approve"
    """By a person; or a later run was completed, but did less than this blocked one has to do."""
    RETRY = "retry"


_Q, _T, _R = RunStatus.QUEUED, RunStatus.RETRYING, RunStatus.RUNNING
_C, _F, _X, _B = RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.BLOCKED
_LEFT = {"lease_until": None}
_RESET = {
    "lease_until": None,
    "completed_at": None,
    "duration_seconds": None,
    "commit_after": None,
    "cancel_requested": False,
    "error_code": None,
    "error_message": None,
}
_RULES: tuple[tuple[Event, tuple[RunStatus, ...], RunStatus, Mapping[str, Any]], ...] = (
    (Event.CLAIM, (_Q, _T, _R), _R, {"progress": None}),
    (Event.HAND_BACK, (_R,), _Q, _LEFT),
    (Event.RETRY_LATER, (_R,), _T, _LEFT),
    (Event.COMPLETE, (_R,), _C, _LEFT),
    (Event.FAIL, (_R,), _F, _LEFT),
    (Event.STOP, (_Q, _T, _R, _B), _X, _LEFT),
    (Event.BLOCK, (_R, _B), _B, _LEFT),
    (Event.WITHDRAW, (_Q, _T, _B), _X, _LEFT),
    (Event.WITHDRAW, (_R,), _R, {"cancel_requested": True}),
    (Event.APPROVE, (_B,), _Q, _RESET),
    (Event.RETRY, (_F, _X), _Q, _RESET),
)
TRANSITIONS = {(state, event): (to, sets) for event, states, to, sets in _RULES for state in states}
"""(status, event) -> the new status, and columns that always get these values."""


def locked(connection: Connection, *which: ColumnElement[bool]) -> Select[Any]:
    """Rows of runs for `move`, locked until the transaction ends, with the database's time as `now`, in the order of
    their ids. The order with other rows: see `lock_repositories`."""
    # Not by the bare id: SQLite would scan the whole history in that order to save sorting a few rows.
    return with_now(connection, *which).order_by(RUNS.c.id.concat("")).with_for_update()


def with_now(connection: Connection, *which: ColumnElement[bool]) -> Select[Any]:
    return select(*RUNS.c, connection.moment().label("now")).where(*which)


async def lock_unfinished(connection: Connection, identity: str) -> list[Row[Any]]:
    """The unfinished and blocked runs of the repository, `locked`. The caller has locked the repository."""
    mine = RUNS.c.repository_id == identity
    rows: list[Row[Any]] = []
    # Separate queries, each with its index.
    for which in (is_active(), and_(is_over(), status_is(RunStatus.BLOCKED))):
        rows += await connection.rows(locked(connection, mine, which))
    return rows


async def move(connection: Connection, row: Row[Any], event: Event, **columns: Any) -> Row[Any]:
    """The row after `event`, with these columns changed as well; `row` as `locked` returned it. A run that waits again
    becomes `retrying` if a different run of its repository is queued: only one can be `queued`. In that case the caller
    has locked the repository. Raises RunStateConflict."""
    if (step := TRANSITIONS.get((row.status, event))) is None:  # also for states of newer programs
        raise RunStateConflict(f"Run {row.id} is {row.status}: {event} does not apply to it.")
    status, changes = step[0], {**step[1], **columns}
    if status in WAITING:
        queued = RUNS.c.repository_id == row.repository_id, status_is(RunStatus.QUEUED), RUNS.c.id != row.id
        if status is RunStatus.QUEUED and await connection.scalar(select(RUNS.c.id).where(*queued)) is not None:
            status = RunStatus.RETRYING
        await connection.announce(QUEUE)
    if status in FINAL:
        changes["completed_at"] = row.now
    changes |= _of_run(row, status, event)
    query = update(RUNS).where(RUNS.c.id == row.id).values(status=status, **changes)
    return await connection.one(query.returning(*RUNS.c, connection.moment().label("now")))


def attempt_end(row: Row[Any]) -> datetime:
    """When the attempt of a running run ends if it ends now. One without a worker ended with its lease, and not when
    that is noticed, which may be a night later."""
    lease_until = row.now if row.lease_until is None else row.lease_until
    return cast(datetime, max(row.started_at, min(lease_until, row.now)))


def _of_run(row: Row[Any], status: RunStatus, event: Event) -> dict[str, Any]:
    """Start, durations and first commit of the run `row`."""
    columns: dict[str, Any] = {}
    begins = event is Event.CLAIM and row.first_started_at is None
    again = row.status in FINAL and status in WAITING
    if begins:
        columns["first_started_at"] = row.started_at or row.now
    if begins or again:
        # At the start of an attempt it would be a commit that an earlier one has published.
        mine = REPOSITORIES.c.id == row.repository_id
        columns["commit_before"] = select(REPOSITORIES.c.last_commit).where(mine).scalar_subquery()
    if again:
        columns["earlier_seconds"] = row.earlier_seconds + (row.duration_seconds or 0.0)
    elif row.status == RunStatus.RUNNING and event is not Event.WITHDRAW:
        seconds = (attempt_end(row) - row.started_at).total_seconds() if row.started_at else 0.0
        if status in FINAL:
            columns["duration_seconds"] = seconds
        else:
            columns["earlier_seconds"] = row.earlier_seconds + seconds
    return columns


# Requests ------------------------------------------------------------------------------------------------------------


def new_request(
    trigger: str, now: datetime | ColumnElement[datetime], *, asked_by: str = "", **columns: Any
) -> RunRequest:
    """A request without a run yet; `asked_at` is an SQL expression if `now` is one."""
    defaults: dict[str, Any] = {"id": str(uuid.uuid4()), "priority": _rank(trigger), "max_attempts": MAX_ATTEMPTS}
    return RunRequest.model_construct(
        trigger=trigger,
        asked_by=(asked_by or trigger)[:MAX_REQUESTER_CHARS],
        asked_at=now,  # type: ignore[arg-type]
        **defaults | {name: value for name, value in columns.items() if value is not None},
    )


def new_run(identity: str, name: str, now: Any, requests: Sequence[RunRequest]) -> dict[str, Any]:
    """The columns of a run that waits from `now` on, for these requests."""
    return {
        "id": str(uuid.uuid4()),
        "repository_id": identity,
        "repository": name,
        "status": RunStatus.QUEUED,
        "scheduled_for": None,
        "not_before": now,
        "queued_at": now,
        "attempt": 0,
        **derive(requests, brake=None, handed_back=0),
    }


async def add_run(connection: Connection, identity: str, name: str, requests: Sequence[RunRequest]) -> Row[Any]:
    """The caller adds or moves the requests."""
    new = insert(RUNS).values(**new_run(identity, name, connection.moment(), requests))
    return await connection.one(new.returning(*RUNS.c))


def _rank(trigger: str) -> int:
    """A trigger of a newer program has the rank of a schedule."""
    return PRIORITIES.get(trigger, PRIORITIES[RunTrigger.SCHEDULE])


def derive(live: Sequence[RunRequest], *, brake: Mapping[str, Any] | None, handed_back: int) -> dict[str, Any]:
    """The columns of a run that follow from its live requests, oldest first; none if there are none. An approval counts
    if it is in advance, or for what the run stopped at last. A removal with `repair` is different:
    it removes orphaned points."""
    if not live:
        return {}
    urgent = min(live, key=lambda each: _rank(each.trigger))
    removal = any(each.removal for each in live)
    return {
        "trigger": urgent.trigger,
        "priority": min(each.priority for each in live),
        "max_attempts": max(each.max_attempts for each in live) + handed_back,
        "full": any(each.full for each in live),
        "removal": removal,
        "repair": any(each.repair and (each.removal or not removal) for each in live),
        "approved": any(is_approval_of(each.approval, brake) for each in live),
    }


def is_approval_of(approval: Mapping[str, Any] | None, brake: Mapping[str, Any] | None) -> bool:
    """Whether an approval counts for a run that stopped at `brake` last (None: at nothing yet)."""
    return bool(approval) and (brake is None or approval in (IN_ADVANCE, brake))


# In a transaction that has locked the run ---------------------------------------------------------------------------


async def add_requests(connection: Connection, requests: Iterable[RunRequest], **columns: Any) -> None:
    rows = [{**{column.name: getattr(each, column.name) for column in _COLUMNS}, **columns} for each in requests]
    if len(rows) == 1:  # whose time may be an expression
        await connection.execute(insert(REQUESTS).values(**rows[0]))
    elif rows:
        await connection.execute(insert(REQUESTS), rows)


async def live_requests(connection: Connection, run_id: str) -> list[RunRequest]:
    """Oldest first."""
    return [each for each in (await read_requests(connection, [run_id])).get(run_id, []) if each.is_live]


async def apply_requests(connection: Connection, row: Row[Any], **changes: Any) -> Row[Any]:
    """Update the run to what its live requests ask for."""
    columns = derive(await live_requests(connection, row.id), brake=row.brake, handed_back=row.handed_back) | changes
    if not columns:
        return row
    query = update(RUNS).where(RUNS.c.id == row.id).values(**columns)
    return await connection.one(query.returning(*RUNS.c))


async def change_requests(connection: Connection, ids: Collection[str], **columns: Any) -> None:
    await connection.execute(update(REQUESTS).where(REQUESTS.c.id.in_(ids)).values(**columns))


async def withdraw(
    connection: Connection, row: Row[Any], by: str, which: ColumnElement[bool] | None = None, **ending: Any
) -> Row[Any]:
    """Withdraw the live requests of the run, or those `which`. If none is left, the run is cancelled, or asked to end;
    `ending`: columns for that case. A finished run is unchanged."""
    if (row.status, Event.WITHDRAW) not in TRANSITIONS:
        return row
    query = update(REQUESTS).where(REQUESTS.c.run_id == row.id, REQUESTS.c.withdrawn_at.is_(None))
    if which is not None:
        query = query.where(which)
    values = {"withdrawn_at": connection.moment(), "withdrawn_by": by[:MAX_REQUESTER_CHARS]}
    withdrawn = await connection.change(query.values(**values))
    if which is not None and not withdrawn:
        return row
    if not await live_requests(connection, row.id):
        return await move(connection, row, Event.WITHDRAW, **ending)
    if row.status == RunStatus.RUNNING:  # what it does was decided when it was claimed
        return row
    return await apply_requests(connection, row)


async def transfer_requests(connection: Connection, row: Row[Any], target: Row[Any]) -> None:
    """Move the live requests of the run `row` to the run `target`, which waits or is blocked. `row` keeps a withdrawn
    copy of each, for its history. A tick is dropped if `target` has one already."""
    has_tick = any(each.is_tick for each in await live_requests(connection, target.id))
    withdrawn = {"withdrawn_at": connection.moment(), "withdrawn_by": f"run {target.id}"}
    for each in await live_requests(connection, row.id):
        if each.is_tick and has_tick:
            await change_requests(connection, [each.id], **withdrawn)
            continue
        has_tick = has_tick or each.is_tick
        await add_requests(connection, [each.model_copy(update={"id": str(uuid.uuid4())})], **withdrawn)
        await change_requests(connection, [each.id], run_id=target.id)
    await apply_requests(connection, target)


async def read_requests(connection: Connection, run_ids: Collection[str]) -> dict[str, list[RunRequest]]:
    """By the id of the run, oldest first."""
    query = select(*_COLUMNS).where(REQUESTS.c.run_id.in_(run_ids)).order_by(REQUESTS.c.asked_at, REQUESTS.c.id)
    found: dict[str, list[RunRequest]] = {}
    for row in await connection.rows(query):
        found.setdefault(row.run_id, []).append(RunRequest.of(row))
    return found
