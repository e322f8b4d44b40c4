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
from reposync.content.model import Skip
from reposync.errors import RepositoryNotFound
from reposync.runs.reporting import current_progress
from reposync.store.index_queries import commit_page
from reposync.store.repository import MAX_NAME_CHARS
from reposync.store.run import IN_ADVANCE, Run, RunRequest
from reposync.store.status import RunStatus, RunTrigger
from reposync.sync.brake import read_brake

PAGE_RUNS = 50
CHART_RUNS = 60
PAGE_PROBLEMS = 200
PAGE_REQUESTS = 50
_MAX_ZONE_CHARS = 64
_RUN = re.compile("Run ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""In the message of a run that a different one replaced."""
LIVE_REFRESH_SECONDS = 1
"""Polling interval of a page that cannot receive the events of its run."""


async def show_runs(page: Page) -> Response:
    app = page.app
    filters, wanted = _filters(page.query)
    before = page.query.get("before") or None
    found = await app.history.runs(**wanted, limit=max(PAGE_RUNS + 1, CHART_RUNS), before=before)
    shown, more = found[:PAGE_RUNS], len(found) > PAGE_RUNS
    repository, unknown = filters["repository"], None
    if not found and repository:
        try:
            await app.history.require_known(repository)
        except RepositoryNotFound as error:
            unknown = error.for_pages
    kept = {key: value for key, value in filters.items() if value}
    first = f"{page.root}/runs" + (f"?{urlencode(kept)}" if kept else "")
    older = urlencode({**kept, "before": shown[-1].cursor}) if more else None
    return page.show(
        "runs.html",
        runs=shown,
        progress=progress_of(shown),
        chart=run_chart(found) if before is None else None,
        filters=filters,
        filtered=bool(kept),
        unknown=unknown,
        statuses=[each.value for each in RunStatus],
        triggers=[each.value for each in RunTrigger],
        before=before,
        back=first,
        newest_link=first,
        older_link=f"{page.root}/runs?{older}" if older else None,
        # An older page does not change.
        refresh_seconds=IDLE_REFRESH_SECONDS if before is None else "",
    )


async def show_run(page: Page) -> Response:
    app = page.app
    found = await app.history.get(page.request.path_params["run_id"])
    counts = await app.history.count_problems(found.id)
    problems = await app.history.problems(found.id, PAGE_PROBLEMS, failed_first=True)
    brake = read_brake(found.brake)
    requests, askers = found.requests, found.all_askers
    return page.show(
        "run.html",
        run=found,
        commit_page=await commit_page(app.database, found.repository_id),
        askers=askers,
        other_run=_RUN.search(found.error_message or "") if found.status is RunStatus.CANCELLED else None,
        requests=[{"request": request, "wants": _wants(request)} for request in requests[:PAGE_REQUESTS]],
        more_requests=len(requests) - PAGE_REQUESTS,
        cancel_label=f"Cancel for all {len(askers):,} requesters" if len(askers) > 1 else "Cancel",
        attempts=found.all_attempts,
        progress=_progress(found),
        counts=counts,
        skipped=sum(number for reason, number in counts.items() if reason != Skip.FAILED),
        brake=brake,
        approve_label=approve_label(found),
        problems=problems,
        more_problems=sum(counts.values()) - len(problems),
        events=f"{page.root}/api/v1/runs/{found.id}/events",
        refresh_seconds=LIVE_REFRESH_SECONDS,
    )


def approve_label(run: Run) -> str:
    """Of the button that approves a blocked run."""
    if (brake := read_brake(run.brake)) is not None:
        return f"Approve: {brake.lost:,} of {brake.indexed:,} files lose their points"
    return "Try again"


def _filters(query: QueryParams) -> tuple[dict[str, str], dict[str, Any]]:
    """The valid ones as the form shows them, and as arguments of `history`. Days are in the browser's time zone, as the
    times on the page are."""
    repository = query.get("repository", "").strip()[:MAX_NAME_CHARS]
    status = next((each for each in RunStatus if each == query.get("status")), None)
    trigger = next((each for each in RunTrigger if each == query.get("trigger")), None)
    since, until = _day(query.get("since", "")), _day(query.get("until", ""))
    here, tz = query.get("zone", "")[:_MAX_ZONE_CHARS] if since or until else "", zone("UTC")
    try:
        tz = zone(here or "UTC")
    except ScheduleError:
        here = ""
    words = {"repository": repository, "status": status, "trigger": trigger, "since": since, "until": until}
    wanted = {
        "repository": repository or None,
        "status": status,
        "trigger": trigger,
        "since": datetime.combine(since, time.min, tz).astimezone(UTC) if since else None,
        "until": datetime.combine(until + timedelta(days=1), time.min, tz).astimezone(UTC) if until else None,
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
    return {run.id: _progress(run) for run in runs if run.status is RunStatus.RUNNING}


def _progress(run: Run) -> dict[str, Any]:
    """The figures of the running attempt as its events have them, so that the first event does not move the page; zero
    if its worker has not reported any. A different version of this program may have written them."""
    reported = current_progress(run) or {}
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
    if request.approval == IN_ADVANCE:
        return f"{wants}, a mass deletion approved in advance"
    brake = read_brake(request.approval)
    if brake is None:
        return wants
    return f"{wants}; {brake.lost:,} of {brake.indexed:,} files may go at commit {brake.commit[:10]}"
