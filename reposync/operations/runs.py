"""The execution history, single runs, and what can be done with them."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from reposync.content.model import Skip as Skip
from reposync.errors import RunNotFound, RunStateConflict
from reposync.next_steps import ShowRun
from reposync.operations.core import NOTHING, Actor, Arguments, NoArguments, Rule, operation
from reposync.operations.fields import (
    MAX_NAME_CHARS,
    MAX_PAGE_ITEMS,
    Cursor,
    Moment,
    Page,
    PageArguments,
    PlainText,
    cursor_after,
    key_before,
)
from reposync.store.status import ACTIVE, WAITING
from reposync.store.status import RunStatus as RunStatus
from reposync.store.status import RunTrigger as RunTrigger

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.store.history import RunHistory
    from reposync.store.run import Ask
    from reposync.store.run import Run as StoredRun

FIRST_PROBLEMS = 100
RUN_ID_CHARS = 36

_BEFORE_ALL = "\1"
"""Sorts before every path. The cursor of an empty one would be an empty text, which clients take for none."""


class Brake(BaseModel):
    """The deletion that a run stopped at. `planned`: files that would be lost, by reason, because of the tree and the
    rules; `losses`: these and those found while reading files; `indexed`: how many files are indexed."""

    commit: str
    planned: dict[str, int] = {}
    losses: dict[str, int] = {}
    indexed: int = 0

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
    files_processed: int = Field(description="Files whose content was stored.")
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


class RunFilters(Arguments):
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
    cursor: Cursor = None


class ProblemFilters(PageArguments):
    reason: Skip | None = Field(
        None, description="Only those with this reason; `failed`: files that need somebody's attention."
    )
    limit: int = Field(100, ge=1, le=MAX_PAGE_ITEMS)


def shown(history: RunHistory, run: StoredRun) -> Run:
    """A run that nobody has reported on for the time of its lease says so: its process is gone, or cannot write."""
    return Run.model_validate(_columns(history, run))


def _columns(history: RunHistory, run: StoredRun) -> dict[str, Any]:
    columns = {
        **run.document,
        "asked_by": run.askers,
        "removal": run.removal,
        # An older program blocked the run, or a newer one for a different reason, if it names no commit.
        "brake": run.brake if (run.brake or {}).get("commit") else None,
        # The row of an ended run keeps the last report.
        "progress": run.progress if run.status == RunStatus.RUNNING else None,
    }
    if run.status == RunStatus.RUNNING and run.lease_until is not None and run.lease_until < history.now():
        columns["error_message"] = (
            f"Its worker has not reported; its lease ended at {run.lease_until:%H:%M:%S} UTC. The process is gone, or "
            "cannot write to the database: a full disk, or a lock, which `/readyz` of the daemon names."
        )
    return columns


async def detail(app: Application, run: StoredRun) -> RunDetail:
    """Everything known of the run, with its first problems by path. Raises StoreUnavailable."""
    from reposync.store.index_queries import commit_page

    history = app.history
    counts = await history.count_problems(run.id)
    problems = await history.problems(run.id, FIRST_PROBLEMS)
    is_all = len(problems) >= sum(counts.values())
    return RunDetail.model_validate(
        {
            **_columns(history, run),
            "asked_by": run.all_askers,
            **{
                key: getattr(run, key)
                for key in ("handed_back", "not_before", "cancel_requested", "full", "repair", "approval")
            },
            "max_attempts": run.max_attempts - run.handed_back,
            "new_secrets": await app.findings.first_seen(run.repository_id, run.commit_after or ""),
            "commit_page": await commit_page(app.database, run.repository_id),
            "requests": [asdict(request) for request in run.requests],
            "attempts": [attempt.model_dump() for attempt in run.all_attempts],
            "problems": [asdict(problem) for problem in problems],
            "problem_counts": counts,
            "problems_cursor": None if is_all else cursor_after(problems[-1].path if problems else _BEFORE_ALL),
        }
    )


@operation("GET", "/runs", RunFilters, RunPage, rule=Rule.READ)
async def history(app: Application, actor: Actor, asked: RunFilters) -> RunPage:
    """The execution history, newest first. All filters must match. Pages do not shift while runs are added:
    `next_cursor` is a position in the history, not a page number."""
    stored = app.history
    filters = asked.model_dump(exclude={"limit", "cursor"}) | {"status": asked.status or None}
    before = None if asked.cursor is None else key_before(asked.cursor)
    # One more than requested shows whether there is another page.
    runs = await stored.runs(**filters, limit=asked.limit + 1, before=before)
    if not runs and asked.repository is not None:
        await stored.require_known(asked.repository)
    page = runs[: asked.limit]
    next_cursor = cursor_after(page[-1].cursor) if len(runs) > len(page) else None
    return RunPage(items=[shown(stored, run) for run in page], next_cursor=next_cursor)


@operation("GET", "/runs/{run_id}", NoArguments, RunDetail, rule=Rule.READ)
async def get_run(app: Application, actor: Actor, asked: NoArguments, *, run_id: str) -> RunDetail:
    """One run, with its attempts and its first problems. `run_id`: its id, or a unique prefix of it."""
    return await detail(app, await app.history.get(run_id))


@operation("GET", "/runs/{run_id}/problems", ProblemFilters, ProblemPage, rule=Rule.READ)
async def problems(app: Application, actor: Actor, asked: ProblemFilters, *, run_id: str) -> ProblemPage:
    """The files that a run skipped or failed on, with the reason, by path."""
    after = None if asked.cursor is None else key_before(asked.cursor)
    run = await app.history.get(run_id)
    found = await app.history.problems(run.id, asked.limit + 1, after=after, reason=asked.reason)
    page = found[: asked.limit]
    next_cursor = cursor_after(page[-1].path) if len(found) > len(page) else None
    return ProblemPage(items=[RunProblem.model_validate(each) for each in page], next_cursor=next_cursor)


class Cancellation(Arguments):
    if_unshared: StrictBool = Field(False, description="Only if nobody else has requested the run, too.")


@operation("POST", "/runs/{run_id}/cancel", Cancellation, RunDetail, rule=Rule.MAINTAIN)
async def cancel(app: Application, actor: Actor, asked: Cancellation, *, run_id: str) -> RunDetail:
    """Cancel a run. A waiting or blocked run ends at once. A running one ends at the next heartbeat of its worker. One
    that has ended stays unchanged. What was stored stays, and the next run continues from it."""
    _require_whole(run_id)
    if asked.if_unshared:
        await app.runs.interrupt(run_id)
        return await detail(app, await app.history.get(run_id))
    return await detail(app, await app.runs.cancel(run_id, by=actor.name))


@operation("POST", "/runs/{run_id}/approve", NoArguments, RunDetail, rule=Rule.OPERATE)
async def approve(app: Application, actor: Actor, asked: NoArguments, *, run_id: str) -> RunDetail:
    """Approve what a blocked run stopped at, and queue it again."""
    _require_whole(run_id)
    return await detail(app, await app.runs.approve(run_id, ask(app, actor)))


@operation("POST", "/runs/{run_id}/retry", NoArguments, RunDetail, rule=Rule.MAINTAIN)
async def retry(app: Application, actor: Actor, asked: NoArguments, *, run_id: str) -> RunDetail:
    """Queue a failed or cancelled run again."""
    _require_whole(run_id)
    return await detail(app, await app.runs.retry(run_id, ask(app, actor)))


class Runs(BaseModel):
    items: list[Run]


@operation("POST", "/runs/retry-failed", NoArguments, Runs, rule=Rule.OPERATE)
async def retry_failed(app: Application, actor: Actor, asked: NoArguments) -> Runs:
    """Queue the last run of each repository again, if it failed."""
    from reposync.catalog.overview import overviews

    names = await app.history.latest_statuses({RunStatus.FAILED})
    rows = await overviews(app.repositories, app.manifests, app.history, sorted(names)) if names else []
    queued: list[Run] = []
    for row in rows:
        if row.last_run is not None and row.last_status == RunStatus.FAILED:
            with contextlib.suppress(RunStateConflict):  # queued again meanwhile
                queued.append(await retry(app, actor, NOTHING, run_id=row.last_run))
    return Runs(items=queued)


def ask(app: Application, actor: Actor, **options: Any) -> Ask:
    """What a run is requested for, in the name of the actor. `options`: see `Ask`."""
    from reposync.store.run import Ask

    return Ask(actor.trigger, actor.name, max_attempts=app.configuration.registry.daemon.max_attempts, **options)


def _require_whole(run_id: str) -> None:
    """A prefix may match a different run by the time it is used. Raises RunNotFound."""
    if len(run_id.strip()) != RUN_ID_CHARS:
        raise RunNotFound(
            f"{run_id!r} is not the whole id of a run, which is required to change one.", next_steps=[ShowRun(run_id)]
        )
