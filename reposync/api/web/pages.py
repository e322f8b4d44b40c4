"""All pages, but those of repositories, runs, files, the search and the help: locks, the API, the login, and the
actions of buttons. Pages work without scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import URL

from reposync.api.auth import ANONYMOUS, Principal, Role, admitted, local_address, login_address
from reposync.api.description import Description
from reposync.api.errors import AccessDenied
from reposync.api.routes.runs import act_on_run
from reposync.api.routing import FILE, ApiParts, BodyLimits, Router, UnreadRoute, with_body
from reposync.api.web.code_pages import show_file, show_search
from reposync.api.web.rendering import Page, Renderer
from reposync.api.web.repository_pages import show_repositories, show_repository
from reposync.api.web.runs_page import show_run, show_runs
from reposync.app.application import Application
from reposync.catalog.overview import overviews
from reposync.catalog.targets import syncable
from reposync.errors import RepoSyncError, RunStateConflict, StoreUnavailable, UsageError
from reposync.runs.locks import Lock, lock_overviews, release_lock
from reposync.store.run import Ask
from reposync.store.status import RunStatus, RunTrigger

# Everybody may send these, and a form has a few hundred bytes.
FORM = BodyLimits(max_bytes=16_384, seconds=3.0)


def page_routes(parts: ApiParts, renderer: Renderer, description: Description) -> APIRouter:
    routes = Router(include_in_schema=False)
    reader = parts.access.page(Role.READ)

    def add(path: str, show: Callable[[Page], Awaitable[Response]]) -> None:
        @routes.get(path)
        async def page(request: Request, principal: Principal = reader) -> Response:
            return await show(Page(parts, renderer, request, principal))

    for path, show in PAGES.items():
        add(path, show)

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        """The OpenAPI document as a page, without scripts and without anything from other servers."""
        principal = await parts.access.principal_or_none(request)
        operations = [
            {"tags": ["other"], "summary": "", **operation, "path": path, "method": method.upper()}
            for path, methods in (await description.document())["paths"].items()
            for method, operation in methods.items()
        ]
        return renderer.page(request, "api_docs.html", principal, operations=operations, type_of=_type_of)

    @routes.post("/actions/{action}", dependencies=[parts.access.page(Role.OPERATE)])
    async def act(request: Request, action: str) -> Response:
        """Redirects, so that reloading does not repeat the action: to `back`, the page of the button, if given."""
        form = _fields(await request.form())
        name = admitted(request).name
        by = "page" if name == ANONYMOUS else name
        onward = renderer.root + await _perform(parts.application(), action, form, by)
        if form.get("back"):
            onward = local_address(form["back"], renderer.root)
        # With the notice that the page shows.
        return _redirect(str(URL(onward).include_query_params(done=action)))

    return routes


async def show_locks(page: Page) -> Response:
    app = page.app
    found: list[Lock] = []
    problem = None
    try:
        found = await lock_overviews(app.locks, app.repositories, app.history)
    except StoreUnavailable:
        raise
    except RepoSyncError as error:
        # Redis is not available, which this page reports.
        problem = error.for_pages
    return page.show("locks.html", locks=found, problem=problem)


PAGES: Mapping[str, Callable[[Page], Awaitable[Response]]] = {
    "/": show_repositories,
    "/repositories/{name:path}": show_repository,
    "/runs": show_runs,
    "/runs/{run_id}": show_run,
    "/search": show_search,
    f"/files/{FILE}": show_file,
    "/locks": show_locks,
}


async def _perform(app: Application, action: str, form: Mapping[str, str], by: str) -> str:
    """Returns the path of the page to show."""
    name = form.get("name", "")
    match action:
        case "sync" | "full" | "verify":
            row = await syncable(app.repositories, name)
            attempts = app.configuration.registry.daemon.max_attempts
            full, repair = action == "full", action == "verify"
            ask = Ask(RunTrigger.HTTP, by, full=full, repair=repair, max_attempts=attempts)
            run, _ = await app.runs.enqueue(row.name, ask)
            return f"/runs/{run.id}"
        case "cancel" | "retry" | "approve":
            return f"/runs/{(await act_on_run(app, action, form.get('run', ''), by)).id}"
        case "retry-failed":
            await _retry_failed(app, by)
        case "release":
            await release_lock(name, app.locks, app.repositories, app.history, app.runs, by=by)
            return "/locks"
        case "pause":
            await app.repositories.pause(name, "Paused on the page.", by=by)
        case "resume":
            await app.repositories.resume(name)
        case _:
            raise UsageError(f"There is no action {action[:50]!r}.")
    return "/"


async def _retry_failed(app: Application, by: str) -> None:
    """The last run of each repository, if it failed."""
    names = await app.history.latest_statuses({RunStatus.FAILED})
    for each in await overviews(app.repositories, app.manifests, app.history, sorted(names)) if names else ():
        if each.last_run is not None and each.last_status == RunStatus.FAILED:
            with contextlib.suppress(RunStateConflict):  # queued again meanwhile
                await act_on_run(app, "retry", each.last_run, by)


def _type_of(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type_of(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    return f"list of {_type_of(schema['items'])}" if "items" in schema else str(schema.get("type", "any"))


# Login ----------------------------------------------------------------------------------------------------------------


def login_page(parts: ApiParts, renderer: Renderer) -> APIRouter:
    """`GET /login`, `POST /login` with the form fields `token` and `next`, and `POST /logout`.

    A failed login leads back to the form, with `failed=token` in the query.
    """
    routes = Router(route_class=UnreadRoute, include_in_schema=False)
    access, root = parts.access, renderer.root

    @routes.get("/login")
    async def login_form(request: Request) -> Response:
        if not access.has_tokens:
            return _redirect(f"{root}/")
        query = request.query_params
        return renderer.page(request, "login.html", None, failed="failed" in query, next=query.get("next", ""))

    @routes.post("/login")
    async def log_in(request: Request) -> Response:
        onward = f"{root}/"
        try:
            form = _fields(await (await with_body(request, FORM)).form())
            onward = local_address(form.get("next", ""), root)
            response = _redirect(onward)
            if access.has_tokens:
                access.log_in(request, response, form.get("token", "").strip())
        except AccessDenied:
            return _redirect(login_address(root, onward, failed="token"))
        return response

    @routes.post("/logout")
    async def log_out(request: Request) -> Response:
        response = _redirect(f"{root}/login" if access.has_tokens else f"{root}/")
        await access.log_out(request, response)
        return response

    return routes


def _fields(form: Mapping[str, object]) -> dict[str, str]:
    """Without uploaded files."""
    return {name: value for name, value in form.items() if isinstance(value, str)}


def _redirect(address: str) -> Response:
    # Without scheme and host, which are unknown behind a proxy.
    return Response(status_code=303, headers={"Location": address})
