"""What the API shows and takes. The keys of what is shown are those of the tables, as in the `--json` of commands."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StrictBool

from reposync.api.cursors import MAX_CURSOR_CHARS
from reposync.api.waiting import MAX_WAIT_SECONDS
from reposync.catalog.overview import Overview
from reposync.content.model import Skip
from reposync.runs.blocked import Brake
from reposync.store.attempts import RunAttempt
from reposync.store.run import Run, RunProblem
from reposync.store.run_keys import run_json
from reposync.store.status import RunStatus, RunTrigger

MAX_PAGE_ITEMS = 200

RepositoryStateWord = Literal["active", "paused", "inactive"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_RUN_EXAMPLE: dict[str, Any] = {
    "id": "0198b7c2-5f3e-4c1a-9d2b-3f6a1c5e8d70",
    "repository": "platform/payments-api",
    "status": "completed",
    "trigger": "http",
    "scheduled_for": None,
    "queued_at": "2026-03-01T12:00:00.125000Z",
    "started_at": "2026-03-01T12:00:00.250000Z",
    "completed_at": "2026-03-01T12:00:04.500000Z",
    "duration_seconds": 4.25,
    "attempt": 1,
    "worker": "pod-7:4711:9f2c",
    "commit_before": "0e1d3c5a7b9f8e6d4c2b0a1f3e5d7c9b8a6f4e2d",
    "commit_after": "9c8b7a6f5e4d3c2b1a0f9e8d7c6b5a4f3e2d1c0b",
    "files_processed": 12,
    "files_deleted": 3,
    "files_skipped": 1,
    "files_failed": 0,
    "chunks_embedded": 40,
    "chunks_reused": 7,
    "error_code": None,
    "error_message": None,
    "asked_by": ["token 1"],
}


def _plain(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must not hold a line break, another control character or half of a surrogate pair")
    return text


def _storable_moment(moment: datetime) -> datetime:
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is no time that a calendar has") from None
    if not 1970 <= moment.year <= 9998:
        raise ValueError("must be between 1970 and 9998")
    return moment


PlainText = Annotated[str, AfterValidator(_plain)]
Moment = Annotated[AwareDatetime, AfterValidator(_storable_moment)]


class Asked(BaseModel):
    """What a client says: a key that is not known is a mistake, and not something to pass over."""

    model_config = ConfigDict(extra="forbid", frozen=True)


# Runs ----------------------------------------------------------------------------------------------------------------


class RunShown(BaseModel):
    """A run of the execution log. Started, worker and duration are of its latest attempt; the figures of all."""

    model_config = ConfigDict(json_schema_extra={"examples": [_RUN_EXAMPLE]})

    id: str
    repository: str = Field(description="Its name; the last one it had, if it was removed.")
    status: RunStatus | str = Field(description="A newer program may know others.")
    trigger: RunTrigger | str = Field(description="A newer program may know others.")
    scheduled_for: datetime | None = Field(description="The tick of the schedule that it is for.")
    queued_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    duration_seconds: float | None
    attempt: int = Field(description="0 until a worker has begun.")
    worker: str | None
    commit_before: str | None
    commit_after: str | None
    files_processed: int = Field(description="Files whose content was stored.")
    files_deleted: int
    files_skipped: int
    files_failed: int = Field(
        0,
        description="Files of the commit that could not be read; the index has an older state of them, or nothing. The "
        "run is completed all the same, with the code `FILES_FAILED`, and each further run tries them again.",
    )
    chunks_embedded: int
    chunks_reused: int = Field(description="Chunks whose text was known already, and cost no embedding.")
    error_code: str | None
    error_message: str | None = Field(
        description="Why it ended so. With no `error_code` it is what a completed run has to say: what a repair mended."
    )
    asked_by: list[str] = Field(
        [],
        description="Who asked for it: a token by its place in REPOSYNC_API_TOKEN, user and host of a command, a "
        "delivery of a webhook, the schedule. The first five, and how many more.",
    )

    @classmethod
    def of(cls, run: Run, asked_by: list[str]) -> RunShown:
        return cls(**run_json(run), asked_by=asked_by)


class RunPage(BaseModel):
    """`next_cursor` is null on the last page."""

    items: list[RunShown]
    next_cursor: str | None


class ProblemPage(BaseModel):
    """By path. `next_cursor` is null on the last page."""

    items: list[RunProblem]
    next_cursor: str | None


class RequestShown(BaseModel):
    """Somebody asked for the run. It does what those requests say that are not withdrawn."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    trigger: RunTrigger | str
    asked_by: str
    asked_at: datetime
    scheduled_for: datetime | None = Field(description="The tick of the schedule that asks.")
    full: bool
    repair: bool
    removal: bool
    approval: dict[str, Any] | None = Field(
        description="A deletion that is allowed: `{}` beforehand, or what a blocked run had stopped at."
    )
    withdrawn_at: datetime | None
    withdrawn_by: str | None


