"""The execution history, and one run while it goes on and after."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from reposync.api.access import Role, Visitor
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.api.web.askers import askers_of, request_lines
from reposync.api.web.charts import run_chart
from reposync.api.web.renderer import IDLE_REFRESH_SECONDS, Renderer
from reposync.app.application import Application
from reposync.app.index_overview import index_overview
from reposync.config.schedule import ScheduleError, zone
from reposync.content.model import Skip
from reposync.errors import GateClosed, RepositoryNotFound
from reposync.runs.blocked import Brake, brake_of
from reposync.runs.progress import shown_progress
from reposync.store.repository import MAX_NAME_CHARS
from reposync.store.requests import RunRequest
from reposync.store.run import Run, RunProblem
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.ticks import MissedTick, Ticks

PAGE_RUNS = 50
CHART_RUNS = 60
PAGE_PROBLEMS = 200
PAGE_REQUESTS = 50
MISSED_TICKS = 5
_LONGEST_ZONE_CHARS = 64
LIVE_REFRESH_SECONDS = 1
"""How often a page asks that cannot have the events of its run."""


def run_pages(parts: ApiParts, renderer: Renderer) -> APIRouter:
    routes = Router()
    reader = parts.access.page(Role.READ)

    @routes.get("/runs")
    async def runs(request: Request, visitor: Visitor = reader) -> Response:
        app = parts.application()
        filters = _filters(request)
        before = request.query_params.get("before") or None
        page = await app.runs.history(**_wanted(filters), limit=PAGE_RUNS + 1, before=before)
        shown, more = page[:PAGE_RUNS], len(page) > PAGE_RUNS
        chart = None
        index = None
        missed: list[MissedTick] = []
        if filters["repository"]:
            with contextlib.suppress(RepositoryNotFound):  # it was removed, and its history is still here
                index = await index_overview(app, filters["repository"])
                row = await app.repositories.get(filters["repository"])
                missed = await Ticks(app.database).missed(row.id, MISSED_TICKS + 1)
            chart = run_chart(await app.runs.history(repository=filters["repository"], limit=CHART_RUNS))
        unknown = None
        if not page and filters["repository"]:
            try:
                await app.runs.require_known(filters["repository"])
            except RepositoryNotFound as error:
                unknown = error.for_pages
        kept = {key: value for key, value in filters.items() if value}
        older = urlencode({**kept, "before": shown[-1].cursor}) if more else None
        return renderer.page(
            request,
            "runs.html",
            visitor,
            runs=shown,
            askers=await app.runs.askers([run.id for run in shown]),
            chart=chart,
            index=index,
            missed=missed[:MISSED_TICKS],
            more_missed=len(missed) > MISSED_TICKS,
            filters=filters,
            filtered=bool(kept),
            unknown=unknown,
            statuses=[each.value for each in RunStatus],
            triggers=[each.value for each in RunTrigger],
            before=before,
            back=f"{renderer.root}/runs" + (f"?{urlencode(kept)}" if kept else ""),
            newest_link=f"{renderer.root}/runs" + (f"?{urlencode(kept)}" if kept else ""),
            older_link=f"{renderer.root}/runs?{older}" if older else None,
            # An older page does not change.
            refresh_seconds=IDLE_REFRESH_SECONDS if before is None else "",
        )

    @routes.get("/runs/{run_id}")
    async def run(request: Request, run_id: str, visitor: Visitor = reader) -> Response:
        app = parts.application()
        found = await app.runs.get(run_id)
        counts = await app.runs.count_problems(found.id)
        problems = await _problems(app, found, counts) if counts else []
        brake = brake_of(found)
        requests = (await app.runs.requests([found.id])).get(found.id, [])
        return renderer.page(
            request,
            "run.html",
            visitor,
            run=found,
            askers=askers_of(requests),
            requests=request_lines(requests[:PAGE_REQUESTS]),
            more_requests=len(requests) - PAGE_REQUESTS,
            cancel_label=_cancel_label(requests),
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


async def _problems(app: Application, run: Run, counts: Mapping[str, int]) -> list[RunProblem]:
    """Those that failed come first: they need a look, the others are meant to be left out."""
    failed = await app.runs.problems(run.id, PAGE_PROBLEMS, reason=Skip.FAILED) if Skip.FAILED in counts else []
    others = await app.runs.problems(run.id, PAGE_PROBLEMS)
    return failed + [each for each in others if each.reason != Skip.FAILED][: PAGE_PROBLEMS - len(failed)]


def _approve_label(run: Run, brake: Brake | None) -> str:
    if brake is not None:
        return f"Approve: {brake.lost:,} of {brake.indexed:,} files lose their points"
    return "Make it live all the same" if run.error_code == GateClosed.code else "Approve the deletion"


def _cancel_label(requests: Sequence[RunRequest]) -> str:
    """A run ends when nobody asks for it any more: who cancels it takes back what others asked, too."""
    live = len(askers_of([each for each in requests if each.is_live]))
    return f"Cancel for all {live:,} who asked" if live > 1 else "Cancel"


def _filters(request: Request) -> dict[str, str | None]:
    said = {key: request.query_params.get(key, "").strip() or None for key in ("repository", "status", "trigger")}
    said["repository"] = (said["repository"] or "")[:MAX_NAME_CHARS] or None
    for key, known in (("status", RunStatus), ("trigger", RunTrigger)):
        if said[key] not in {each.value for each in known}:
            said[key] = None
    for key in ("since", "until"):
        day = _day(request.query_params.get(key, ""))
        said[key] = day.isoformat() if day else None
    has_day = said["since"] or said["until"]
    said["zone"] = _zone(request.query_params.get("zone", "")) if has_day else None
    return said


def _wanted(filters: Mapping[str, str | None]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if filters["repository"]:
        wanted["repository"] = filters["repository"]
    if filters["status"]:
        wanted["status"] = RunStatus(filters["status"])
    if filters["trigger"]:
        wanted["trigger"] = RunTrigger(filters["trigger"])
    # The days of whoever asks, as the times on the page are.
    here = zone(filters["zone"]) if filters["zone"] else UTC
    if since := _day(filters["since"] or ""):
        wanted["since"] = datetime.combine(since, time.min, here).astimezone(UTC)
    if until := _day(filters["until"] or ""):
        wanted["until"] = datetime.combine(until + timedelta(days=1), time.min, here).astimezone(UTC)
    return wanted


def _zone(name: str) -> str | None:
    """None for what is no name of a time zone."""
    if not name or len(name) > _LONGEST_ZONE_CHARS:
        return None
    try:
        zone(name)
    except ScheduleError:
        return None
    return name


def _day(text: str) -> date | None:
    """Of days that a calendar has, a decade or two around us: `until` is the day after."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if 1971 <= day.year <= 9_000 else None


def _progress(run: Run) -> dict[str, Any]:
    """The figures of the attempt under way; zeros where nothing was told yet, or by another version."""
    said = shown_progress(run) or {}
    numbers = ("files_total", "files_done", "chunks_done", "bytes_read", "files_per_second", "eta_seconds")
    found = {key: said.get(key) if isinstance(said.get(key), int | float) else 0 for key in numbers}
    return {**found, "phase": str(said.get("phase", "starting"))}
