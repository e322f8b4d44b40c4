"""A server with tokens and four routes: what may be read and what may be done, by programs and by pages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
from fastapi import Request

from reposync.api.app import create_app
from reposync.api.auth import Access, Principal, Role
from reposync.api.server import serve_http
from reposync.telemetry.health import Health
from tests.integration.api.conftest import Daemon
from tests.integration.api.documented import advises_requests

READER, OPERATOR = "read-secret-of-tests-1", "operate-secret-of-tests-2"
TOKENS = (f"read:{READER}", OPERATOR)


@contextlib.asynccontextmanager
async def server(access: Access, *, health: Health | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    shows = access.page()
    daemon = Daemon() if health is None else Daemon(health=health)
    app = create_app(replace(daemon.parts, access=access))

    @app.get("/test/read", dependencies=[access.requires(Role.READ)])
    async def read() -> str:
        return "read"

    @app.post("/test/operate", dependencies=[access.requires(Role.OPERATE)])
    async def operate(request: Request) -> dict[str, list[str]]:
        return {"fields": sorted((await request.form()).keys())}

    @app.get("/test/page", name="test_page")
    async def page(request: Request, principal: Principal = shows) -> dict[str, Any]:
        address = str(request.url_for("test_page"))
        who = [principal.role.name, principal.by, request.client.host if request.client else None]
        return {"address": address, "who": who}

    hooks = {"response": [advises_requests]}
    async with (
        serve_http(app, "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=address.url, timeout=20, event_hooks=hooks, **options) as client,
    ):
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def code_of(answer: httpx.Response) -> str:
    code: str = answer.json()["error"]["code"]
    return code


async def log_in(client: httpx.AsyncClient, token: str, *, root: str = "", **fields: str) -> httpx.Response:
    return await client.post(f"{root}/login", data={"token": token, **fields})
