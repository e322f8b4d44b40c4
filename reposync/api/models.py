"""The requests and responses of the API as pydantic models, from which FastAPI validates and describes them.

Models of runs are made from the records of the store, so that a new column needs no second declaration here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar, cast, get_type_hints

from fastapi import Body, Query
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    StrictBool,
    create_model,
)

from reposync.api.documents import DETAIL_KEYS, MAX_CURSOR_CHARS
from reposync.catalog.overview import Overview
from reposync.config.registry import Repository
from reposync.content.model import Skip
from reposync.store.repository import MAX_NAME_CHARS
from reposync.store.run import RUN_KEYS, Run, RunAttempt, RunProblem, RunRequest
from reposync.store.status import RunStatus, RunTrigger
from reposync.sync.brake import BrakeFacts

MAX_PAGE_ITEMS = 200
MAX_WAIT_SECONDS = 300

Item = TypeVar("Item")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _plain(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must not contain a line break, another control character or half of a surrogate pair")
    return text


def _storable_moment(moment: datetime) -> datetime:
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None
    if not 1970 <= moment.year <= 9998:
        raise ValueError("must be between 1970 and 9998")
    return moment


PlainText = Annotated[str, AfterValidator(_plain)]
Moment = Annotated[AwareDatetime, AfterValidator(_storable_moment)]


class RequestModel(BaseModel):
    """Parameters or a body: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


NoQuery = Annotated[RequestModel, Query()]
"""Of routes without a query string."""


class PageQuery(RequestModel):
    limit: int = Field(50, ge=1, le=MAX_PAGE_ITEMS)
    cursor: str | None = Field(None, max_length=MAX_CURSOR_CHARS, description="`next_cursor` of the previous page.")


class NamesQuery(PageQuery):
    name: PlainText | None = Field(
        None, max_length=MAX_NAME_CHARS, description="A part of the name, in upper or lower case."
    )


class Page(BaseModel, Generic[Item]):
    """`next_cursor` is null on the last page."""

    items: list[Item]
    next_cursor: str | None = None


# Runs ----------------------------------------------------------------------------------------------------------------

_WORDS = {
    "repository": "Its name; the last one it had, if it was removed.",
    "status": "A newer version may know others.",
    "trigger": "A newer version may know others.",
    "scheduled_for": "The tick of the schedule that requested it.",
    "started_at": "The start of its first attempt.",
    "duration_seconds": "The sum of its attempts, without the pauses between them. Null until it has ended.",
    "elapsed_seconds": "From `started_at` to `completed_at`. Null until it has ended.",
    "attempt": "The number of the latest one. 0 until a worker has started it.",
    "handed_back": "How many attempts do not count towards `max_attempts`: their worker could not execute the run, "
    "stopped, or let other runs pass.",
    "max_attempts": "How many attempts may fail.",
    "files_processed": "Files whose content was stored.",
    "files_failed": "Files of the commit that could not be read; the index has an older state of them, or nothing. The "
    "run is completed with the code `FILES_FAILED`, and each further run tries them again.",
    "chunks_reused": "Chunks whose text was known already, and cost no embedding.",
    "error_message": "Why it ended this way. Without an `error_code`: a remark on a completed run, such as what was "
    "repaired.",
    "next_attempt_at": "The end of the pause of a waiting run, after a failure or because a server asked to wait. Null "
    "if it waits for a free worker.",
    "not_before": "A waiting run is not started before.",
    "cancel_requested": "A running one ends at the next heartbeat of its worker.",
    "removal": "It removes the repository with its index.",
    "repair": "It compares every point with the manifest, and repairs differences.",
    "approval": "What a person approved: the deletion that a blocked run stopped at, or "
    '`{"in_advance": true}`, the first mass deletion that the run meets.',
}


def _fields(record: type, keys: Collection[str]) -> dict[str, Any]:
    """Fields of a model: attributes of the record."""
    hints = get_type_hints(record)
    properties = {key: value for key, value in vars(record).items() if isinstance(value, property)}
    hints |= {key: get_type_hints(value.fget)["return"] for key, value in properties.items() if key in keys}
    return {key: (hints[key], Field(description=_WORDS.get(key))) for key in keys}


