"""The execution history, and the page of one run."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from markupsafe import Markup, escape

from reposync.api.auth import Principal, Role
from reposync.api.routing import ApiParts, Router
from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Renderer
from reposync.app.application import Application
from reposync.app.index_overview import index_overview
from reposync.config.schedule import ScheduleError, zone
from reposync.content.model import Skip
from reposync.errors import GateClosed, RepositoryNotFound
from reposync.runs.reporting import current_progress
from reposync.store.repository import MAX_NAME_CHARS
from reposync.store.run import MissedTick, Run, RunProblem, RunRequest
from reposync.store.status import FINAL, RunStatus, RunTrigger
from reposync.store.ticks import Ticks
from reposync.sync.brake import BrakeFacts, read_brake
from reposync.words import duration

PAGE_RUNS = 50
CHART_RUNS = 60
PAGE_PROBLEMS = 200
PAGE_REQUESTS = 50
MISSED_TICKS = 5
_MAX_ZONE_CHARS = 64
LIVE_REFRESH_SECONDS = 1
"""Polling interval of a page that cannot receive the events of its run."""
_RUN = re.compile("run ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")

CHART_WIDTH, CHART_HEIGHT, BAR_GAP = 300, 80, 1
MIN_BAR_HEIGHT = 2.0
"""A bar that is too low to see would look like a missing run."""
MIN_BARS = 40


def run_pages(parts: ApiParts, renderer: Renderer) -> APIRouter:
    routes = Router()
    reader = parts.access.page(Role.READ)

    @routes.get("/runs")
    async def runs(request: Request, principal: Principal = reader) -> Response:
        app = parts.application()
        filters, wanted = _filters(request)
        before = request.query_params.get("before") or None
        page = await app.runs.history(**wanted, limit=PAGE_RUNS + 1, before=before)
        shown, more = page[:PAGE_RUNS], len(page) > PAGE_RUNS
        repository, unknown = filters["repository"], None
        if not page and repository:
            try:
                await app.runs.require_known(repository)
            except RepositoryNotFound as error:
                unknown = error.for_pages
        kept = {key: value for key, value in filters.items() if value}
        first = f"{renderer.root}/runs" + (f"?{urlencode(kept)}" if kept else "")
        older = urlencode({**kept, "before": shown[-1].cursor}) if more else None
        return renderer.page(
            request,
            "runs.html",
            principal,
            runs=shown,
            progress=progress_of(shown),
            askers=await app.runs.askers([run.id for run in shown]),
            **await _of_repository(app, repository),
            filters=filters,
            filtered=bool(kept),
            unknown=unknown,
            statuses=[each.value for each in RunStatus],
            triggers=[each.value for each in RunTrigger],
            before=before,
            back=first,
            newest_link=first,
            older_link=f"{renderer.root}/runs?{older}" if older else None,
            # An older page does not change.
            refresh_seconds=IDLE_REFRESH_SECONDS if before is None else "",
        )

    @routes.get("/runs/{run_id}")
    async def run(request: Request, run_id: str, principal: Principal = reader) -> Response:
        app = parts.application()
        found = await app.runs.get(run_id)
        counts = await app.runs.count_problems(found.id)
        problems = await _problems(app, found, counts) if counts else []
        brake = read_brake(found.brake)
        requests = (await app.runs.requests([found.id])).get(found.id, [])
        live = len(askers_of([each for each in requests if each.is_live]))
        return renderer.page(
            request,
            "run.html",
            principal,
            run=found,
            askers=askers_of(requests),
            requests=[
                {"request": each, "wants": _wants(each), "taken_by": _run_of(each.withdrawn_by)}
                for each in requests[:PAGE_REQUESTS]
            ],
            more_requests=len(requests) - PAGE_REQUESTS,
            # Cancelling a run withdraws the requests of everybody.
            cancel_label=f"Cancel for all {live:,} requesters" if live > 1 else "Cancel",
            attempts=await app.runs.attempts(found.id),
            progress=_progress(found),
            counts=counts,
            brake=brake,
            approve_label=_approve_label(found, brake),
            problems=problems,
            more_problems=sum(counts.values()) - len(problems),
            events=f"{renderer.root}/api/v1/runs/{found.id}/events",
            refresh_seconds=LIVE_REFRESH_SECONDS,
        )

    return routes


async def _of_repository(app: Application, name: str) -> dict[str, Any]:
    """What the history shows of a single repository."""
    index, chart = None, None
    missed: list[MissedTick] = []
    if name:
        with contextlib.suppress(RepositoryNotFound):  # it was removed, but its history is kept
            index = await index_overview(app, name)
            row = await app.repositories.get(name)
            missed = await Ticks(app.database).missed(row.id, MISSED_TICKS + 1)
        chart = run_chart(await app.runs.history(repository=name, limit=CHART_RUNS))
    more_missed = len(missed) > MISSED_TICKS
    return {"chart": chart, "index": index, "missed": missed[:MISSED_TICKS], "more_missed": more_missed}


async def _problems(app: Application, run: Run, counts: Mapping[str, int]) -> list[RunProblem]:
    """Failures first: they need attention, the others are skipped on purpose."""
    failed = await app.runs.problems(run.id, PAGE_PROBLEMS, reason=Skip.FAILED) if Skip.FAILED in counts else []
    others = await app.runs.problems(run.id, PAGE_PROBLEMS)
    return failed + [each for each in others if each.reason != Skip.FAILED][: PAGE_PROBLEMS - len(failed)]


def _approve_label(run: Run, brake: BrakeFacts | None) -> str:
    if brake is not None:
        return f"Approve: {brake.lost:,} of {brake.indexed:,} files lose their points"
    return "Make it live anyway" if run.error_code == GateClosed.code else "Approve the deletion"


def _filters(request: Request) -> tuple[dict[str, str], dict[str, Any]]:
    """The valid ones as the form shows them, and as arguments of `history`."""
    query = request.query_params
    repository = query.get("repository", "").strip()[:MAX_NAME_CHARS]
    status = next((each for each in RunStatus if each == query.get("status")), None)
    trigger = next((each for each in RunTrigger if each == query.get("trigger")), None)
    since, until = _day(query.get("since", "")), _day(query.get("until", ""))
    here = _zone(query.get("zone", "")) if since or until else None
    # Days in the time zone of the browser, as the times on the page are.
    tz = zone(here) if here else UTC
    wanted = {
        "repository": repository or None,
        "status": status,
        "trigger": trigger,
        "since": datetime.combine(since, time.min, tz).astimezone(UTC) if since else None,
        "until": datetime.combine(until + timedelta(days=1), time.min, tz).astimezone(UTC) if until else None,
    }
    words = {"repository": repository, "status": status, "trigger": trigger, "since": since, "until": until}
    return {key: str(value or "") for key, value in {**words, "zone": here}.items()}, wanted


def _zone(name: str) -> str | None:
    """None if it is not the name of a time zone."""
    with contextlib.suppress(ScheduleError):
        if 0 < len(name) <= _MAX_ZONE_CHARS:
            zone(name)
            return name
    return None


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
    """The figures of the running attempt; zero if its worker has not reported any."""
    reported = current_progress(run) or {}
    found = {key: reported.get(key) if isinstance(reported.get(key), int | float) else 0 for key in _NUMBERS}
    stages, file = reported.get("stage_seconds"), reported.get("file")
    return {
        **found,
        "phase": str(reported.get("phase", "starting")),
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


def askers_of(requests: Sequence[RunRequest]) -> list[str]:
    """The names of the requesters, without those that withdrew, unless all did."""
    live = [each for each in requests if each.is_live]
    return list(dict.fromkeys(each.asked_by for each in live or requests))


def _wants(request: RunRequest) -> str:
    kinds = (("removal", request.removal), ("repair", request.repair), ("full sync", request.full))
    wants = next((kind for kind, is_wanted in kinds if is_wanted), "sync")
    if request.approval is None:
        return wants
    brake = read_brake(request.approval)
    if brake is None:
        return f"{wants}, approved in advance"
    return f"{wants}; {brake.lost:,} of {brake.indexed:,} files may go at commit {brake.commit[:10]}"


def _run_of(withdrawn_by: str | None) -> str | None:
    match = _RUN.fullmatch(withdrawn_by or "")
    return match[1] if match else None


def run_chart(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Bar charts and figures of the latest runs that were executed and have ended; None if none has. `runs`: the newest
    first. Drawn as SVG on the server: without scripts, and without style attributes, which the CSP would refuse."""
    ended = [run for run in reversed(runs) if run.status in FINAL and run.attempt and run.duration_seconds is not None]
    if not ended:
        return None
    seconds = [run.duration_seconds or 0.0 for run in ended]
    completed = sum(run.status is RunStatus.COMPLETED and not run.files_failed for run in ended)
    files = [float(run.files_processed) for run in ended]
    endings = [f"{run.status}, {run.files_failed:,} failed" if run.files_failed else str(run.status) for run in ended]
    spans = [f"{ending}, {duration(run.duration_seconds)}" for ending, run in zip(endings, ended, strict=True)]
    return {
        "runs": len(ended),
        "success_rate": f"{100 * completed / len(ended):.0f}%",
        "mean": duration(sum(seconds) / len(seconds)),
        "p95": duration(_percentile(seconds, 0.95)),
        "longest": duration(max(seconds)),
        "most_files": f"{max(files):,.0f}",
        "durations": _bars(seconds, spans, ended),
        "files": _bars(files, [f"{run.files_processed:,} files" for run in ended], ended),
    }


def _percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _bars(values: Sequence[float], words: Sequence[str], runs: Sequence[Run]) -> Markup:
    highest = max(values) or 1.0
    # A few runs do not fill the chart, so that bars are never wide.
    step = CHART_WIDTH / max(len(values), MIN_BARS)
    left = CHART_WIDTH - step * len(values)
    rects = []
    for number, (value, label, run) in enumerate(zip(values, words, runs, strict=True)):
        kind = "failed" if run.files_failed else escape(run.status)
        height = max(MIN_BAR_HEIGHT, CHART_HEIGHT * value / highest)
        rects.append(
            f'<rect class="{kind}" x="{left + number * step:.2f}" y="{CHART_HEIGHT - height:.2f}" '
            f'width="{max(step - BAR_GAP, 0.5):.2f}" height="{height:.2f}"><title>{escape(label)}</title></rect>'
        )
    box = f'viewBox="0 0 {CHART_WIDTH} {CHART_HEIGHT}" preserveAspectRatio="none"'
    return Markup(f'<svg class="bars" {box} role="img" aria-label="{len(values)} runs">{"".join(rects)}</svg>')  # noqa: S704
