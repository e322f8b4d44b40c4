"""The documents and arguments of operations on runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from reposync.content.model import Skip
from reposync.operations.core import Arguments
from reposync.operations.fields import MAX_NAME_CHARS, MAX_PAGE_ITEMS, Cursor, Moment, Page, PageArguments, PlainText
from reposync.store.status import ACTIVE, WAITING, FileChange, RunStatus, RunTrigger

MAX_CODE_CHARS = 100


class Brake(BaseModel):
    """The deletion that a run stopped at. `planned`: files that would be lost, by reason, because of the tree and the
    rules; `losses`: these and those found while reading files; `indexed`: how many files are indexed; `folders`: how
    many would be lost in each folder at the top ("": in none). `/changes?change=at_risk` lists the files."""

    commit: str
    planned: dict[str, int] = {}
    losses: dict[str, int] = {}
    indexed: int = 0
    folders: dict[str, int] = {}

    @property
    def lost(self) -> int:
        return sum(self.losses.values())


class Run(BaseModel):
    """A run of the execution log. The worker is that of its latest attempt; start, durations and figures are those of
    all attempts."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    repository: str = Field(description="Its name; the last one it had, if it was removed.")
    status: RunStatus | str = Field(description="A newer version may know others.")
    trigger: RunTrigger | str = Field(description="A newer version may know others.")
    removal: bool = Field(description="It removes the repository with its index.")
    scheduled_for: datetime | None = Field(description="The tick of the schedule that requested it.")
    queued_at: datetime
    next_attempt_at: datetime | None = Field(
        description="The end of the pause of a waiting run, after a failure or because a server asked to wait. Null if "
        "it waits for a free worker."
    )
    started_at: datetime | None = Field(description="The start of its first attempt.")
    completed_at: datetime | None
    duration_seconds: float | None = Field(
        description="The sum of its attempts, without the pauses between them. Null until it has ended."
    )
    elapsed_seconds: float | None = Field(description="From `started_at` to `completed_at`. Null until it has ended.")
    attempt: int = Field(description="The number of the latest one. 0 until a worker has started it.")
    worker: str | None
    commit_before: str | None
    commit_after: str | None
    commit_title: str | None = Field(
        None, description="The first line of the message of the commit that it found, if that was a new one."
    )
    commit_author: str | None = Field(None, description="The author of that commit.")
    files_processed: int = Field(description="Files whose content was stored.")
    files_added: int = Field(0, description="Of these: the index did not have them.")
    files_changed: int = Field(0, description="Of these: the index had them with a different content.")
    files_deleted: int
    files_skipped: int
    files_failed: int = Field(
        description="Files of the commit that could not be read; the index has an older state of them, or nothing. The "
        "run is completed with the code `FILES_FAILED`, and each further run tries them again."
    )
    chunks_embedded: int
    chunks_reused: int = Field(description="Chunks whose text was known already, and cost no embedding.")
    error_code: str | None
    error_message: str | None = Field(
        description="Why it ended this way. Without an `error_code`: a remark on a completed run, such as what was "
        "repaired."
    )
    asked_by: list[str] = Field(
        description="Who requested it: a token by its position in REPOSYNC_API_TOKEN, user and host of a command, a "
        "delivery of a webhook, the schedule. The first five, and how many more."
    )
    brake: Brake | None = Field(description="What it stopped at and `/approve` allows; it stays after an approval.")
    progress: dict[str, Any] | None = Field(description="Of the attempt that is running.")

    @property
    def is_final(self) -> bool:
        return self.status not in ACTIVE

    @property
    def is_waiting(self) -> bool:
        """For a worker, or for the end of a pause."""
        return self.status in WAITING


class RunRequest(BaseModel):
    """A request for the run. One that came while it was queued joined it: it does what all of them ask for."""

    model_config = ConfigDict(from_attributes=True)

    trigger: str
    asked_by: str
    asked_at: datetime
    full: bool
    repair: bool
    removal: bool
    approval: dict[str, Any] | None


class RunAttempt(BaseModel):
    """One worker's try at the run. `outcome` and `ended_at` are null while it goes on. `times`: how many tries without
    any work, handed back for the same reason, it stands for."""

    model_config = ConfigDict(from_attributes=True)

    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error_code: str | None
    error_message: str | None
    times: int
    files_processed: int
    files_added: int = 0
    files_changed: int = 0
    files_deleted: int
    files_skipped: int
    files_failed: int
    chunks_embedded: int
    chunks_reused: int


class RunProblem(BaseModel):
    """A file that was skipped or failed: `detail` is a sentence for a person."""

    model_config = ConfigDict(from_attributes=True)

    path: str
    reason: str
    detail: str


class RunChange(BaseModel):
    """A file that a run added to the index, changed or removed; or would have removed, if it is blocked."""

    model_config = ConfigDict(from_attributes=True)

    path: str
    change: FileChange | str = Field(description="A newer version may know others.")


