"""All pages, the page of locks, and the actions of buttons. Pages work without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi import APIRouter, Request, Response

from reposync.api.auth import ANONYMOUS, Principal, Role, local_address
from reposync.api.dependencies import ApiParts
from reposync.api.routes.runs import whole_id
from reposync.api.routing import Router
from reposync.api.web.login_page import login_page
from reposync.api.web.rendering import Renderer
from reposync.api.web.repositories_page import repositories_page
from reposync.api.web.runs_page import run_pages
from reposync.api.web.search_page import search_page
from reposync.app.application import Application
from reposync.app.index_overview import hold, release, roll_back
from reposync.catalog.targets import syncable
from reposync.errors import RepoSyncError, StoreUnavailable, UsageError
from reposync.runs.locks import lock_overviews, release_lock
from reposync.store.run import Run
from reposync.store.status import RunTrigger


def page_routes(parts: ApiParts, renderer: Renderer) -> APIRouter:
    routes = Router(include_in_schema=False)
    reader = parts.access.page(Role.READ)
    for pages in (repositories_page, run_pages, search_page, login_page):
        routes.include_router(pages(parts, renderer))

    @routes.get("/locks")
    async def locks(request: Request, principal: Principal = reader) -> Response:
        app = parts.application()
        try:
            found, problem = await lock_overviews(app.locks, app.repositories, app.runs), None
        except StoreUnavailable:
            raise
        except RepoSyncError as error:
            # Redis is not available, which this page reports.
            found, problem = [], error.for_pages
        return renderer.page(request, "locks.html", principal, locks=found, problem=problem)

    @routes.post("/actions/{action}", dependencies=[parts.access.page(Role.OPERATE)])
    async def act(request: Request, action: str) -> Response:
        """Redirects, so that reloading does not repeat the action: to `back`, the page of the button, if given."""
        form = {key: value for key, value in (await request.form()).items() if isinstance(value, str)}
        name = parts.access.name_of(request)
        by = "page" if name == ANONYMOUS else name
        onward = renderer.root + await _perform(parts.application(), action, form, by)
        if form.get("back"):
            onward = local_address(form["back"], renderer.root)
        return Response(status_code=303, headers={"Location": _with_notice(onward, action)})

    return routes


async def _perform(app: Application, action: str, form: Mapping[str, str], by: str) -> str:
    """Returns the path of the page to show."""
    name, run_id = form.get("name", ""), form.get("run", "")
    max_attempts = app.configuration.registry.daemon.max_attempts
    again: dict[str, Any] = {"by": by, "trigger": RunTrigger.HTTP, "max_attempts": max_attempts}
    run: Run | None = None
    match action:
        case "sync":
            row = await syncable(app.repositories, name)
            run, _ = await app.runs.enqueue(row.name, RunTrigger.HTTP, asked_by=by, max_attempts=max_attempts)
        case "cancel":
            run = await app.runs.request_cancel(whole_id(run_id), by=by)
        case "retry":
            run = await app.runs.retry(whole_id(run_id), **again)
        case "approve":
            run = await app.runs.approve(whole_id(run_id), **again)
        case "pause":
            await app.repositories.pause(name, "Paused on the page.", by=by)
        case "resume":
            await app.repositories.resume(name)
        case "release":
            await release_lock(name, app.locks, app.repositories, app.runs, by=by)
            return "/locks"
        case "index-rollback":
            await roll_back(app, name)
        case "index-pause":
            await hold(app, [name])
        case "index-resume":
            await release(app, [name])
        case _:
            raise UsageError(f"There is no action {action[:50]!r}.")
    return f"/runs/{run.id}" if run is not None else "/"


def _with_notice(address: str, action: str) -> str:
    """The address, with the notice that the page shows."""
    split = urlsplit(address)
    kept = [(key, value) for key, value in parse_qsl(split.query) if key != "done"]
    return f"{split.path}?{urlencode([*kept, ('done', action)])}"
