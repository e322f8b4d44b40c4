"""The parts of a daemon without its other sides, clients of them, and the description of the API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI

from reposync.api.app import ApiParts, create_app
from reposync.api.auth import Access
from reposync.api.server import serve_http
from reposync.app.application import Application
from reposync.errors import StoreUnavailable
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics


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
    """A client of a server of its own."""
    app = create_app(served) if isinstance(served, ApiParts) else served
    hooks, unlimited = {"response": [advises_requests]}, httpx.Limits(max_connections=None)
    async with (
        serve_http(app, "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address.url, timeout=60, event_hooks=hooks, limits=unlimited) as client,
    ):
        yield client


@cache
def description() -> dict[str, Any]:
    return create_app(parts_of()).openapi()


async def advises_requests(answer: httpx.Response) -> None:
    """A hook of httpx: no error advises a command, which clients do not have."""
    if answer.status_code >= 400 and answer.request.url.path.startswith("/api/"):
        message = json.loads(await answer.aread() or b"{}").get("error", {}).get("message", "")
        assert "`reposync " not in message and " --" not in message, message
