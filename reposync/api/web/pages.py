"""The pages: rendered here, complete without a script."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response

from reposync.api.access import Role, Visitor
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.api.web.finding import search_page
from reposync.api.web.history import run_pages
from reposync.api.web.registered import registered_page
from reposync.api.web.renderer import Renderer
from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.runs.lock_overview import lock_overviews


def page_routes(parts: ApiParts, renderer: Renderer) -> APIRouter:
    routes = Router(include_in_schema=False)
    reader = parts.access.page(Role.READ)
    for pages in (registered_page, run_pages, search_page):
        routes.include_router(pages(parts, renderer))

    @routes.get("/locks")
    async def locks(request: Request, visitor: Visitor = reader) -> Response:
        app = parts.application()
        try:
            found, problem = await lock_overviews(app.locks, app.repositories, app.runs), None
        except StoreUnavailable:
            raise
        except RepoSyncError as error:
            # Redis is away: that is what this page has to tell.
            found, problem = [], error.for_pages
        return renderer.page(request, "locks.html", visitor, locks=found, problem=problem)

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


def _login_problem(said: Mapping[str, str]) -> str | None:
    match said.get("failed"):
        case "token":
            return "This token is not known."
        case "csrf":
            return "The form was too old. Please try again."
        case "attempts":
            wait = said.get("wait", "")
            wait = f"{wait} s" if wait.isdecimal() and len(wait) < 5 else "a minute"
            return f"Too many wrong tokens came from your address. Please wait {wait}."
        case _:
            return None
