"""The records of the execution log: runs, who asked for them, their attempts and problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ConfigDict
from sqlalchemy import BigInteger, false, text
from sqlmodel import Field
from sqlmodel.sql.sqltypes import UTCDateTime

from reposync.errors import UsageError
from reposync.store.columns import JsonText, Record, SafeText, Word, known_fields
from reposync.store.status import ACTIVE, FINAL, PRIORITIES, RELEASED, WAITING, RunStatus, RunTrigger

_CURSOR_TIME = "%Y%m%dT%H%M%S.%fZ"

MAX_ATTEMPTS = 3
MAX_REQUESTER_CHARS = 300
REQUESTERS_SHOWN = 5

IN_ADVANCE: dict[str, Any] = {"in_advance": True}
"""An approval of the first mass deletion that the run meets; it is replaced by the facts of that deletion."""


class _Status(Word):
    cache_ok = True
    words = RunStatus


class _Trigger(Word):
    cache_ok = True
    words = RunTrigger


class RunCounts(Record):
    """How much was done. `files_processed`: files whose content was stored; of these the index did not have
    `files_added`, and had `files_changed` with a different content. `files_failed`: files of the commit that could not
    be read or embedded; the index keeps what it had of them."""

    files_processed: int = 0
    files_added: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    files_changed: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    files_deleted: int = 0
    files_skipped: int = 0
    files_failed: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    chunks_embedded: int = 0
    chunks_reused: int = 0


COUNTS = tuple(RunCounts.model_fields)

RUN_KEYS = (
    "id",
    "repository",
    "status",
    "trigger",
    "scheduled_for",
    "queued_at",
    "next_attempt_at",
    "started_at",
    "completed_at",
    "duration_seconds",
    "elapsed_seconds",
    "attempt",
    "worker",
    "commit_before",
    "commit_after",
    "commit_title",
    "commit_author",
    *COUNTS,
    "error_code",
    "error_message",
)
"""What the history shows of a run, to commands and over HTTP alike; see `Run.document`."""


class RunFigures(RunCounts):
    """What a run did so far."""

    model_config = ConfigDict(frozen=False)  # type: ignore[assignment]  # as in `Record`

    commit_after: str | None = None
    commit_title: str | None = None
    """The first line of the message of the head, and its author; without secrets."""
    commit_author: str | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a run. It joins a run of the repository that waits already (`run_state.joined`)."""

    trigger: RunTrigger
    asked_by: str = ""
    """A token, `user@host` of a command, a delivery of a webhook, or another client; by default the trigger's name."""
    full: bool = False
    repair: bool = False
    removal: bool = False
    """The repository is removed; with `repair`, the points of one that is no longer registered."""
    approval: Mapping[str, Any] | None = None
    """What the run may do although it would be blocked: see `Run.approval`. IN_ADVANCE becomes what the blocked run of
    the repository stopped at, if there is one."""
    max_attempts: int = MAX_ATTEMPTS
    """How many attempts may fail."""

    @property
    def priority(self) -> int:
        return PRIORITIES[self.trigger]

    def entry(self, now: datetime) -> dict[str, Any]:
        """For `Run.asked`."""
        who = (self.asked_by or self.trigger)[:MAX_REQUESTER_CHARS]
        request = RunRequest(str(self.trigger), who, now, self.full, self.repair, self.removal, self.approval)
        return asdict(request) | {"asked_at": now.isoformat()}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Who asked for a run, when and for what. Nothing is decided by it: what a run does is in its other columns."""

    trigger: str
    asked_by: str
    asked_at: datetime
    full: bool = False
    repair: bool = False
    removal: bool = False
    approval: Mapping[str, Any] | None = None


class RunAttempt(RunCounts):
    """One worker's try at a run: an entry of `Run.attempts`. `outcome` and `ended_at` are None while it goes on.
    `times`: how many tries without any work, handed back for the same reason, it stands for; `attempt` and `started_at`
    are those of the first, the rest is of the last."""

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    times: int = 1

    @property
    def did_nothing(self) -> bool:
        """It was handed back for a reason, before any work."""
        is_idle = not any(getattr(self, name) for name in COUNTS)
        return is_idle and self.outcome == RELEASED and self.error_code is not None

    def listed_after(self, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The entries of a run whose attempt this was; it has ended. A lock that is held for a day causes 1,440 that
        did nothing. Several workers may hand a run back in turn, each for its reason: until an attempt does something,
        there is one entry for each reason, whose `latest` is the number of its last attempt."""
        entry = self.model_dump(mode="json") | {"latest": self.attempt}
        for position in reversed(range(len(entries))):
            earlier = RunAttempt.model_validate(entries[position])
            if not (self.did_nothing and earlier.did_nothing):
                break
            if earlier.error_code == self.error_code:
                first = {name: entries[position][name] for name in ("attempt", "started_at")}
                together = entry | first | {"times": earlier.times + 1}
                return [*entries[:position], together, *entries[position + 1 :]]
        return [*entries, entry]


