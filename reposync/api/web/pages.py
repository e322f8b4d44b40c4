"""All pages, but those of repositories, runs, files, the search and the help: workers, the API, the login, and the
actions of buttons. Pages work without scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import URL, QueryParams

from reposync.api.auth import ANONYMOUS, Principal, actor_of, local_address, login_address
from reposync.api.errors import AccessDenied
from reposync.api.etags import conditional
from reposync.api.routing import FILE, ApiParts, BodyLimits, Router, UnreadRoute, with_body
from reposync.api.web.file_page import show_file, show_folder
from reposync.api.web.rendering import Page, query
from reposync.api.web.repository_pages import show_repositories, show_repository
from reposync.api.web.run_export import export_csv, export_json
from reposync.api.web.runs_page import show_run, show_runs
from reposync.api.web.search_page import show_search
from reposync.app.application import Application
from reposync.errors import (
    RepositoryNotFound,
    RepoSyncError,
    RunNotFound,
    RunStateConflict,
    StoreUnavailable,
    UsageError,
)
from reposync.operations import runs
from reposync.operations.core import NOTHING, Actor, Operation, RoleMissing, Rule, read_arguments
from reposync.operations.index import Locks, ReleaseOptions, locks, release, workers
from reposync.operations.paths import PREFIX
from reposync.operations.repositories import Change, change
from reposync.operations.syncs import RepairOptions, SyncOptions, repair, sync

# Everybody may send these, and a form has a few hundred bytes.
FORM = BodyLimits(max_bytes=16_384, seconds=3.0)


def _example(operation: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an address that works: those that are required, and what to search for."""
    return {
        each["name"]: each["schema"].get("examples", [each["name"].upper()])[0]
        for each in operation.get("parameters", ())
        if each["in"] == "query" and (each.get("required") or each["name"] == "q")
    }


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
            {
                **{"tags": ["other"], "summary": "", **operation, "path": path, "method": method.upper()},
                "query": query(_example(operation)),
            }
            for path, methods in (await request.app.described())["paths"].items()
            for method, operation in methods.items()
        ]
        # What people come for first, then what only monitors ask.
        operations.sort(key=lambda operation: not operation["path"].startswith(PREFIX))
        groups: dict[str, list[dict[str, Any]]] = {}
        for operation in operations:
            groups.setdefault(operation["tags"][0], []).append(operation)
        return page.show("api_docs.html", groups=groups, base=str(request.base_url).rstrip("/"))

    @routes.post("/search")
    async def pasted(request: Request, principal: Principal = reader) -> Response:
        """A text that is too long for an address. It changes nothing."""
        form = QueryParams(
            [(key, value) for key, value in (await request.form()).multi_items() if isinstance(value, str)]
        )
        return await show_search(Page(parts, request, principal, form))

    @routes.post("/actions/{action}", dependencies=[parts.access.page(Rule.MAINTAIN)])
    async def act(request: Request, action: str) -> Response:
        """Redirects, so that reloading does not repeat the action: to `back`, the page of the button, if given."""
        sent, actor = await request.form(), actor_of(request)
        form = _fields(sent)
        by = replace(actor, name="page") if actor.name == ANONYMOUS else actor
        if action in OF_SEVERAL:
            runs_named = [each for each in sent.getlist("run") if isinstance(each, str)][:MAX_CHOSEN]
            await _of_each(OF_SEVERAL[action], parts.application(), by, runs_named)
            onward = local_address(form.get("back", ""), root) if form.get("back") else f"{root}/runs"
            return _redirect(str(URL(onward).include_query_params(done=action)))
        if action not in ACTIONS:
            raise UsageError(f"There is no action {action[:50]!r}.")
        operation, arguments = ACTIONS[action]
        named = {key: form.get(field, "") for key, field in _FORM_FIELDS.items() if f"{{{key}}}" in operation.path}
        if operation is runs.retry_failed:
            arguments = read_arguments(runs.FailedRuns, {"code": form.get("code")})
        answer = await operation(parts.application(), by, arguments, **named)
        onward = f"{root}/runs/{answer.id}" if isinstance(answer, runs.Run) else f"{root}/"
        if form.get("back"):
            onward = local_address(form["back"], root)
        # With the notice that the page shows.
        return _redirect(str(URL(onward).include_query_params(done=action)))

    return routes


async def show_workers(page: Page) -> Response:
    """With the locks of their runs. The workers are for those who see everything."""
    found, problem = Locks(items=[]), None
    try:
        found = await locks(page.app, page.actor, NOTHING)
    except StoreUnavailable:
        raise
    except RepoSyncError as error:
        # Redis is not available, which this page reports.
        problem = str(error)
    everyone = await workers(page.app, page.actor, NOTHING) if page.actor.may(Rule.READ_EVERYTHING) else None
    return page.show("workers.html", workers=everyone, locks=found.items, problem=problem)


async def moved_to_workers(page: Page) -> Response:
    """The page was that of the locks up to 0.2."""
    return Response(status_code=308, headers={"Location": f"{page.root}/workers"})


PAGES: Mapping[str, Callable[[Page], Awaitable[Response]]] = {
    "/": show_repositories,
    "/repositories/{name:path}": show_repository,
    "/runs": show_runs,
    "/runs.csv": export_csv,
    "/runs.json": export_json,
    "/runs/{run_id}": show_run,
    "/search": show_search,
    f"/files/{FILE}": show_file,
    f"/files/{FILE}/": show_folder,
    "/workers": show_workers,
    "/locks": moved_to_workers,
}


ACTIONS: Mapping[str, tuple[Operation[Any, Any], Any]] = {
    "sync": (sync, SyncOptions()),
    "full": (sync, SyncOptions(full=True)),
    "verify": (repair, RepairOptions()),
    "pause": (change, Change({"is_active": False, "paused_reason": "Paused on the page."})),
    "resume": (change, Change({"is_active": True})),
    "cancel": (runs.cancel, runs.Cancellation()),
    "retry": (runs.retry, NOTHING),
    "retry-failed": (runs.retry_failed, runs.FailedRuns()),
    "approve": (runs.approve, NOTHING),
    "release": (release, ReleaseOptions()),
}
OF_SEVERAL: Mapping[str, tuple[Operation[Any, Any], Any]] = {
    "retry-runs": ACTIONS["retry"],
    "cancel-runs": ACTIONS["cancel"],
}
"""Actions on the runs that are chosen on the page of the history."""
MAX_CHOSEN = 200
_FORM_FIELDS = {"name": "name", "repository": "name", "run_id": "run"}
"""Fields of forms, by the placeholders of an operation."""


async def _of_each(
    action: tuple[Operation[Any, Any], Any], app: Application, actor: Actor, run_ids: Sequence[str]
) -> None:
    """Runs that are in a different state by now, or that the actor may not change, stay as they are."""
    operation, arguments = action
    for run_id in run_ids:
        with contextlib.suppress(RunStateConflict, RunNotFound, RoleMissing, RepositoryNotFound):
            await operation(app, actor, arguments, run_id=run_id)


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
