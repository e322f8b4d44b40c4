"""Whatever error an answer has, the API's description of that route names it: looked at in every test that asks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Match

from reposync.api.app import ROUTES, ApiParts, create_app
from reposync.api.auth import Access
from reposync.api.server import serve_http
from reposync.app.application import Application
from reposync.errors import StoreUnavailable
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics

# What no route answers: there is none, or it is asked otherwise than it can be.
_OF_NO_ROUTE = {"NOT_FOUND", "METHOD_NOT_ALLOWED"}


async def _nothing() -> None:
    return None


def parts_of(app: Application | None = None, access: Access | None = None) -> ApiParts:
    """Of a daemon; without `app`, of one that has no database."""

    def application() -> Application:
        if app is None:
            raise StoreUnavailable("There is no database in these tests.")
        return app

    return ApiParts(Health(), Metrics(version="1.2.3"), _nothing, "1.2.3", application, access or Access([]))


@contextlib.asynccontextmanager
async def client_of(served: ApiParts | FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of its own; every error that it gets has to be documented."""
    app = create_app(served) if isinstance(served, ApiParts) else served
    hooks, unlimited = {"response": [is_documented]}, httpx.Limits(max_connections=None)
    async with (
        serve_http(app, "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address.url, timeout=60, event_hooks=hooks, limits=unlimited) as client,
    ):
        yield client


@cache
def api_routes() -> tuple[APIRoute, ...]:
    """All of them below `/api/v1`, in the order in which they are asked."""
    found = [route for make in ROUTES for route in make(parts_of()).routes]
    return tuple(each for each in found if isinstance(each, APIRoute) and each.path_format.startswith("/api/v1"))


# Made when this is imported: some tests serve a part of the routes.
_DESCRIPTION: dict[str, Any] = create_app(parts_of()).openapi()


def description() -> dict[str, Any]:
    return _DESCRIPTION


def route_of(request: httpx.Request) -> APIRoute | None:
    raw = request.url.raw_path.partition(b"?")[0]
    scope = {"type": "http", "method": request.method, "path": request.url.path, "raw_path": raw, "root_path": ""}
    return next((each for each in api_routes() if each.matches(scope)[0] is Match.FULL), None)


async def is_documented(answer: httpx.Response) -> None:
    """A hook of httpx for the answers that a client gets."""
    route = route_of(answer.request) if answer.status_code >= 400 else None
    if route is None or not route.include_in_schema:
        return
    await answer.aread()
    told, message = (answer.json()["error"][key] for key in ("code", "message"))
    assert "`reposync " not in message and " --" not in message, f"{message} advises a command, which nobody has here"
    if told in _OF_NO_ROUTE:
        return
    where = f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {told}"
    responses = description()["paths"][route.path_format][answer.request.method.lower()]["responses"]
    described = responses.get(str(answer.status_code))
    assert described is not None, f"{where} is no answer that the description has"
    content = described["content"]["application/json"]
    examples = [each["value"] for each in content.get("examples", {}).values()] or [content.get("example")]
    assert told in {each["error"]["code"] for each in examples}, f"{where} is not among the examples"