class RunLogLine(BaseModel):
    """A line that a daemon logged about an attempt."""

    model_config = ConfigDict(from_attributes=True)

    attempt: int
    at: datetime
    level: str = Field(examples=["info", "warning", "error"])
    text: str = Field(
        description="The event and its fields, without secrets.", examples=["run started trigger=webhook full=False"]
    )


class RunDetail(Run):
    """A run with everything that is known of it. `requests`, `attempts`: the first one first. `problems`: the first
    files that were skipped or failed, by path; `problems_cursor` leads to the others."""

    max_attempts: int = Field(description="How many attempts may fail.")
    handed_back: int = Field(
        description="How many attempts do not count towards `max_attempts`: their worker could not execute the run, "
        "stopped, or let other runs pass."
    )
    not_before: datetime = Field(description="A waiting run is not started before.")
    cancel_requested: bool = Field(description="A running one ends at the next heartbeat of its worker.")
    full: bool = Field(description="It reads every file again.")
    repair: bool = Field(description="It compares every point with the manifest, and repairs differences.")
    approval: dict[str, Any] | None = Field(
        description="What a person approved: the deletion that a blocked run stopped at, or "
        '`{"in_advance": true}`, the first mass deletion that the run meets.'
    )
    new_secrets: int = Field(description="How many secrets in the indexed files were first seen in its commit.")
    commit_page: str | None = Field(description="On GitLab: the address of a commit's page, without the commit.")
    requests: list[RunRequest]
    attempts: list[RunAttempt]
    problems: list[RunProblem]
    problem_counts: dict[str, int] = Field(description="How many files for each reason.", examples=[{"binary": 12}])
    problems_cursor: str | None
    step_seconds: dict[str, float] = Field(
        {}, description="How long the latest attempt was in each phase.", examples=[{"listing": 0.6, "indexing": 61.0}]
    )
    change_counts: dict[str, int] = Field(
        {}, description="How many files `/changes` lists, by what happened to them.", examples=[{"added": 97}]
    )

    @property
    def summary(self) -> Run:
        """As in the history."""
        return Run.model_validate(self.model_dump())

    @property
    def failures(self) -> int:
        """How many attempts began and were not handed back, including the current one."""
        return self.attempt - self.handed_back


class RunPage(Page[Run]):
    """`next_cursor` is null on the last page."""


class ProblemPage(Page[RunProblem]):
    """`next_cursor` is null on the last page."""


class ChangePage(Page[RunChange]):
    """`next_cursor` is null on the last page."""


class LogPage(Page[RunLogLine]):
    """`next_cursor` is null on the last page."""


class RunFilters(Arguments):
    repository: PlainText | None = Field(
        None, max_length=MAX_NAME_CHARS, description="Its name, or the last one of a removed one."
    )
    status: list[RunStatus] = Field([], max_length=20, description="One of these; repeat it for several.")
    trigger: RunTrigger | None = None
    code: PlainText | None = Field(
        None, max_length=MAX_CODE_CHARS, description="With this `error_code`.", examples=["SOURCE_DENIED"]
    )
    commit: str | None = Field(
        None,
        pattern="^[0-9a-f]{4,64}$",
        description="How `commit_after` begins: at least four hexadecimal digits.",
    )
    worker: PlainText | None = Field(None, max_length=MAX_NAME_CHARS, description="How the name of its worker begins.")
    hide_idle: bool = Field(False, description="Without completed runs that found nothing to do.")
    order: Literal["newest", "oldest", "longest"] = Field(
        "newest",
        description="By the time of their first request; or those that took longest among the newest 1,000 that match, "
        "on one page.",
    )
    since: Moment | None = Field(
        None, description="Queued then or later; RFC 3339 with a zone.", examples=["2026-03-01T00:00:00Z"]
    )
    until: Moment | None = Field(None, description="Queued before then.", examples=["2026-04-01T00:00:00Z"])
    limit: int = Field(50, ge=1, le=MAX_PAGE_ITEMS)
    cursor: Cursor = None

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions of `RunFilter`: all but the status."""
        names = ("repository", "trigger", "since", "until", "code", "commit", "worker")
        return {name: getattr(self, name) for name in names} | {"hides_idle": self.hide_idle}


class LogFilters(PageArguments):
    limit: int = Field(100, ge=1, le=MAX_PAGE_ITEMS)


class ProblemFilters(PageArguments):
    reason: Skip | None = Field(
        None, description="Only those with this reason; `failed`: files that need somebody's attention."
    )
    limit: int = Field(100, ge=1, le=MAX_PAGE_ITEMS)


class ChangeFilters(PageArguments):
    change: FileChange | None = Field(None, description="Only these; `at_risk`: what a blocked run would remove.")
    limit: int = Field(100, ge=1, le=MAX_PAGE_ITEMS)
