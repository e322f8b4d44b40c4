"""Requests for runs. A run that waits does what its live requests (those that are not withdrawn) ask for."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.store.database import Database
from reposync.store.run import RunRequest
from reposync.store.status import PRIORITIES, RunStatus, RunTrigger
from reposync.store.tables import REQUESTS, RUNS
from reposync.store.transitions import Event, move

MAX_ATTEMPTS = 3
MAX_REQUESTER_CHARS = 300

_FLAGS = ("full", "repair", "removal")
_COLUMNS = tuple(REQUESTS.c[name] for name in RunRequest.model_fields)


def new_request(
    trigger: str,
    now: datetime | ColumnElement[datetime],
    *,
    asked_by: str = "",
    request_id: str | None = None,
    priority: int | None = None,
    **columns: Any,
) -> RunRequest:
    """A request without a run yet; `asked_at` is an SQL expression if `now` is one."""
    return RunRequest.model_construct(
        id=request_id or str(uuid.uuid4()),
        trigger=trigger,
        asked_by=(asked_by or trigger)[:MAX_REQUESTER_CHARS],
        asked_at=now,  # type: ignore[arg-type]
        priority=_rank(trigger) if priority is None else priority,
        **{"max_attempts": MAX_ATTEMPTS, **columns},
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


def _rank(trigger: str) -> int:
    """A trigger of a newer program has the rank of a schedule."""
    return PRIORITIES.get(trigger, PRIORITIES[RunTrigger.SCHEDULE])


def derive(live: Sequence[RunRequest], *, brake: Mapping[str, Any] | None, handed_back: int) -> dict[str, Any]:
    """The columns of a run that follow from its live requests, oldest first; there is at least one. An approval counts
    if it was given beforehand, or if it is for the brake that the run met last. A removal with `repair` is different:
    it removes orphaned points."""
    urgent = min(live, key=lambda each: _rank(each.trigger))
    removal = any(each.removal for each in live)
    return {
        "trigger": urgent.trigger,
        "priority": min(each.priority for each in live),
        "max_attempts": max(each.max_attempts for each in live) + handed_back,
        "full": any(each.full for each in live),
        "removal": removal,
        "repair": any(each.repair and (each.removal or not removal) for each in live),
        "approved": any(each.approval is not None and each.approval in ({}, brake) for each in live),
    }


def _implied_request(row: Row[Any], known: Sequence[RunRequest]) -> RunRequest | None:
    """A request for what only the run's row asks for, and none of its requests, live or withdrawn: a program before
    0.2, which writes no requests, queued the run or joined it."""
    flags: dict[str, Any] = {flag: bool(getattr(row, flag)) for flag in _FLAGS}
    trigger, is_approved = row.trigger, bool(row.approved)
    if known:
        derived = derive(known, brake=row.brake, handed_back=row.handed_back)
        flags = {flag: value and not derived[flag] for flag, value in flags.items()}
        is_approved = is_approved and not derived["approved"]
        if not any(flags.values()) and not is_approved and row.priority >= derived["priority"]:
            return None
        trigger = RunTrigger.WEBHOOK if row.priority == PRIORITIES[RunTrigger.WEBHOOK] else RunTrigger.HTTP
    return new_request(
        trigger,
        row.queued_at,
        **flags,
        run_id=row.id,
        repository_id=row.repository_id,
        scheduled_for=None if known else row.scheduled_for,
        priority=row.priority,
        max_attempts=max(1, row.max_attempts - row.handed_back),
        approval=(row.brake or {}) if is_approved else None,
    )


# In a transaction that has locked the run ---------------------------------------------------------------------------


async def add_requests(connection: AsyncConnection, requests: Iterable[RunRequest], **columns: Any) -> None:
    rows = [{**{column.name: getattr(each, column.name) for column in _COLUMNS}, **columns} for each in requests]
    if len(rows) == 1:  # whose time may be an expression
        await connection.execute(insert(REQUESTS).values(**rows[0]))
    elif rows:
        await connection.execute(insert(REQUESTS), rows)


async def live_requests(connection: AsyncConnection, row: Row[Any]) -> list[RunRequest]:
    """Oldest first."""
    return (await live_requests_of(connection, [row]))[row.id]


async def live_requests_of(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> dict[str, list[RunRequest]]:
    """The live requests of several runs, by the id of the run."""
    known = await read_requests(connection, [row.id for row in rows])
    missing = [each for row in rows if (each := _implied_request(row, known.get(row.id, ())))]
    await add_requests(connection, missing)
    for each in missing:
        known.setdefault(each.run_id, []).append(each)
    return {row.id: sorted((each for each in known.get(row.id, ()) if each.is_live), key=_age) for row in rows}


def _age(request: RunRequest) -> tuple[datetime, str]:
    return request.asked_at, request.id


async def apply_requests(
    connection: AsyncConnection, row: Row[Any], live: Sequence[RunRequest], **changes: Any
) -> Row[Any]:
    """Update the run to what its live requests ask for."""
    columns = derive(live, brake=row.brake, handed_back=row.handed_back) | changes
    query = update(RUNS).where(RUNS.c.id == row.id).values(**columns)
    return (await connection.execute(query.returning(*RUNS.c))).one()


async def change_requests(connection: AsyncConnection, ids: Collection[str], **columns: Any) -> None:
    await connection.execute(update(REQUESTS).where(REQUESTS.c.id.in_(ids)).values(**columns))


async def withdraw(
    connection: AsyncConnection,
    database: Database,
    row: Row[Any],
    withdrawn: Sequence[RunRequest],
    live: Sequence[RunRequest],
    by: str,
    **ending: Any,
) -> Row[Any]:
    """Withdraw some of the `live` requests of the run. If none is left, the run is cancelled, or asked to end;
    `ending`: columns for that case."""
    ids = [each.id for each in withdrawn]
    await change_requests(connection, ids, withdrawn_at=database.moment(), withdrawn_by=by[:MAX_REQUESTER_CHARS])
    left = [each for each in live if each.id not in ids]
    if not left:
        return await move(connection, database, row, Event.WITHDRAW, **ending)
    if row.status == RunStatus.RUNNING:  # what it does was decided when it was claimed
        return row
    return await apply_requests(connection, row, left)


async def withdraw_triggers(
    connection: AsyncConnection,
    database: Database,
    rows: Sequence[Row[Any]],
    triggers: Collection[str],
    by: str,
    **ending: Any,
) -> None:
    """Withdraw the requests of these runs that have one of these triggers; see `withdraw`."""
    live = await live_requests_of(connection, rows)
    for row in rows:
        withdrawn = [each for each in live[row.id] if each.trigger in triggers]
        if withdrawn:
            await withdraw(connection, database, row, withdrawn, live[row.id], by, **ending)


async def transfer_requests(
    connection: AsyncConnection,
    database: Database,
    requests: Sequence[RunRequest],
    target: Row[Any],
    present: Sequence[RunRequest],
) -> None:
    """Move `requests` to the run `target`, which waits or is blocked and has the live requests `present`. The run that
    they leave keeps a withdrawn copy of each, for its history. A tick is dropped if `target` has one already."""
    together = list(present)
    has_tick = any(each.is_tick for each in present)
    withdrawn = {"withdrawn_at": database.moment(), "withdrawn_by": f"run {target.id}"}
    for each in requests:
        if each.is_tick and has_tick:
            await change_requests(connection, [each.id], **withdrawn)
            continue
        has_tick = has_tick or each.is_tick
        await add_requests(connection, [each.model_copy(update={"id": str(uuid.uuid4())})], **withdrawn)
        await change_requests(connection, [each.id], run_id=target.id)
        together.append(each)
    if together:
        await apply_requests(connection, target, sorted(together, key=_age))


# Reading -------------------------------------------------------------------------------------------------------------


async def read_requests(connection: AsyncConnection, run_ids: Collection[str]) -> dict[str, list[RunRequest]]:
    """By the id of the run, oldest first."""
    query = select(*_COLUMNS).where(REQUESTS.c.run_id.in_(run_ids)).order_by(REQUESTS.c.asked_at, REQUESTS.c.id)
    found: dict[str, list[RunRequest]] = {}
    for row in await connection.execute(query):
        found.setdefault(row.run_id, []).append(RunRequest.of(row))
    return found


async def read_requesters(connection: AsyncConnection, run_ids: Collection[str], limit: int) -> dict[str, list[str]]:
    """The distinct `asked_by` of each run, oldest first: the first `limit`, and how many more there are, in words."""
    first = func.min(REQUESTS.c.asked_at)
    ranked = (
        select(
            REQUESTS.c.run_id,
            REQUESTS.c.asked_by,
            func.row_number()
            .over(partition_by=REQUESTS.c.run_id, order_by=(first, REQUESTS.c.asked_by))
            .label("place"),
            func.count().over(partition_by=REQUESTS.c.run_id).label("number"),
        )
        .where(REQUESTS.c.run_id.in_(run_ids))
        .group_by(REQUESTS.c.run_id, REQUESTS.c.asked_by)
        .subquery()
    )
    query = select(ranked).where(ranked.c.place <= limit).order_by(ranked.c.run_id, ranked.c.place)
    found: dict[str, list[str]] = {}
    for row in await connection.execute(query):
        requesters = found.setdefault(row.run_id, [])
        requesters.append(row.asked_by)
        if row.place == limit and row.number > limit:
            requesters.append(f"{row.number - limit:,} more")
    return found
