"""The execution history, single runs, and what can be done with them."""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, StrictBool

from reposync.content.model import Skip as Skip
from reposync.errors import RunNotFound, RunStateConflict
from reposync.next_steps import ShowRun
from reposync.operations.core import NOTHING, Actor, Arguments, NoArguments, Rule, operation, ruled
from reposync.operations.fields import (
    PlainText,
    cursor_after,
    invalid_cursor,
    key_before,
)
from reposync.operations.run_documents import (
    MAX_CODE_CHARS,
    Brake,
    ChangeFilters,
    ChangePage,
    LogFilters,
    LogPage,
    ProblemFilters,
    ProblemPage,
    Run,
    RunAttempt,
    RunChange,
    RunDetail,
    RunFilters,
    RunLogLine,
    RunPage,
    RunProblem,
    RunRequest,
)
from reposync.store.status import FileChange as FileChange
from reposync.store.status import RunStatus as RunStatus
from reposync.store.status import RunTrigger as RunTrigger

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.store.history import RunHistory
    from reposync.store.run import Ask
    from reposync.store.run import Run as StoredRun

__all__ = [
    "Brake",
    "ChangeFilters",
    "ChangePage",
    "LogFilters",
    "LogPage",
    "ProblemFilters",
    "ProblemPage",
    "Run",
    "RunAttempt",
    "RunChange",
    "RunDetail",
    "RunFilters",
    "RunLogLine",
    "RunPage",
    "RunProblem",
    "RunRequest",
]

FIRST_PROBLEMS = 100
MOST_SORTED = 1_000
RUN_ID_CHARS = 36

_AT_ONCE = 1_000
_LINE_KEY = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_BEFORE_ALL = "\1"
"""Sorts before every path. The cursor of an empty one would be an empty text, which clients take for none."""


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
            "step_seconds": _step_seconds(run),
            "change_counts": await history.count_changes(run.id),
            "problems_cursor": None if is_all else cursor_after(problems[-1].path if problems else _BEFORE_ALL),
        }
    )


def _step_seconds(run: StoredRun) -> dict[str, float]:
    """A different version of this program may have written them."""
    reported = (run.progress or {}).get("step_seconds")
    found = reported.items() if isinstance(reported, dict) else ()
    return {phase: float(seconds) for phase, seconds in found if isinstance(seconds, int | float)}


@operation("GET", "/runs", RunFilters, RunPage, rule=Rule.READ)
async def history(app: Application, actor: Actor, asked: RunFilters) -> RunPage:
    """The execution history, newest first. All filters must match. Pages do not shift while runs are added:
    `next_cursor` is a position in the history, not a page number."""
    stored = app.history
    if asked.order == "longest":
        found = await stored.runs(**asked.conditions, status=asked.status or None, limit=MOST_SORTED)
        longest = sorted(found, key=lambda run: run.duration_seconds or 0.0, reverse=True)[: asked.limit]
        return RunPage(items=[shown(stored, run) for run in longest], next_cursor=None)
    before = None if asked.cursor is None else key_before(asked.cursor)
    # One more than requested shows whether there is another page.
    runs = await stored.runs(
        **asked.conditions,
        status=asked.status or None,
        limit=asked.limit + 1,
        before=before,
        oldest_first=asked.order == "oldest",
    )
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


@operation("GET", "/runs/{run_id}/changes", ChangeFilters, ChangePage, rule=Rule.READ)
async def changes(app: Application, actor: Actor, asked: ChangeFilters, *, run_id: str) -> ChangePage:
    """The files that a run added to the index, changed or removed, by path: the first 1,000, and of a first sync the
    first 100. The counts of the run are of all."""
    after = None if asked.cursor is None else key_before(asked.cursor)
    run = await app.history.get(run_id)
    found = await app.history.changes(run.id, asked.limit + 1, after=after, change=asked.change)
    page = found[: asked.limit]
    next_cursor = cursor_after(page[-1].path) if len(found) > len(page) else None
    return ChangePage(items=[RunChange.model_validate(each) for each in page], next_cursor=next_cursor)


@operation("GET", "/runs/{run_id}/log", LogFilters, LogPage, rule=Rule.READ)
async def log_lines(app: Application, actor: Actor, asked: LogFilters, *, run_id: str) -> LogPage:
    """What daemons logged about a run, oldest first: its newest 500 lines, without secrets and without the messages of
    unforeseen errors. None of a run that found nothing to do, or that a command executed."""
    after = None if asked.cursor is None else _line_before(asked.cursor)
    run = await app.history.get(run_id)
    found = await app.history.log_lines(run.id, asked.limit + 1, after=after)
    page = found[: asked.limit]
    next_cursor = cursor_after(page[-1].cursor) if len(found) > len(page) else None
    return LogPage(items=[RunLogLine.model_validate(line) for line in page], next_cursor=next_cursor)


def _line_before(cursor: str) -> tuple[int, int]:
    """Raises UsageError."""
    key = _LINE_KEY.fullmatch(key_before(cursor))
    if key is None:
        raise invalid_cursor()
    return int(key[1]), int(key[2])


@ruled(Rule.READ)
async def is_maintained(app: Application, actor: Actor, *, run_id: str) -> bool:
    """Whether the actor may cancel the run, and try it again."""
    return actor.may(Rule.MAINTAIN) and (await app.history.get(run_id)).repository_id in actor.maintains


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


class FailedRuns(Arguments):
    code: PlainText | None = Field(
        None, max_length=MAX_CODE_CHARS, description="Only those that failed with this `error_code`."
    )


@operation("POST", "/runs/retry-failed", FailedRuns, Runs, rule=Rule.OPERATE)
async def retry_failed(app: Application, actor: Actor, asked: FailedRuns) -> Runs:
    """Queue the last run of each repository again, if it failed."""
    from reposync.catalog.overview import overviews

    names = await app.history.latest_statuses({RunStatus.FAILED})
    rows = await overviews(app.repositories, app.manifests, app.history, sorted(names)) if names else []
    failed = [row.last_run for row in rows if row.last_run is not None and row.last_status == RunStatus.FAILED]
    if asked.code is not None:
        starts = range(0, len(failed), _AT_ONCE)
        pages = [await app.history.by_ids(failed[start : start + _AT_ONCE]) for start in starts]
        runs = {identity: run for page in pages for identity, run in page.items()}
        failed = [run for run in failed if run in runs and runs[run].error_code == asked.code]
    queued: list[Run] = []
    for run_id in failed:
        with contextlib.suppress(RunStateConflict):  # queued again meanwhile
            queued.append(await retry(app, actor, NOTHING, run_id=run_id))
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