class Run(RunCounts):
    """A row of `sync_runs`, the execution log, which is also the queue. Times are aware UTC.

    (id, attempt, worker) is the fence of every write in the run's name.
    """

    id: str = Field(primary_key=True, sa_type=SafeText)
    repository_id: str = Field(sa_type=SafeText)
    repository: str = Field(sa_type=SafeText)
    status: RunStatus | str = Field(sa_type=_Status)
    trigger: RunTrigger | str = Field(sa_type=_Trigger)
    priority: int
    scheduled_for: datetime | None = Field(default=None, sa_type=UTCDateTime)
    not_before: datetime = Field(sa_type=UTCDateTime)
    queued_at: datetime = Field(sa_type=UTCDateTime)
    started_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """The latest attempt started then."""
    completed_at: datetime | None = Field(default=None, sa_type=UTCDateTime)
    duration_seconds: float | None = None
    """The sum of all attempts, once the run has ended."""
    waits_since: datetime | None = Field(default=None, sa_type=UTCDateTime)
    """Since then it waits, or is handed back for one reason without any work; None: since it was queued."""
    attempt: int = 0
    max_attempts: int
    handed_back: int = Field(default=0, sa_column_kwargs={"server_default": text("0")})
    """Attempts that were handed back do not count as failures."""
    worker: str | None = Field(default=None, sa_type=SafeText)
    lease_until: datetime | None = Field(default=None, sa_type=UTCDateTime)
    full: bool = False
    """Everything is indexed again."""
    removal: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """The repository and its index are removed."""
    repair: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """Every point is compared with the manifest and repaired; with `removal`, points of a repository that is no longer
    registered are removed."""
    cancel_requested: bool = False
    full_from_epoch: int | None = Field(default=None, sa_type=BigInteger)
    """Points with a later epoch were already written by this run."""
    asked: list[dict[str, Any]] = Field(
        default_factory=list, sa_type=JsonText, sa_column_kwargs={"server_default": text("'[]'")}
    )
    """The first hundred entries of `Ask`. A client that asks again for the same is listed once, a command each time,
    because it may be interrupted."""
    brake: dict[str, Any] | None = Field(default=None, sa_type=JsonText)
    """The deletion that it stopped at: its commit, and how many files lose their points for which reason."""
    approval: dict[str, Any] | None = Field(default=None, sa_type=JsonText)
    """The deletion that a person allowed, or IN_ADVANCE."""
    progress: dict[str, Any] | None = Field(default=None, sa_type=JsonText)
    """The worker reported this last."""
    attempts: list[dict[str, Any]] = Field(
        default_factory=list, sa_type=JsonText, sa_column_kwargs={"server_default": text("'[]'")}
    )
    """Entries of `RunAttempt`, for the attempts that have ended."""
    attempt_so_far: dict[str, Any] | None = Field(default=None, sa_type=JsonText)
    """What is known of the attempt that runs, beside its number, worker and start."""
    commit_before: str | None = Field(default=None, sa_type=SafeText)
    commit_after: str | None = Field(default=None, sa_type=SafeText)
    commit_title: str | None = Field(default=None, sa_type=SafeText)
    commit_author: str | None = Field(default=None, sa_type=SafeText)
    """With `commit_title`, this describes the head that the run found."""
    idle: bool = Field(default=False, sa_column_kwargs={"server_default": false()})
    """The run was completed, and there was nothing to do or to report."""
    error_code: str | None = Field(default=None, sa_type=SafeText)
    error_message: str | None = Field(default=None, sa_type=SafeText)

    @property
    def requests(self) -> list[RunRequest]:
        """Who asked for it, the first one first."""
        known = (known_fields(RunRequest, entry) for entry in self.asked)
        return [RunRequest(**entry | {"asked_at": datetime.fromisoformat(entry["asked_at"])}) for entry in known]

    @property
    def all_askers(self) -> list[str]:
        """The clients that asked for it, the first one first."""
        return list(dict.fromkeys(entry["asked_by"] for entry in self.asked))

    @property
    def askers(self) -> list[str]:
        """The first clients that asked for it, and in words how many more there are."""
        names = self.all_askers
        more = [f"{len(names) - REQUESTERS_SHOWN:,} more"] if len(names) > REQUESTERS_SHOWN else []
        return [*names[:REQUESTERS_SHOWN], *more]

    @property
    def current_attempt(self) -> RunAttempt:
        """The attempt of a running run, with the figures of the last heartbeat."""
        begun = {"attempt": self.attempt, "worker": self.worker, "started_at": self.started_at}
        return RunAttempt.model_validate(begun | (self.attempt_so_far or {}))

    @property
    def all_attempts(self) -> list[RunAttempt]:
        """The first one first."""
        ended = [RunAttempt.model_validate(entry) for entry in self.attempts]
        return [*ended, self.current_attempt] if self.status is RunStatus.RUNNING else ended

    @property
    def failures(self) -> int:
        """How many attempts began and were not handed back, including the current one."""
        return self.attempt - self.handed_back

    @property
    def began_at(self) -> datetime | None:
        """When its first attempt started."""
        first = [RunAttempt.model_validate(entry).started_at for entry in self.attempts[:1]]
        return min([*first, self.started_at]) if self.started_at else None

    @property
    def elapsed_seconds(self) -> float | None:
        """From its first start to its end, with the pauses between attempts; None until then."""
        if self.completed_at is None or self.began_at is None:
            return None
        return max(0.0, (self.completed_at - self.began_at).total_seconds())

    @property
    def waited_seconds(self) -> float:
        """From the moment at which it was due, or its last worker's lease ended, to the start of this attempt."""
        due_at = max(self.queued_at, self.not_before)
        return max(0.0, (self.started_at - due_at).total_seconds()) if self.started_at else 0.0

    @property
    def next_attempt_at(self) -> datetime | None:
        """While it pauses after a failure or on request of a server: when the pause ends. By the clock of this machine,
        which is off by some seconds at most."""
        pauses = self.status in WAITING and self.not_before > datetime.now(UTC)
        return self.not_before if pauses else None

    @property
    def is_final(self) -> bool:
        return self.status not in ACTIVE

    @property
    def cursor(self) -> str:
        """Where the next page of the history begins (`RunHistory.runs(before=...)`)."""
        return f"{self.queued_at.strftime(_CURSOR_TIME)}_{self.id}"

    @property
    def document(self) -> dict[str, Any]:
        """The run as commands and the API show it: its start is that of the first attempt."""
        return {key: getattr(self, key) for key in RUN_KEYS} | {"started_at": self.began_at}


