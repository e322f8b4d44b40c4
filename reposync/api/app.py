"""The HTTP application. Routes come by resource, each from a function that takes `ApiParts`."""

from __future__ import annotations

from fastapi import FastAPI

from reposync.api.envelope import ErrorAnswer
from reposync.api.errors import add_error_handlers
from reposync.api.parts import ApiParts
from reposync.api.probes import probe_routes

__all__ = ["ApiParts", "create_app"]

ROUTES = (probe_routes,)


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
    add_error_handlers(app)
    for routes in ROUTES:
        app.include_router(routes(parts))
    return app