class RunDetail(RunShown):
    """A run with everything that is known of it."""

    max_attempts: int
    not_before: datetime = Field(description="A run that waits is not begun before.")
    cancel_requested: bool = Field(description="A running one ends at its worker's next heartbeat.")
    removal: bool = Field(description="It removes the repository with its index, in place of a sync.")
    repair: bool = Field(description="It compares every point with what is recorded, and mends what differs.")
    brake: Brake | None = Field(
        description="What a run stopped at that `/approve` allows; it stays when it is approved.",
        examples=[
            {
                "commit": _RUN_EXAMPLE["commit_after"],
                "planned": {"vanished": 40},
                "losses": {"vanished": 40},
                "indexed": 43,
            }
        ],
    )
    progress: dict[str, Any] | None = Field(
        description="How far the attempt under way is; null where there is none.",
        examples=[{"phase": "indexing", "files_total": 1204, "files_done": 311, "eta_seconds": 23.0}],
    )
    requests: list[RequestShown] = Field(description="The oldest one first.")
    attempts: list[RunAttempt] = Field(description="The first one first.")
    problems: list[RunProblem] = Field(description="The first files that were skipped or failed, by path.")
    problem_counts: dict[str, int] = Field(description="How many files of each reason.", examples=[{"binary": 12}])
    problems_cursor: str | None = Field(
        description="Where `/runs/{run_id}/problems` goes on; null if `problems` are all."
    )


class RunFilters(Asked):
    repository: PlainText | None = Field(
        None, max_length=255, description="Its name, or the last one of a removed one.", examples=["payments-api"]
    )
    status: list[RunStatus] = Field([], max_length=20, description="One of these; repeat it for several.")
    trigger: RunTrigger | None = None
    since: Moment | None = Field(
        None, description="Queued then or later; RFC 3339 with a zone.", examples=["2026-03-01T00:00:00Z"]
    )
    until: Moment | None = Field(None, description="Queued before then.", examples=["2026-04-01T00:00:00Z"])
    limit: int = Field(50, ge=1, le=MAX_PAGE_ITEMS)
    cursor: PlainText | None = Field(None, max_length=100, description="`next_cursor` of the page before.")


class ProblemFilters(Asked):
    reason: Skip | None = Field(None, description="Only those with this reason; `failed`: files that need a look.")
    limit: int = Field(100, ge=1, le=MAX_PAGE_ITEMS)
    cursor: str | None = Field(None, max_length=MAX_CURSOR_CHARS, description="`next_cursor` of the page before.")


class NoFilters(Asked):
    """For routes whose address has nothing behind a question mark."""


class Waiting(Asked):
    wait: float = Field(
        0,
        ge=0,
        le=MAX_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Seconds to wait for the end of the run, which is then the answer.",
    )


class SyncRequest(Asked):
    """What is asked of a sync besides. A body may be left out."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"full": True}, {"allow_mass_delete": True}]})

    full: StrictBool = Field(False, description="Read every file and check every point; known text is not embedded.")
    allow_mass_delete: StrictBool = Field(False, description="Let it delete more than half of the indexed files.")


# Repositories --------------------------------------------------------------------------------------------------------


class RepositoryPage(BaseModel):
    """By name. `next_cursor` is null on the last page."""

    items: list[Overview]
    next_cursor: str | None


class RepositoryFilters(Asked):
    name: PlainText | None = Field(None, max_length=255, description="A part of the name, in upper or lower case.")
    state: RepositoryStateWord | None = None
    limit: int = Field(50, ge=1, le=MAX_PAGE_ITEMS)
    cursor: str | None = Field(None, max_length=MAX_CURSOR_CHARS, description="`next_cursor` of the page before.")


class Pause(Asked):
    """The keys of a change that pause and resume."""

    is_active: StrictBool | None = Field(None, description="false pauses its schedule, true resumes it.")
    paused_reason: Annotated[PlainText, Field(strict=True, min_length=1, max_length=500)] | None = Field(
        None, description="Shown to whoever asks why; with `is_active: false`."
    )
