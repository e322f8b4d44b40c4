"""The pages: rendered here, complete without a script."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from functools import wraps
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from markupsafe import Markup
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from reposync.api.access import Role, Visitor
from reposync.api.csrf import CSRF_FIELD
from reposync.api.parts import ApiParts
from reposync.api.web.charts import run_chart
from reposync.api.web.rendering import highlighted, make_environment
from reposync.errors import RepoSyncError
from reposync.scheduling.application import Application
from reposync.scheduling.lock_overview import lock_overviews
from reposync.scheduling.overview import Overview, overviews
from reposync.store.repositories import MAX_NAME_CHARS
from reposync.store.status import RunStatus, RunTrigger
from reposync.sync.search import MAX_QUERY_CHARS

PAGE_RUNS = 50
CHART_RUNS = 60
PAGE_PROBLEMS = 200
PAGE_HITS = 10
IDLE_REFRESH_SECONDS, LIVE_REFRESH_SECONDS = 5, 1

# What changes by itself with the time is no change of a page.
_VOLATILE = re.compile(r"data-relative>[^<]*<")
_NOTICES = {
    "sync": "Queued: a worker takes it within a moment.",
    "pause": "Paused: no more ticks until it is resumed. What runs goes on.",
    "resume": "Resumed.",
    "cancel": "Asked to end.",
    "retry": "Queued again.",
    "approve": "Approved, and queued again.",
    "release": "The lock is gone.",
}

_SEARCHED = ("q", "repository", "path", "language")

Show = Callable[..., Awaitable[Response]]


class Renderer:
    """Pages of one server: everything that all of them have in common."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._environment = make_environment()
        self.root = parts.access.config.root_path

    def page(
        self, request: Request, template: str, visitor: Visitor | None, *, status: int = 200, **values: Any
    ) -> Response:
        csrf = visitor.csrf if visitor is not None else values.pop("csrf", "")
        common = {
            "root": self.root,
            "version": self._parts.version,
            "here": request.url.path.removeprefix(self.root) or "/",
            "csrf": csrf,
            "csrf_field": lambda: Markup('<input type="hidden" name="{}" value="{}">').format(CSRF_FIELD, csrf),
            "signed_in": visitor is not None,
            "has_login": visitor is not None and visitor.by == "session",
            "may_operate": visitor is not None and visitor.may_operate,
            "notice": _NOTICES.get(request.query_params.get("done", "")),
            "pod": None,
            "refresh_seconds": IDLE_REFRESH_SECONDS,
        }
        html = self._environment.get_template(template).render({**common, **values})
        if status != 200:
            return HTMLResponse(html, status)
        tag = f'"{hashlib.sha256(_VOLATILE.sub("", html).encode("utf-8", "replace")).hexdigest()[:24]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return HTMLResponse(
            html.encode("utf-8", "replace"), headers={"ETag": tag, "Cache-Control": "private, no-cache"}
        )

    def problem(self, request: Request, visitor: Visitor | None, error: RepoSyncError) -> Response:
        heading = "There is no such thing here" if error.status == 404 else "That did not work"
        return self.page(request, "error.html", visitor, status=error.status, heading=heading, message=str(error))

    def guarded(self, show: Show) -> Show:
        """What goes wrong becomes a page, and not JSON."""

        @wraps(show)
        async def shown(request: Request, *arguments: Any, visitor: Visitor, **named: Any) -> Response:
            try:
                return await show(request, *arguments, visitor=visitor, **named)
            except RepoSyncError as error:
                return self.problem(request, visitor, error)

        return shown


