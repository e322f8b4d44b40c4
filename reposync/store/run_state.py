"""What decides about a run: who asks for it, and the transitions between its states.

A run is one row. Every change of its status is in `TRANSITIONS`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, case, exists, func, insert, select, update

from reposync.errors import RunStateConflict
from reposync.store.columns import sanitize_text, truncate
from reposync.store.database import Connection
from reposync.store.run import COUNTS, Ask, Run, RunAttempt, RunCounts, RunFigures
from reposync.store.status import ACTIVE, FINAL, LOST, PRIORITIES, WAITING, RunStatus, RunTrigger
from reposync.store.tables import CLAIM_ORDER, PROBLEMS, REPOSITORIES, RUNS, is_active, status_is

MAX_REQUESTS = 100
"""Listed in the row of a run."""

REPOSITORY_REMOVED = "REPOSITORY_REMOVED"
"""Error code of the attempts and runs that the removal of their repository ended."""


_OF_WORK = ("files_processed", "files_deleted", "files_failed", "chunks_embedded", "error_code", "error_message")


class Event(StrEnum):
    CLAIM = "claim"
    HAND_BACK = "hand back"
    RETRY_LATER = "retry later"
    """Its attempt failed, or lost its worker."""
    COMPLETE = "complete"
    FAIL = "fail"
    STOP = "stop"
    """It was cancelled, a different run takes its place, or the repository was removed."""
    BLOCK = "block"
    """At a deletion brake: its own, or, while it is blocked, that of a later run of the repository."""
    CANCEL = "cancel"
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
    "commit_title": None,
    "commit_author": None,
    "cancel_requested": False,
    "error_code": None,
    "error_message": None,
}
_RULES: tuple[tuple[Event, tuple[RunStatus, ...], RunStatus, Mapping[str, Any]], ...] = (
    (Event.CLAIM, (_Q, _T), _R, {"progress": None, "attempt_so_far": None}),
    (Event.HAND_BACK, (_R,), _Q, _LEFT),
    (Event.RETRY_LATER, (_R,), _T, _LEFT),
    (Event.COMPLETE, (_R,), _C, _LEFT),
    (Event.FAIL, (_R,), _F, _LEFT),
    (Event.STOP, (_Q, _T, _R, _B), _X, _LEFT),
    (Event.BLOCK, (_R, _B), _B, _LEFT),
    (Event.CANCEL, (_Q, _T, _B), _X, _LEFT),
    (Event.CANCEL, (_R,), _R, {"cancel_requested": True}),
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


async def lock_unfinished(connection: Connection, identity: str) -> Sequence[Row[Any]]:
    """The unfinished and blocked runs of the repository, `locked`. The caller has locked the repository."""
    unfinished = status_is(*ACTIVE, RunStatus.BLOCKED)
    return await connection.rows(locked(connection, RUNS.c.repository_id == identity, unfinished))


async def move(
    connection: Connection,
    row: Row[Any],
    event: Event,
    *,
    outcome: str | None = None,
    figures: RunFigures | None = None,
    **columns: Any,
) -> Row[Any]:
    """The row after `event`, with these columns changed as well; `row` as `locked` returned it. A run that waits again
    becomes `retrying` if a different run of its repository is queued: only one can be `queued`. In that case the caller
    has locked the repository. If an attempt ends with it: `outcome` is its new status by default, and `figures` None if
    those of the last heartbeat count. Raises RunStateConflict."""
    if (step := TRANSITIONS.get((row.status, event))) is None:  # also for states of newer programs
        raise RunStateConflict(f"Run {row.id} is {row.status}: {event} does not apply to it.")
    status, changes = step[0], {**step[1], **columns}
    if status in WAITING:
        changes.setdefault("waits_since", row.now)
        await connection.announce()
    if row.status in FINAL and status in WAITING:  # it begins again
        own = REPOSITORIES.c.id == row.repository_id
        changes["commit_before"] = select(REPOSITORIES.c.last_commit).where(own).scalar_subquery()
    if row.status == RunStatus.RUNNING and status is not RunStatus.RUNNING:
        error = {name: changes.get(name, getattr(row, name)) for name in ("error_code", "error_message")}
        changes |= _attempt_ended(row, outcome or str(status), figures, error)
    if status in FINAL:
        changes["completed_at"] = row.now
        changes["duration_seconds"] = total_seconds(changes.get("attempts", row.attempts))
    if event is Event.COMPLETE:
        done = [changes.get(name, getattr(row, name)) for name in _OF_WORK]
        changes["idle"] = not (any(done) or row.removal or row.full or row.repair)
    changes["status"] = status
    if status is RunStatus.QUEUED:
        other = RUNS.alias("other")
        queued = exists().where(
            other.c.repository_id == row.repository_id, status_is(status, runs=other), other.c.id != row.id
        )
        changes["status"] = case((queued, RunStatus.RETRYING), else_=status)
    query = update(RUNS).where(RUNS.c.id == row.id).values(**changes)
    return await connection.one(query.returning(*RUNS.c, connection.moment().label("now")))


def _attempt_ended(
    row: Row[Any], outcome: str, figures: RunFigures | None, error: dict[str, str | None]
) -> dict[str, Any]:
    """The columns of the running run `row` whose attempt ends now. One without a worker ended with its lease, and not
    when that is noticed, which may be a night later; why is in the row if its worker could say it."""
    run = Run.of(row)
    lease_until = row.now if row.lease_until is None else row.lease_until
    ended_at = max(row.started_at, min(lease_until, row.now))
    end: dict[str, Any] = {"outcome": outcome, "ended_at": ended_at, **(counts_of(figures) if figures else {})}
    if outcome != LOST:
        end |= {name: value and sanitize_text(value) for name, value in error.items()}
    attempts = run.current_attempt.model_copy(update=end).listed_after(run.attempts)
    # Attempts that meet the same file list it once.
    listed = select(func.count()).where(PROBLEMS.c.run_id == row.id, PROBLEMS.c.reason != "failed")
    return {"attempts": attempts, **total_counts(attempts), "files_skipped": listed.scalar_subquery()}


def total_seconds(attempts: Sequence[Mapping[str, Any]]) -> float | None:
    """How long these entries lasted, without the pauses between them; None if there are none. One that stands for
    several spans pauses, and did nothing."""
    ended = [RunAttempt.model_validate(entry) for entry in attempts if entry["times"] == 1]
    lasted = [each.ended_at - each.started_at for each in ended if each.ended_at is not None]
    return sum(lasted, timedelta()).total_seconds() if attempts else None


def counts_of(figures: RunCounts) -> dict[str, int]:
    return {name: getattr(figures, name) for name in COUNTS}


def total_counts(attempts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The counts of a run with these attempts; the files that could not be read are those of the latest one."""
    totals = {name: sum(attempt.get(name, 0) for attempt in attempts) for name in COUNTS}
    return totals | {"files_failed": attempts[-1]["files_failed"]}


