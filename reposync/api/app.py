"""The HTTP application. Routes are grouped by resource, each group made by a function that takes `ApiParts`."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Mount
from starlette.routing import Route as AnyRoute

from reposync.api.description import DescribedApplication
from reposync.api.errors import add_error_handlers
from reposync.api.hosts import Proxies
from reposync.api.middleware import Requests
from reposync.api.routes.events import event_routes
from reposync.api.routes.mcp import mcp_routes
from reposync.api.routes.operations import operation_routes
from reposync.api.routes.probes import probe_routes
from reposync.api.routes.webhooks import webhook_routes
from reposync.api.routing import ApiParts, Route
from reposync.api.web.help_page import help_page
from reposync.api.web.pages import login_page, page_routes
from reposync.api.web.rendering import StaticContent, error_pages
from reposync.errors import ConfigError


def people_routes(parts: ApiParts) -> APIRouter:
    """What is there for people who sign in, and for their agents; nothing if nobody can."""
    routes = APIRouter()
    if (people := parts.access.people) is not None:
        # The SDK of the protocol for agents takes half a second.
        from reposync.api.routes.authorization import authorization_routes
        from reposync.api.web.own_pages import own_pages
        from reposync.api.web.sign_in_pages import sign_in_pages

        for made in (sign_in_pages, own_pages, authorization_routes):
            routes.routes.extend(made(parts, people).routes)
    return routes


MIN_COMPRESSED_BYTES = 1_000
"""A smaller response fits into one packet either way."""

__all__ = ["ApiParts", "create_app"]

ROUTES = (
    probe_routes,
    operation_routes,
    event_routes,
    mcp_routes,
    webhook_routes,
    help_page,
    login_page,
    people_routes,
    page_routes,
)


def create_app(parts: ApiParts) -> FastAPI:
    """Has no state but `parts`, and opens nothing. Raises ConfigError for a root path that is one of its own paths."""
    root = parts.access.config.root_path
    app = DescribedApplication(
        title="reposync",
        summary="Keeps source code from GitLab searchable in Qdrant.",
        version=parts.version,
        routes=[*(route for routes in ROUTES for route in routes(parts).routes), Mount("/static", StaticContent())],
        # FastAPI's pages load scripts from a third-party server.
        docs_url=None,
        redoc_url=None,
        # It is made in the event loop.
        openapi_url=None,
        servers=[{"url": root}] if root else None,
        # A redirect to the path without the slash would contain the wrong host behind most proxies.
        redirect_slashes=False,
    )
    # Routes that are added later admit requests by their head, too.
    app.router.route_class = Route
    add_error_handlers(app, parts.secrets.redact)
    app.state.error_page = error_pages(parts)
    _check_root_path(app, root)
    # The last one is the outermost. Level 9 takes two to three times as long as 5, and saves at most a tenth more.
    app.add_middleware(GZipMiddleware, minimum_size=MIN_COMPRESSED_BYTES, compresslevel=5)
    app.add_middleware(Requests, config=parts.access.config, metrics=parts.metrics, has_tokens=parts.access.has_tokens)
    app.add_middleware(Proxies, config=parts.access.config)
    return app


def _check_root_path(app: FastAPI, root: str) -> None:
    """`/runs/ID` could be the page of a run, from a proxy that strips `/runs`, or a page `/ID`, from one that does
    not."""
    own = [route.path for route in app.routes if isinstance(route, AnyRoute | Mount)]
    if root and any(path == root or path.startswith(f"{root}/") for path in own):
        raise ConfigError(
            f"`http.root_path` must not be {root}: the server has pages of its own there.",
            remedy="Choose a path such as /reposync.",
        )
