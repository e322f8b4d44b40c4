"""The HTTP application. Routes come by resource, each from a function that takes `ApiParts`."""

from __future__ import annotations

from fastapi import FastAPI

from reposync.api.access import guard
from reposync.api.bounds import Bounded
from reposync.api.envelope import ErrorAnswer
from reposync.api.errors import add_error_handlers
from reposync.api.head import HeadAsGet
from reposync.api.parts import ApiParts
from reposync.api.probes import probe_routes
from reposync.api.request_ids import RequestIds
from reposync.api.routes.events import event_routes
from reposync.api.routes.index import index_routes
from reposync.api.routes.locks import lock_routes
from reposync.api.routes.repositories import repository_routes
from reposync.api.routes.runs import run_routes
from reposync.api.routes.search import search_routes
from reposync.api.routes.session import session_routes
from reposync.api.routes.wait import wait_routes
from reposync.api.routes.webhooks import webhook_routes
from reposync.api.routing import Route
from reposync.api.web.actions import action_routes
from reposync.api.web.pages import page_routes
from reposync.api.web.reference import reference_page
from reposync.api.web.refusals import ErrorPages
from reposync.api.web.renderer import Renderer, StaticContent

__all__ = ["ApiParts", "create_app"]

ROUTES = (
    probe_routes,
    session_routes,
    index_routes,
    repository_routes,
    run_routes,
    wait_routes,
    event_routes,
    search_routes,
    lock_routes,
    webhook_routes,
)


def create_app(parts: ApiParts) -> FastAPI:
    """Holds no state but `parts`; opens and closes nothing."""
    app = FastAPI(
        title="reposync",
        summary="Keeps source code from GitLab searchable in Qdrant.",
        version=parts.version,
        # FastAPI's pages load scripts from somebody else's server.
        docs_url=None,
        redoc_url=None,
        # A redirect to the path without the slash would name a host that is wrong behind most proxies.
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        responses={500: {"model": ErrorAnswer, "description": "Not foreseen; the log has it under the incident's id"}},
    )
    app.router.route_class = Route
    app.add_middleware(HeadAsGet)
    # Inside what answers for errors: a body that is read when the server ends still gets its answer.
    app.add_middleware(Bounded)
    add_error_handlers(app, parts.secrets.redact)
    for routes in ROUTES:
        app.include_router(routes(parts))
    renderer = Renderer(parts)
    for pages in (page_routes, action_routes):
        app.include_router(pages(parts, renderer))
    app.include_router(reference_page(parts, renderer, app.openapi))
    app.mount("/static", StaticContent(), name="static")
    # Last: what is added last goes around everything before it.
    guard(app, parts.access)
    app.add_middleware(ErrorPages, renderer=renderer, access=parts.access)
    app.add_middleware(RequestIds)
    return app