_ASKED_BY = (
    "Who requested it: a token by its position in REPOSYNC_API_TOKEN, user and host of a command, a delivery of a "
    "webhook, the schedule. The first five, and how many more."
)
RunOut = create_model(
    "Run",
    __doc__="A run of the execution log. The worker is that of its latest attempt; start, durations and figures are "
    "those of all attempts.",
    **_fields(Run, RUN_KEYS),
    asked_by=(list[str], Field(description=_ASKED_BY)),
)
RequestOut = create_model(
    "RunRequest",
    __doc__="A request for the run. One that came while it was queued joined it: it does what all of them ask for.",
    **_fields(RunRequest, [field.name for field in fields(RunRequest)]),
)
RunDetail = create_model(
    "RunDetail",
    __base__=RunOut,
    __doc__="A run with everything that is known of it. `brake`: what it stopped at and `/approve` allows; it stays "
    "after an approval. `progress`: of the attempt that is running. `requests`, `attempts`: the first one first. "
    "`problems`: the first files that were skipped or failed, by path; `problems_cursor` leads to the others.",
    **_fields(Run, DETAIL_KEYS),
    brake=(BrakeFacts | None, ...),
    progress=(dict[str, Any] | None, ...),
    requests=(list[RequestOut], ...),
    attempts=(list[RunAttempt], ...),
    problems=(list[RunProblem], ...),
    problem_counts=(dict[str, int], Field(description="How many files for each reason.", examples=[{"binary": 12}])),
    problems_cursor=(str | None, ...),
)
RunPage = create_model("RunPage", __base__=Page[RunOut])
ProblemPage = create_model("ProblemPage", __base__=Page[RunProblem])


class RunFilters(RequestModel):
    repository: PlainText | None = Field(
        None, max_length=MAX_NAME_CHARS, description="Its name, or the last one of a removed one."
    )
    status: list[RunStatus] = Field([], max_length=20, description="One of these; repeat it for several.")
    trigger: RunTrigger | None = None
    since: Moment | None = Field(
        None, description="Queued then or later; RFC 3339 with a zone.", examples=["2026-03-01T00:00:00Z"]
    )
    until: Moment | None = Field(None, description="Queued before then.", examples=["2026-04-01T00:00:00Z"])
    limit: int = Field(50, ge=1, le=MAX_PAGE_ITEMS)
    cursor: PlainText | None = Field(None, max_length=100, description="`next_cursor` of the previous page.")


class ProblemFilters(PageQuery):
    reason: Skip | None = Field(
        None, description="Only those with this reason; `failed`: files that need somebody's attention."
    )
    limit: int = Field(100, ge=1, le=MAX_PAGE_ITEMS)


class Waiting(RequestModel):
    wait: float = Field(
        0,
        ge=0,
        le=MAX_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Seconds to wait for the end of the run, which is then the response.",
    )


class SyncRequest(RequestModel):
    """Options of a sync. The body may be omitted."""

    full: StrictBool = Field(False, description="Read every file and check every point; known text is not embedded.")
    allow_mass_delete: StrictBool = Field(False, description="Let it delete more than half of the indexed files.")


# Repositories --------------------------------------------------------------------------------------------------------

NOT_OVER_HTTP = frozenset({"username", "password"})
"""Secrets are not stored in the database."""
IDENTITY = frozenset({"name", "gitlab", "project", "git", "path"})
"""With a different name or source it is a different repository."""
CHANGEABLE = frozenset(Repository.model_fields) - NOT_OVER_HTTP - IDENTITY


RepositoryPage = create_model("RepositoryPage", __base__=Page[Overview])


class RepositoryFilters(NamesQuery):
    state: Literal["active", "paused", "inactive"] | None = None


class Pause(RequestModel):
    """The keys of a change that pause and resume."""

    is_active: StrictBool | None = Field(None, description="false pauses its schedule, true resumes it.")
    paused_reason: Annotated[PlainText, Field(strict=True, min_length=1, max_length=500)] | None = Field(
        None, description="Shown with the paused repository; requires `is_active: false`."
    )


def _described_as(title: str, base: type[BaseModel], left_out: frozenset[str]) -> Any:
    """The description of a body that is validated as an entry of the registry file is."""
    fields = {key: (each.annotation, each) for key, each in Repository.model_fields.items() if key not in left_out}
    model: Any = create_model(title, __base__=base, **cast(Any, fields))
    return GetPydanticSchema(get_pydantic_json_schema=lambda _, handler: handler(model.__pydantic_core_schema__))


_EXAMPLES: dict[str, Any] = {
    "a project of a GitLab server": {"name": "platform/payments-api", "gitlab": "main", "project": "platform/api"},
    "a public git repository": {"name": "handbook", "git": "https://example.com/handbook.git", "include": ["*.md"]},
}
_CHANGES: dict[str, Any] = {
    "pause": {"is_active": False, "paused_reason": "migration until Friday"},
    "a different schedule, and the default branch again": {"schedule": "daily at 03:00", "branch": None},
}

NewRepository = Annotated[
    dict[str, Any],
    _described_as("NewRepository", RequestModel, NOT_OVER_HTTP),
    Body(openapi_examples={title: {"value": value} for title, value in _EXAMPLES.items()}),
]
RepositoryChange = Annotated[
    dict[str, Any],
    _described_as("RepositoryChange", Pause, NOT_OVER_HTTP | IDENTITY),
    Body(openapi_examples={title: {"value": value} for title, value in _CHANGES.items()}),
]