def page_routes(parts: ApiParts) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    renderer = Renderer(parts)
    reader = parts.access.page(Role.READ)

    @routes.get("/")
    @renderer.guarded
    async def repositories(request: Request, visitor: Visitor = reader) -> Response:
        found = await _overviews(parts.application())
        return renderer.page(request, "repositories.html", visitor, repositories=found, tally=_tally(found))

    @routes.get("/runs")
    @renderer.guarded
    async def runs(request: Request, visitor: Visitor = reader) -> Response:
        app = parts.application()
        filters = _filters(request)
        before = request.query_params.get("before") or None
        wanted = _wanted(filters)
        page = await app.runs.history(**wanted, limit=PAGE_RUNS + 1, before=before)
        shown, more = page[:PAGE_RUNS], len(page) > PAGE_RUNS
        chart = None
        if filters["repository"]:
            chart = run_chart(await app.runs.history(repository=filters["repository"], limit=CHART_RUNS))
        kept = {key: value for key, value in filters.items() if value}
        older = urlencode({**kept, "before": shown[-1].cursor}) if more else None
        return renderer.page(
            request,
            "runs.html",
            visitor,
            runs=shown,
            chart=chart,
            filters=filters,
            filtered=bool(kept),
            names=[state.name for state in await app.repositories.states()],
            statuses=[each.value for each in RunStatus],
            triggers=[each.value for each in RunTrigger],
            before=before,
            newest_link=f"{renderer.root}/runs" + (f"?{urlencode(kept)}" if kept else ""),
            older_link=f"{renderer.root}/runs?{older}" if older else None,
            # An older page does not change.
            refresh_seconds=IDLE_REFRESH_SECONDS if before is None else "",
        )

    @routes.get("/runs/{run_id}")
    @renderer.guarded
    async def run(request: Request, run_id: str, visitor: Visitor = reader) -> Response:
        app = parts.application()
        found = await app.runs.get(run_id)
        counts = await app.runs.count_problems(found.id)
        problems = await app.runs.problems(found.id, limit=PAGE_PROBLEMS)
        return renderer.page(
            request,
            "run.html",
            visitor,
            run=found,
            attempts=await app.runs.attempts(found.id),
            progress=_progress(found.progress) if found.status is RunStatus.RUNNING else None,
            counts=counts,
            problems=problems,
            more_problems=sum(counts.values()) - len(problems),
            refresh_seconds=LIVE_REFRESH_SECONDS,
        )

    @routes.get("/locks")
    @renderer.guarded
    async def locks(request: Request, visitor: Visitor = reader) -> Response:
        app = parts.application()
        try:
            found, problem = await lock_overviews(app.locks, app.repositories, app.runs), None
        except RepoSyncError as error:
            found, problem = [], str(error)
        return renderer.page(request, "locks.html", visitor, locks=found, problem=problem)

    @routes.get("/search")
    @renderer.guarded
    async def search(request: Request, visitor: Visitor = reader) -> Response:
        app = parts.application()
        asked = {
            key: request.query_params.get(key, "").strip() or None for key in ("q", "repository", "path", "language")
        }
        hits, problem = await _search(app, asked)
        return renderer.page(
            request,
            "search.html",
            visitor,
            query=asked["q"],
            repository=asked["repository"],
            path=asked["path"],
            language=asked["language"],
            names=[state.name for state in await app.repositories.states()],
            hits=hits,
            problem=problem,
        )

    @routes.get("/login")
    async def login(request: Request) -> Response:
        if not parts.access.has_tokens:
            return Response(status_code=303, headers={"Location": f"{renderer.root}/"})
        form = parts.access.login_form(request)
        answer = renderer.page(
            request,
            "login.html",
            None,
            csrf=form.csrf,
            problem=_login_problem(request.query_params),
            next=request.query_params.get("next", ""),
        )
        form.keep(request, answer)
        return answer

    return routes


def static_files() -> StaticFiles:
    return StaticFiles(directory=str(files("reposync.api.web") / "static"))


async def _overviews(app: Application) -> list[Overview]:
    return await overviews(app.catalog, app.repositories, app.manifests, app.runs)


def _tally(found: list[Overview]) -> list[tuple[str, int]]:
    states = [each.state for each in found]
    running = sum(each.last_status == RunStatus.RUNNING for each in found)
    failed = sum(each.last_status in (RunStatus.FAILED, RunStatus.BLOCKED) for each in found)
    return [
        ("active", states.count("active")),
        ("paused", states.count("paused")),
        ("being synced", running),
        ("need a look", failed),
    ]


def _filters(request: Request) -> dict[str, str | None]:
    said = {key: request.query_params.get(key, "").strip() or None for key in ("repository", "status", "trigger")}
    said["repository"] = (said["repository"] or "")[:MAX_NAME_CHARS] or None
    for key, known in (("status", RunStatus), ("trigger", RunTrigger)):
        if said[key] not in {each.value for each in known}:
            said[key] = None
    for key in ("since", "until"):
        day = _day(request.query_params.get(key, ""))
        said[key] = day.isoformat() if day else None
    return said


def _wanted(filters: Mapping[str, str | None]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if filters["repository"]:
        wanted["repository"] = filters["repository"]
    if filters["status"]:
        wanted["status"] = RunStatus(filters["status"])
    if filters["trigger"]:
        wanted["trigger"] = RunTrigger(filters["trigger"])
    if since := _day(filters["since"] or ""):
        wanted["since"] = datetime.combine(since, time.min, UTC)
    if until := _day(filters["until"] or ""):
        wanted["until"] = datetime.combine(until + timedelta(days=1), time.min, UTC)
    return wanted


def _day(text: str) -> date | None:
    """Of days that a calendar has, a decade or two around us: `until` is the day after."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if 1970 <= day.year <= 9_000 else None


def _progress(said: Mapping[str, Any] | None) -> dict[str, Any]:
    known = {
        "phase": "starting",
        "files_total": 0,
        "files_done": 0,
        "chunks_done": 0,
        "files_per_second": 0,
        "eta_seconds": None,
    }
    return {**known, **(said or {})}


async def _search(app: Application, asked: Mapping[str, str | None]) -> tuple[list[dict[str, Any]], str | None]:
    query = asked["q"]
    if not query:
        return [], None
    try:
        hits = await app.search(
            query[:MAX_QUERY_CHARS],
            repository=asked["repository"],
            path_glob=asked["path"],
            language=asked["language"],
            limit=PAGE_HITS,
        )
    except RepoSyncError as error:
        return [], str(error)
    return [
        {
            "repository": hit.repository,
            "path": hit.path,
            "start_line": hit.start_line,
            "end_line": hit.end_line,
            "language": hit.language,
            "score": hit.score,
            # Only what a browser may open: a link comes from what was configured, and is looked at all the same.
            "url": hit.url if hit.url and hit.url.startswith(("https://", "http://")) else None,
            "code": highlighted(hit.text, hit.language, hit.start_line),
        }
        for hit in hits
    ], None


def _login_problem(said: Mapping[str, str]) -> str | None:
    match said.get("failed"):
        case "token":
            return "This token is not known."
        case "csrf":
            return "The form was too old. Please try again."
        case "attempts":
            return "Too many wrong tokens came from your address. Please wait a minute."
        case _:
            return None
