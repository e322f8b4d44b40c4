"""All pages, the page of locks, and the actions of buttons. Pages work without scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
from reposync.catalog.registration import pause_repository, resume_repository, syncable
from reposync.errors import RepoSyncError, StoreUnavailable, UsageError
from reposync.runs.lock_overview import lock_overviews, release_lock
from reposync.store.status import RunTrigger

Form = dict[str, str]


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
        if action not in ACTIONS:
            raise UsageError(f"There is no action {action[:50]!r}.")
        by = parts.access.name_of(request)
        onward = renderer.root + await ACTIONS[action](parts.application(), form, "page" if by == ANONYMOUS else by)
        if form.get("back"):
            onward = local_address(form["back"], renderer.root)
        return Response(status_code=303, headers={"Location": _with_notice(onward, action)})

    return routes


async def _sync(app: Application, form: Form, by: str) -> str:
    row = await syncable(app, form.get("name", ""))
    run, _ = await app.runs.enqueue(row.name, RunTrigger.HTTP, asked_by=by, max_attempts=_max_attempts(app))
    return f"/runs/{run.id}"


async def _pause(app: Application, form: Form, by: str) -> str:
    await pause_repository(app, form.get("name", ""), "Paused on the page.", by=by)
    return "/"


async def _resume(app: Application, form: Form, by: str) -> str:
    await resume_repository(app, form.get("name", ""))
    return "/"


async def _cancel(app: Application, form: Form, by: str) -> str:
    run = await app.runs.request_cancel(whole_id(form.get("run", "")), by=by)
    return f"/runs/{run.id}"


async def _retry(app: Application, form: Form, by: str) -> str:
    how: dict[str, Any] = {"by": by, "trigger": RunTrigger.HTTP, "max_attempts": _max_attempts(app)}
    run = await app.runs.retry(whole_id(form.get("run", "")), **how)
    return f"/runs/{run.id}"


async def _approve(app: Application, form: Form, by: str) -> str:
    how: dict[str, Any] = {"by": by, "trigger": RunTrigger.HTTP, "max_attempts": _max_attempts(app)}
    run = await app.runs.approve(whole_id(form.get("run", "")), **how)
    return f"/runs/{run.id}"


async def _release(app: Application, form: Form, by: str) -> str:
    await release_lock(form.get("name", ""), app.locks, app.repositories, app.runs, by=by)
    return "/locks"


async def _index_rollback(app: Application, form: Form, by: str) -> str:
    await roll_back(app, form.get("name", ""))
    return "/"


async def _index_pause(app: Application, form: Form, by: str) -> str:
    await hold(app, [form.get("name", "")])
    return "/"


async def _index_resume(app: Application, form: Form, by: str) -> str:
    await release(app, [form.get("name", "")])
    return "/"


ACTIONS: dict[str, Callable[[Application, Form, str], Awaitable[str]]] = {
    "sync": _sync,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "retry": _retry,
    "approve": _approve,
    "release": _release,
    "index-rollback": _index_rollback,
    "index-pause": _index_pause,
    "index-resume": _index_resume,
}
"""Each takes the form of its button and the name of the person, and returns the page to show."""


def _max_attempts(app: Application) -> int:
    return app.configuration.registry.daemon.max_attempts


def _with_notice(address: str, action: str) -> str:
    """The address, with the notice that the page shows."""
    split = urlsplit(address)
    kept = [(key, value) for key, value in parse_qsl(split.query) if key != "done"]
    return f"{split.path}?{urlencode([*kept, ('done', action)])}"
