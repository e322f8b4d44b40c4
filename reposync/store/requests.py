"""Who asked for a run, and for what. A run that waits does what its requests say that are not withdrawn."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.store.database import Database
from reposync.store.status import PRIORITIES, RunStatus, RunTrigger
from reposync.store.tables import REQUESTS, RUNS
from reposync.store.transitions import Event, move

MAX_ATTEMPTS = 3
MAX_ASKER_CHARS = 300

_FLAGS = ("full", "repair", "removal")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A row of `run_requests`. `asked_by`: a token, `user@host` of a command, a delivery of a webhook, or what else
    asked. `approval`: see `RequestRow`. `max_attempts`: how many attempts may fail, of all that the run has had."""

    id: str
    run_id: str
    repository_id: str
    trigger: str
    asked_by: str
    asked_at: datetime
    scheduled_for: datetime | None
    priority: int
    max_attempts: int
    full: bool
    repair: bool
    removal: bool
    approval: Mapping[str, Any] | None
    withdrawn_at: datetime | None
    withdrawn_by: str | None

    @property
    def is_live(self) -> bool:
        return self.withdrawn_at is None


_COLUMNS = tuple(REQUESTS.c[each.name] for each in fields(RunRequest))


def new_request(
    trigger: str,
    now: datetime | ColumnElement[datetime],
    *,
    asked_by: str = "",
    request_id: str | None = None,
    scheduled_for: datetime | None = None,
    priority: int | None = None,
    max_attempts: int = MAX_ATTEMPTS,
    full: bool = False,
    repair: bool = False,
    removal: bool = False,
    approval: Mapping[str, Any] | None = None,
) -> RunRequest:
    """Of no run yet; `asked_at` is an expression of SQL if `now` is one."""
    return RunRequest(
        id=request_id or str(uuid.uuid4()),
        run_id="",
        repository_id="",
        trigger=trigger,
        asked_by=(asked_by or trigger)[:MAX_ASKER_CHARS],
        asked_at=now,  # type: ignore[arg-type]
        scheduled_for=scheduled_for,
        priority=_rank(trigger) if priority is None else priority,
        max_attempts=max_attempts,
        full=full,
        repair=repair,
        removal=removal,
        approval=approval,
        withdrawn_at=None,
        withdrawn_by=None,
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
    """A trigger of a newer program goes with the clock's."""
    return PRIORITIES.get(trigger, PRIORITIES[RunTrigger.SCHEDULE])


def derive(live: Sequence[RunRequest], *, brake: Mapping[str, Any] | None, handed_back: int) -> dict[str, Any]:
    """The columns of a run that follow from its requests, the oldest first, of which there is one at least. An approval
    counts if it was given beforehand or is of what the run stopped at last. A removal that repairs is another thing:
    see `leftovers`."""
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


def unexplained(row: Row[Any], known: Sequence[RunRequest]) -> RunRequest | None:
    """A request for what the run's row asks for and none of its requests, live or withdrawn, ever did: a program that
    knows no requests queued it, or joined it."""
    flags = {flag: bool(getattr(row, flag)) for flag in _FLAGS}
    trigger, priority = row.trigger, row.priority
    if known:
        asked = derive(known, brake=row.brake, handed_back=row.handed_back)
        flags = {flag: value and not asked[flag] for flag, value in flags.items()}
        is_approved = bool(row.approved) and not asked["approved"]
        if not any(flags.values()) and not is_approved and priority >= asked["priority"]:
            return None
        trigger = RunTrigger.WEBHOOK if priority == PRIORITIES[RunTrigger.WEBHOOK] else RunTrigger.HTTP
    else:
        is_approved = bool(row.approved)
    request = new_request(
        trigger,
        row.queued_at,
        full=flags["full"],
        repair=flags["repair"],
        removal=flags["removal"],
        scheduled_for=None if known else row.scheduled_for,
        priority=priority,
        max_attempts=max(1, row.max_attempts - row.handed_back),
        approval=(row.brake or {}) if is_approved else None,
    )
    return replace(request, run_id=row.id, repository_id=row.repository_id)


# In a transaction that has locked the run ---------------------------------------------------------------------------


async def add_requests(connection: AsyncConnection, requests: Iterable[RunRequest], **columns: Any) -> None:
    rows = [{**{column.name: getattr(each, column.name) for column in _COLUMNS}, **columns} for each in requests]
    if len(rows) == 1:  # whose time may be an expression
        await connection.execute(insert(REQUESTS).values(**rows[0]))
    elif rows:
        await connection.execute(insert(REQUESTS), rows)


async def live_requests(connection: AsyncConnection, row: Row[Any]) -> list[RunRequest]:
    """Those of the run that are not withdrawn, the oldest first."""
    return (await live_requests_of(connection, [row]))[row.id]


async def live_requests_of(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> dict[str, list[RunRequest]]:
    """As `live_requests`, of several runs, by the id of the run."""
    known = await read_requests(connection, [row.id for row in rows])
    missing = [each for row in rows if (each := unexplained(row, known.get(row.id, ())))]
    await add_requests(connection, missing)
    for each in missing:
        known.setdefault(each.run_id, []).append(each)
    return {row.id: sorted((each for each in known.get(row.id, ()) if each.is_live), key=_age) for row in rows}


def _age(request: RunRequest) -> tuple[datetime, str]:
    return request.asked_at, request.id


async def follow_requests(
    connection: AsyncConnection, row: Row[Any], live: Sequence[RunRequest], **changes: Any
) -> Row[Any]:
    """The run as its live requests want it."""
    columns = derive(live, brake=row.brake, handed_back=row.handed_back) | changes
    query = update(RUNS).where(RUNS.c.id == row.id).values(**columns)
    return (await connection.execute(query.returning(*RUNS.c))).one()


async def withdraw(
    connection: AsyncConnection,
    database: Database,
    row: Row[Any],
    gone: Sequence[RunRequest],
    live: Sequence[RunRequest],
    by: str,
    **ending: Any,
) -> Row[Any]:
    """Withdraw `gone`, some of the `live` requests of the run. Where none is left it is cancelled, or asked to end;
    `ending`: columns for that."""
    ids = [each.id for each in gone]
    said = {"withdrawn_at": database.moment(), "withdrawn_by": by[:MAX_ASKER_CHARS]}
    await connection.execute(update(REQUESTS).where(REQUESTS.c.id.in_(ids)).values(**said))
    left = [each for each in live if each.id not in ids]
    if not left:
        return await move(connection, database, row, Event.NOBODY_ASKS, **ending)
    if row.status == RunStatus.RUNNING:  # what it does was settled when it was claimed
        return row
    return await follow_requests(connection, row, left)


async def use_up_approvals(connection: AsyncConnection, row: Row[Any]) -> None:
    """What was allowed beforehand holds for the brake that was met, and for no other one."""
    live = await live_requests(connection, row)
    given = [each.id for each in live if each.approval == {}]
    await connection.execute(update(REQUESTS).where(REQUESTS.c.id.in_(given)).values(approval=None))


async def withdraw_of(
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
        gone = [each for each in live[row.id] if each.trigger in triggers]
        if gone:
            await withdraw(connection, database, row, gone, live[row.id], by, **ending)


async def pass_on(
    connection: AsyncConnection,
    database: Database,
    requests: Sequence[RunRequest],
    target: Row[Any],
    there: Sequence[RunRequest],
) -> None:
    """`requests` are those of the run `target` from now on, which waits or is blocked and has the live requests
    `there`. The run that they leave keeps a copy of each, withdrawn: it shows who asked. A tick is let go where another
    one asks already."""
    together = list(there)
    ticked = any(map(is_tick, there))
    said = {"withdrawn_at": database.moment(), "withdrawn_by": f"run {target.id}"}
    for each in requests:
        if is_tick(each) and ticked:
            await connection.execute(update(REQUESTS).where(REQUESTS.c.id == each.id).values(**said))
            continue
        ticked = ticked or is_tick(each)
        await add_requests(connection, [replace(each, id=str(uuid.uuid4()))], **said)
        await connection.execute(update(REQUESTS).where(REQUESTS.c.id == each.id).values(run_id=target.id))
        together.append(each)
    if together:
        await follow_requests(connection, target, sorted(together, key=_age))


def is_tick(request: RunRequest) -> bool:
    """And nothing besides: one of these asks for what all of them do."""
    more = request.approval is not None or any(getattr(request, flag) for flag in _FLAGS)
    return request.trigger == RunTrigger.SCHEDULE and request.scheduled_for is not None and not more


# Reading -------------------------------------------------------------------------------------------------------------


async def read_requests(connection: AsyncConnection, run_ids: Collection[str]) -> dict[str, list[RunRequest]]:
    """By the id of the run, the oldest first."""
    query = select(*_COLUMNS).where(REQUESTS.c.run_id.in_(run_ids)).order_by(REQUESTS.c.asked_at, REQUESTS.c.id)
    found: dict[str, list[RunRequest]] = {}
    for row in await connection.execute(query):
        found.setdefault(row.run_id, []).append(RunRequest(**row._mapping))
    return found


async def read_askers(connection: AsyncConnection, run_ids: Collection[str], at_most: int) -> dict[str, list[str]]:
    """Who asked for each of these runs, each of them once, in the order in which they did: the first `at_most`, and how
    many more there are, in words."""
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
    query = select(ranked).where(ranked.c.place <= at_most).order_by(ranked.c.run_id, ranked.c.place)
    found: dict[str, list[str]] = {}
    for row in await connection.execute(query):
        askers = found.setdefault(row.run_id, [])
        askers.append(row.asked_by)
        if row.place == at_most and row.number > at_most:
            askers.append(f"{row.number - at_most:,} more")
    return found