# Who asks for a run --------------------------------------------------------------------------------------------------


def _rank(trigger: str) -> int:
    """A trigger of a newer program has the rank of a schedule."""
    return PRIORITIES.get(trigger, PRIORITIES[RunTrigger.SCHEDULE])


def new_run(identity: str, name: str, ask: Ask, now: datetime) -> dict[str, Any]:
    """The columns of a run that waits from `now` on."""
    return {
        "id": str(uuid.uuid4()),
        "repository_id": identity,
        "repository": name,
        "status": RunStatus.QUEUED,
        "scheduled_for": None,
        "not_before": now,
        "queued_at": now,
        "trigger": ask.trigger,
        "priority": ask.priority,
        "max_attempts": ask.max_attempts,
        "full": ask.full,
        "removal": ask.removal,
        "repair": ask.repair,
        "approval": ask.approval,
        "asked": [ask.entry(now)],
    }


def joined(run: Row[Any], other: Ask | Row[Any], entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The columns of a run that waits, or is blocked, after it was asked for what `other` is to do as well. A removal
    stays one: its `repair` is of points without a repository."""
    handed_back = getattr(other, "handed_back", 0)
    return {
        "trigger": min(str(run.trigger), str(other.trigger), key=_rank),
        "priority": min(run.priority, other.priority),
        "max_attempts": max(run.max_attempts, other.max_attempts - handed_back + run.handed_back),
        "full": run.full or other.full,
        "repair": run.repair or (other.repair and not run.removal),
        "approval": other.approval or run.approval,
        "asked": _listed(run.asked, entries),
    }


def _listed(asked: Sequence[dict[str, Any]], entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    result = list(asked)
    for entry in entries:
        is_known = any(entry | {"asked_at": other["asked_at"]} == other for other in result)
        if len(result) < MAX_REQUESTS and (entry["trigger"] == RunTrigger.COMMAND or not is_known):
            result.append(entry)
    return result


async def queue_runs(
    connection: Connection, names: Mapping[str, str], ask: Ask, *, ticks: Mapping[str, datetime] | None = None
) -> list[tuple[Run, bool]]:
    """Ask for a run of each of these repositories (id -> name), which the caller has locked. A run that waits is joined
    (the one that is claimed first), and need not wait for its next attempt any more, unless only the schedule asks.
    Returns the runs, and whether they are new. `ticks`: by repository id. As many statements for many as for one.
    """
    if not names:
        return []
    now = await connection.now()
    waiting = and_(RUNS.c.repository_id.in_(names), is_active(), status_is(*WAITING))
    first: dict[str, Row[Any]] = {}
    for row in await connection.rows(select(RUNS).where(waiting).order_by(*CLAIM_ORDER).with_for_update()):
        first.setdefault(row.repository_id, row)
    runs: list[tuple[Run, bool]] = []
    changed, added = [], []
    for identity, name in names.items():
        tick = {} if ticks is None else {"scheduled_for": ticks[identity]}
        if (run := first.get(identity)) is None:
            added.append(new_run(identity, name, ask, now) | tick)
            continue
        pause = run.not_before if ask.trigger is RunTrigger.SCHEDULE else min(run.not_before, now)
        columns = joined(run, ask, [ask.entry(now)]) | {"not_before": pause} | tick
        if any(getattr(run, column) != value for column, value in columns.items()):
            changed.append({"run": run.id, **columns})
        runs.append((Run.of(run).model_copy(update=columns), False))
    if changed:
        await connection.execute(update(RUNS).where(RUNS.c.id == bindparam("run")), changed)
    if added:
        runs += [(Run.of(row), True) for row in await connection.rows(insert(RUNS).returning(*RUNS.c), added)]
    if added or (changed and ask.trigger is not RunTrigger.SCHEDULE):
        await connection.announce()
    return runs


async def cancel(connection: Connection, row: Row[Any], code: str, message: str, **columns: Any) -> Row[Any]:
    """A run that waits or is blocked ends; a running one at its next heartbeat; one that is over is unchanged."""
    if (row.status, Event.CANCEL) not in TRANSITIONS:
        return row
    return await move(connection, row, Event.CANCEL, error_code=code, error_message=truncate(message), **columns)
