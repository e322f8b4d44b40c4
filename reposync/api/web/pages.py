"""All pages, but those of repositories, runs, files, the search and the help: locks, the API, the login, and the
actions of buttons. Pages work without scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import URL

from reposync.api.auth import ANONYMOUS, Principal, actor_of, local_address, login_address
from reposync.api.errors import AccessDenied
from reposync.api.etags import conditional
from reposync.api.routing import FILE, ApiParts, BodyLimits, Router, UnreadRoute, with_body
from reposync.api.web.code_pages import show_file, show_search
from reposync.api.web.rendering import Page
from reposync.api.web.repository_pages import show_repositories, show_repository
from reposync.api.web.runs_page import show_run, show_runs
from reposync.errors import RepoSyncError, StoreUnavailable, UsageError
from reposync.operations import runs
from reposync.operations.core import NOTHING, Operation, Rule
from reposync.operations.index import Locks, ReleaseOptions, locks, release
from reposync.operations.repositories import Change, change
from reposync.operations.syncs import RepairOptions, SyncOptions, repair, sync

# Everybody may send these, and a form has a few hundred bytes.
FORM = BodyLimits(max_bytes=16_384, seconds=3.0)


def page_routes(parts: ApiParts) -> APIRouter:
    routes = Router(include_in_schema=False)
    reader, root = parts.access.page(Rule.READ), parts.access.config.root_path

    def add(path: str, show: Callable[[Page], Awaitable[Response]]) -> None:
        @routes.get(path)
        async def page(request: Request, principal: Principal = reader) -> Response:
            return await show(Page(parts, request, principal))

    for path, show in PAGES.items():
        add(path, show)

    @routes.get("/openapi.json")
    async def openapi(request: Request) -> Response:
        return conditional(request, await request.app.described())

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        """The OpenAPI document as a page, without scripts and without anything from other servers."""
        page = Page(parts, request, await parts.access.principal_or_none(request))
        operations = [
            {"tags": ["other"], "summary": "", **operation, "path": path, "method": method.upper()}
            for path, methods in (await request.app.described())["paths"].items()
            for method, operation in methods.items()
        ]
        return page.show("api_docs.html", operations=operations)

    @routes.post("/actions/{action}", dependencies=[parts.access.page(Rule.MAINTAIN)])
    async def act(request: Request, action: str) -> Response:
        """Redirects, so that reloading does not repeat the action: to `back`, the page of the button, if given."""
        form, actor = _fields(await request.form()), actor_of(request)
        if action not in ACTIONS:
            raise UsageError(f"There is no action {action[:50]!r}.")
        operation, arguments = ACTIONS[action]
        named = {key: form.get(field, "") for key, field in _FORM_FIELDS.items() if f"{{{key}}}" in operation.path}
        by = replace(actor, name="page") if actor.name == ANONYMOUS else actor
        answer = await operation(parts.application(), by, arguments, **named)
        onward = f"{root}/runs/{answer.id}" if isinstance(answer, runs.Run) else f"{root}/"
        if form.get("back"):
            onward = local_address(form["back"], root)
        # With the notice that the page shows.
        return _redirect(str(URL(onward).include_query_params(done=action)))

    return routes


async def show_locks(page: Page) -> Response:
    found, problem = Locks(items=[]), None
    try:
        found = await locks(page.app, page.actor, NOTHING)
    except StoreUnavailable:
        raise
    except RepoSyncError as error:
        # Redis is not available, which this page reports.
        problem = str(error)
    return page.show("locks.html", locks=found.items, problem=problem)


PAGES: Mapping[str, Callable[[Page], Awaitable[Response]]] = {
    "/": show_repositories,
    "/repositories/{name:path}": show_repository,
    "/runs": show_runs,
    "/runs/{run_id}": show_run,
    "/search": show_search,
    f"/files/{FILE}": show_file,
    "/locks": show_locks,
}


ACTIONS: Mapping[str, tuple[Operation[Any, Any], Any]] = {
    "sync": (sync, SyncOptions()),
    "full": (sync, SyncOptions(full=True)),
    "verify": (repair, RepairOptions()),
    "pause": (change, Change({"is_active": False, "paused_reason": "Paused on the page."})),
    "resume": (change, Change({"is_active": True})),
    "cancel": (runs.cancel, runs.Cancellation()),
    "retry": (runs.retry, NOTHING),
    "retry-failed": (runs.retry_failed, NOTHING),
    "approve": (runs.approve, NOTHING),
    "release": (release, ReleaseOptions()),
}
_FORM_FIELDS = {"name": "name", "repository": "name", "run_id": "run"}
"""Fields of forms, by the placeholders of an operation."""


# Login ----------------------------------------------------------------------------------------------------------------


def login_page(parts: ApiParts) -> APIRouter:
    """`GET /login`, `POST /login` with the form fields `token` and `next`, and `POST /logout`.

    A failed login leads back to the form, with `failed=token` in the query.
    """
    routes = Router(route_class=UnreadRoute, include_in_schema=False)
    access, root = parts.access, parts.access.config.root_path

    @routes.get("/login")
    async def login_form(request: Request) -> Response:
        if not access.has_tokens:
            return _redirect(f"{root}/")
        query = request.query_params
        ways = {"sign_in": access.people is not None, "has_service_tokens": access.has_service_tokens}
        page = Page(parts, request, None)
        return page.show("login.html", failed="failed" in query, next=query.get("next", ""), **ways)

    @routes.post("/login")
    async def log_in(request: Request) -> Response:
        onward = f"{root}/"
        try:
            form = _fields(await (await with_body(request, FORM)).form())
            onward = local_address(form.get("next", ""), root)
            response = _redirect(onward)
            if access.has_service_tokens:
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