def parse_cursor(cursor: str) -> tuple[datetime, str]:
    """Raises UsageError for anything that `Run.cursor` never makes."""
    moment, _, run_id = cursor.partition("_")
    try:
        return datetime.strptime(moment, _CURSOR_TIME).replace(tzinfo=UTC), run_id
    except ValueError as error:
        raise UsageError("The cursor is not valid.", remedy="Use `next_cursor` of the page before.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs of the history; all conditions must match. `repository`: its current name, or the last one of a
    removed one. `since` (inclusive) and `until` (exclusive) apply to `queued_at`. `code`: of the error. `commit`,
    `worker`: how `commit_after` and the worker's name begin. `hides_idle`: without runs that had nothing to do."""

    repository: str | None = None
    trigger: RunTrigger | None = None
    since: datetime | None = None
    until: datetime | None = None
    code: str | None = None
    commit: str | None = None
    worker: str | None = None
    hides_idle: bool = False


EVERY_RUN = RunFilter()


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """`counts` of unfinished runs by status; `oldest_seconds`: how long the oldest due run has waited."""

    counts: Mapping[str, int]
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class RunMark:
    """A run in a strip of the latest ones. `is_unchanged`: it completed, and there was nothing to store or delete."""

    id: str
    repository_id: str
    status: str
    queued_at: datetime
    files_failed: int
    is_unchanged: bool


@dataclass(frozen=True, slots=True)
class RunCount:
    """How many runs were queued in an hour (its first moment) and ended so: `status`; `lacks_files`: completed, but
    some files could not be read."""

    hour: datetime
    status: str
    lacks_files: bool
    runs: int

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


@dataclass(frozen=True, slots=True)
class RunProblem:
    """A file that was skipped or failed: `reason` is a `Skip` value, `detail` a sentence for a person."""

    path: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class RunChange:
    """A file that a run added to the index, changed or removed: `change` is a `FileChange`, or of a newer program."""

    path: str
    change: str
