"""The execution history, and the page of one run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from fastapi import Response
from starlette.datastructures import QueryParams

from reposync.api.web.charts import run_chart
from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Page
from reposync.config.schedule import ScheduleError, zone
from reposync.errors import RepositoryNotFound
from reposync.operations.core import NOTHING, read_arguments
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.operations.runs import (
    ProblemFilters,
    Run,
    RunDetail,
    RunFilters,
    RunPage,
    RunProblem,
    RunRequest,
    RunStatus,
    RunTrigger,
    get_run,
    history,
    problems,
)

PAGE_RUNS = 50
PAGE_PROBLEMS = 200
PAGE_REQUESTS = 50
FAILED = "failed"
"""The reason of problems that need somebody's attention."""
_MAX_ZONE_CHARS = 64
_RUN = re.compile("Run ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""In the message of a run that a different one replaced."""
LIVE_REFRESH_SECONDS = 1
"""Polling interval of a page that cannot receive the events of its run."""


async def show_runs(page: Page) -> Response:
    filters, wanted = _filters(page.query)
    before = page.query.get("before") or None
    found, unknown = RunPage(items=[]), None
    try:
        found = await history(page.app, page.actor, read_arguments(RunFilters, {**wanted, "cursor": before}))
    except RepositoryNotFound as error:
        unknown = str(error)
    kept = {key: value for key, value in filters.items() if value}
    first = f"{page.root}/runs" + (f"?{urlencode(kept)}" if kept else "")
    older = urlencode({**kept, "before": found.next_cursor}) if found.next_cursor else None
    return page.show(
        "runs.html",
        runs=found.items,
        progress=progress_of(found.items),
        chart=run_chart(found.items) if before is None else None,
        filters=filters,
        filtered=bool(kept),
        unknown=unknown,
        statuses=[status.value for status in RunStatus],
        triggers=[trigger.value for trigger in RunTrigger],
        before=before,
        back=first,
        newest_link=first,
        older_link=f"{page.root}/runs?{older}" if older else None,
        # An older page does not change.
        refresh_seconds=IDLE_REFRESH_SECONDS if before is None else "",
    )


async def show_run(page: Page) -> Response:
    run = await get_run(page.app, page.actor, NOTHING, run_id=page.request.path_params["run_id"])
    shown = await _problems(page, run)
    return page.show(
        "run.html",
        run=run,
        other_run=_RUN.search(run.error_message or "") if run.status == "cancelled" else None,
        requests=[{"request": request, "wants": _wants(request)} for request in run.requests[:PAGE_REQUESTS]],
        more_requests=len(run.requests) - PAGE_REQUESTS,
        cancel_label=f"Cancel for all {len(run.asked_by):,} requesters" if len(run.asked_by) > 1 else "Cancel",
        progress=_progress(run),
        skipped=sum(number for reason, number in run.problem_counts.items() if reason != FAILED),
        approve_label=approve_label(run),
        problems=shown,
        more_problems=sum(run.problem_counts.values()) - len(shown),
        events=f"{page.root}/api/v1/runs/{run.id}/events",
        refresh_seconds=LIVE_REFRESH_SECONDS,
    )


async def _problems(page: Page, run: RunDetail) -> list[RunProblem]:
    """Those that need attention first, then the others, each by path."""
    if not run.problem_counts:
        return []
    every = (await problems(page.app, page.actor, ProblemFilters(limit=PAGE_PROBLEMS), run_id=run.id)).items
    if FAILED not in run.problem_counts:
        return every
    failed = read_arguments(ProblemFilters, {"reason": FAILED, "limit": PAGE_PROBLEMS})
    first = (await problems(page.app, page.actor, failed, run_id=run.id)).items
    return [*first, *(problem for problem in every if problem.reason != FAILED)][:PAGE_PROBLEMS]


def approve_label(run: Run) -> str:
    """Of the button that approves a blocked run."""
    if (brake := run.brake) is not None:
        return f"Approve: {brake.lost:,} of {brake.indexed:,} files lose their points"
    return "Try again"


def _filters(query: QueryParams) -> tuple[dict[str, str], dict[str, Any]]:
    """The valid ones as the form shows them, and as arguments of `history`. Days are in the browser's time zone, as the
    times on the page are."""
    repository = query.get("repository", "").strip()[:MAX_NAME_CHARS]
    status = next((status for status in RunStatus if status == query.get("status")), None)
    trigger = next((trigger for trigger in RunTrigger if trigger == query.get("trigger")), None)
    since, until = _day(query.get("since", "")), _day(query.get("until", ""))
    here, tz = query.get("zone", "")[:_MAX_ZONE_CHARS] if since or until else "", zone("UTC")
    try:
        tz = zone(here or "UTC")
    except ScheduleError:
        here = ""
    words = {"repository": repository, "status": status, "trigger": trigger, "since": since, "until": until}
    wanted = {
        "repository": repository,
        "status": [status] if status else None,
        "trigger": trigger,
        "since": datetime.combine(since, time.min, tz).astimezone(UTC) if since else None,
        "until": datetime.combine(until + timedelta(days=1), time.min, tz).astimezone(UTC) if until else None,
        "limit": PAGE_RUNS,
    }
    return {key: str(value or "") for key, value in {**words, "zone": here}.items()}, wanted


def _day(text: str) -> date | None:
    """None if it is not a date within the range that `timedelta` and the database can handle."""
    with contextlib.suppress(ValueError):
        day = date.fromisoformat(text)
        return day if 1971 <= day.year <= 9_000 else None
    return None


def progress_of(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """Of those that are running, by id."""
    return {run.id: _progress(run) for run in runs if run.status == "running"}


def _progress(run: Run) -> dict[str, Any]:
    """The figures of the running attempt as its events have them, so that the first event does not move the page; zero
    if its worker has not reported any. A different version of this program may have written them."""
    reported = run.progress or {}
    found = {key: reported.get(key) if isinstance(reported.get(key), int | float) else 0 for key in _NUMBERS}
    stages, file = reported.get("stage_seconds"), reported.get("file")
    phase = str(reported.get("phase", "starting"))
    # The words of a first sync are stored by file, and nothing is embedded; its meaning follows, from the beginning.
    embeds = bool(found["chunks_total"]) and phase != "words"
    return {
        **found,
        "phase": phase,
        "stage": {"words": "words, then meaning", "indexing": "meaning" if embeds else None}.get(phase),
        "embeds": embeds,
        "bar_done": found["chunks_embedded"] if embeds else found["files_done"],
        "bar_total": found["chunks_total"] if embeds else found["files_total"],
        "file": file if isinstance(file, str) else "",
        "stage_seconds": {
            str(name): seconds
            for name, seconds in (stages.items() if isinstance(stages, dict) else ())
            if isinstance(seconds, int | float)
        },
    }


_NUMBERS = (
    *("files_total", "files_done", "chunks_total", "chunks_embedded", "bytes_read", "chunks_per_second"),
    *("elapsed_seconds", "eta_seconds"),
)


def _wants(request: RunRequest) -> str:
    kinds = (("removal", request.removal), ("repair", request.repair), ("full sync", request.full))
    wants = next((kind for kind, is_wanted in kinds if is_wanted), "sync")
    match request.approval:
        case {"in_advance": True}:
            return f"{wants}, a mass deletion approved in advance"
        case {"commit": str(commit), "losses": dict(losses), "indexed": int(indexed)}:
            return f"{wants}; {sum(losses.values()):,} of {indexed:,} files may go at commit {commit[:10]}"
    return wants
