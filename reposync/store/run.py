"""A run as it was read from the execution log, and what goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row

from reposync.errors import UsageError
from reposync.store.status import ACTIVE, RunStatus, RunTrigger, known

_CURSOR_TIME = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """What a run did. `files_processed`: files whose content was stored in this run. `files_failed`: files of the
    commit that could not be read or embedded when it ended; what the index had of them before is still there."""

    commit_before: str | None = None
    commit_after: str | None = None
    files_processed: int = 0
    files_deleted: int = 0
    files_skipped: int = 0
    files_failed: int = 0
    chunks_embedded: int = 0
    chunks_reused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of `sync_runs`; a picture of one moment, never refreshed. Times are aware UTC.

    (id, attempt, worker) is the fence of every write that a worker makes in the run's name. `started_at` and
    `duration_seconds` are of the latest attempt. `full`: index everything again; what has an epoch above
    `full_from_epoch` was read by this run already. `approved`: a person allowed the mass deletion that `brake`
    describes (its commit, and how many files lose their points for which reason), or, without `brake`, the one that is
    met first. `removal`: the repository goes, with its index. `repair`: every point is compared with what is recorded
    and mended; with `removal`, what is left in the index of a repository that is registered no more goes. `progress` is
    whatever the executing worker last said. While it waits, `trigger`, `priority`, `max_attempts`, `full`, `approved`,
    `removal` and `repair` follow from its requests; `handed_back` attempts do not count.
    """

    id: str
    repository_id: str
    repository: str
    status: RunStatus | str
    trigger: RunTrigger | str
    priority: int
    scheduled_for: datetime | None
    not_before: datetime
    queued_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    duration_seconds: float | None
    attempt: int
    max_attempts: int
    worker: str | None
    lease_until: datetime | None
    handed_back: int
    full: bool
    approved: bool
    removal: bool
    repair: bool
    cancel_requested: bool
    full_from_epoch: int | None
    brake: Mapping[str, Any] | None
    progress: Mapping[str, Any] | None
    commit_before: str | None
    commit_after: str | None
    files_processed: int
    files_deleted: int
    files_skipped: int
    files_failed: int
    chunks_embedded: int
    chunks_reused: int
    error_code: str | None
    error_message: str | None

    @property
    def failures(self) -> int:
        """How many attempts began and were not handed back: the one under way is among them."""
        return self.attempt - self.handed_back

    @property
    def waited_seconds(self) -> float:
        """From the moment at which it was due, or its last worker's lease was over, to the start of this attempt."""
        due_at = max(self.queued_at, self.not_before)
        return max(0.0, (self.started_at - due_at).total_seconds()) if self.started_at else 0.0

    @property
    def is_final(self) -> bool:
        return self.status not in ACTIVE

    @property
    def cursor(self) -> str:
        """Where a page of history that ends with this run goes on (`Runs.history(before=...)`)."""
        return f"{self.queued_at.strftime(_CURSOR_TIME)}_{self.id}"


@dataclass(frozen=True, slots=True)
class HeartbeatState:
    """`lease_until` by the database's clock; `cancel_requested`: a person wants the run to end."""

    lease_until: datetime
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """`counts` by status, without those that ended; `oldest_seconds`: how long the oldest due run has waited."""

    counts: Mapping[str, int]
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class RunProblem:
    """A file that was skipped or failed: `reason` is a `Skip` value, `detail` a sentence for a person."""

    path: str
    reason: str
    detail: str


_FIELDS = frozenset(each.name for each in fields(Run))


def run_record(row: Row[Any]) -> Run:
    values = {name: value for name, value in row._mapping.items() if name in _FIELDS}
    values["status"] = known(RunStatus, values["status"])
    values["trigger"] = known(RunTrigger, values["trigger"])
    return Run(**values)


def parse_cursor(cursor: str) -> tuple[datetime, str]:
    """Raises UsageError for anything that `Run.cursor` never makes."""
    moment, _, run_id = cursor.partition("_")
    try:
        return datetime.strptime(moment, _CURSOR_TIME).replace(tzinfo=UTC), run_id
    except ValueError as error:
        raise UsageError("That cursor is not one of ours.", remedy="Use `next_cursor` of the page before.") from error
