"""The execution history, and the page of one run."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from fastapi import Response
from starlette.datastructures import QueryParams

from reposync.api.web.figures import run_chart
from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Page
from reposync.config.schedule import ScheduleError, zone
from reposync.errors import RepositoryNotFound
from reposync.operations.core import NOTHING, read_arguments
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.operations.runs import (
    ProblemFilters,
    RunDetail,
    RunFilters,
    RunPage,
    RunProblem,
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
    return page.show(
        "runs.html",
        runs=found.items,
        next_cursor=found.next_cursor,
        chart=run_chart(found.items) if before is None else None,
        filters=filters,
        unknown=unknown,
        statuses=list(RunStatus),
        triggers=list(RunTrigger),
        before=before,
        # An older page does not change.
        refresh_seconds=IDLE_REFRESH_SECONDS if before is None else "",
    )


async def show_run(page: Page) -> Response:
    run = await get_run(page.app, page.actor, NOTHING, run_id=page.request.path_params["run_id"])
    return page.show(
        "run.html",
        run=run,
        other_run=_RUN.search(run.error_message or "") if run.status == "cancelled" else None,
        requests=run.requests[:PAGE_REQUESTS],
        problems=await _problems(page, run),
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
