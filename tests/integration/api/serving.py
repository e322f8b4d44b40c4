"""Servers of the HTTP side and clients of them: over a whole world, without a database, and with tokens and four routes
of their own. Server-sent events as clients read them, and the description of the API."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI, Request

from reposync.api.app import ApiParts, create_app
from reposync.api.auth import Access, Principal
from reposync.api.server import serve_http
from reposync.app.application import Application
from reposync.errors import StoreUnavailable
from reposync.operations.core import Rule
from reposync.store.repository import Registration
from reposync.store.run import Ask, Run
from reposync.store.status import RunTrigger
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.world import World

READER, OPERATOR = "read-secret-of-tests-1", "operate-secret-of-tests-2"
TOKENS = (f"read:{READER}", OPERATOR)


async def _nothing() -> None:
    return None


def parts_of(app: Application | None = None, access: Access | None = None) -> ApiParts:
    """Of a daemon; without `app`, of one that has no database."""

    def application() -> Application:
        if app is None:
            raise StoreUnavailable("There is no database in these tests.")
        return app

    metrics = Metrics(version="1.2.3")
    if app is not None:
        app.observer.metrics = metrics
    return ApiParts(Health(), metrics, _nothing, "1.2.3", application, access or Access([]))


@contextlib.asynccontextmanager
async def client_of(served: ApiParts | FastAPI, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of its own."""
    app = create_app(served) if isinstance(served, ApiParts) else served
    hooks, unlimited = {"response": [advises_requests]}, httpx.Limits(max_connections=None)
    async with (
        serve_http(app, "127.0.0.1", 0) as address,
        httpx.AsyncClient(
            base_url=address.url, timeout=PATIENCE_SECONDS, event_hooks=hooks, limits=unlimited, **options
        ) as client,
    ):
        yield client


async def advises_requests(answer: httpx.Response) -> None:
    """A hook of httpx: no error advises a command, which clients do not have."""
    if answer.status_code >= 400 and answer.request.url.path.startswith("/api/"):
        message = json.loads(await answer.aread() or b"{}").get("error", {}).get("message", "")
        assert "`reposync " not in message and " --" not in message, message


@cache
def description() -> dict[str, Any]:
    return create_app(parts_of()).openapi()


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and error code."""
    return answer.status_code, answer.json()["error"]["code"]


async def status_of(url: httpx.URL, head: str) -> int:
    """Of the answer to a request whose body does not come."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(head.encode())
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.readline()
    writer.close()
    return int(answer.split()[1])


# Tokens ---------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def server(access: Access, *, health: Health | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """With routes for what may be read and what may be done, by programs and by pages."""
    shows = access.page()
    app = create_app(replace(parts_of(access=access), health=health or Health()))

    @app.get("/test/read", dependencies=[access.requires(Rule.READ)])
    async def read() -> str:
        return "read"

    @app.post("/test/operate", dependencies=[access.requires(Rule.OPERATE)])
    async def operate(request: Request) -> dict[str, list[str]]:
        return {"fields": sorted((await request.form()).keys())}

    @app.get("/test/page", name="test_page")
    async def page(request: Request, principal: Principal = shows) -> dict[str, Any]:
        address = str(request.url_for("test_page"))
        who = [principal.role.name, principal.name, request.client.host if request.client else None]
        return {"address": address, "who": who}

    async with client_of(app, **options) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def log_in(client: httpx.AsyncClient, token: str, *, root: str = "", **fields: str) -> httpx.Response:
    return await client.post(f"{root}/login", data={"token": token, **fields})


# A world --------------------------------------------------------------------------------------------------------------


def serving(application: Application, *tokens: str) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    return client_of(parts_of(application, Access(list(tokens))))


@dataclass
class Event:
    """What stands between two empty lines."""

    comments: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str | None:
        return self.fields.get("event")

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fields["data"])
        return found


@contextlib.asynccontextmanager
async def following(client: httpx.AsyncClient, run_id: str, **headers: str) -> AsyncIterator[AsyncIterator[Event]]:
    async with client.stream("GET", f"/api/v1/runs/{run_id}/events", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers, "an event would wait in the compressor for others"
        yield _events(answer)


async def _events(answer: httpx.Response) -> AsyncIterator[Event]:
    event = Event()
    async for line in answer.aiter_lines():
        if not line:
            yield event
            event = Event()
        elif line.startswith(":"):
            event.comments.append(line[1:].strip())
        else:
            name, _, value = line.partition(": ")
            event.fields[name] = value


async def eventually(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """What `condition` (awaited, where it is to be) gives as soon as that is something."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.02)


async def queued(world: World, name: str = "project") -> Run:
    await world.app.repositories.register(
        Registration(name=name, location="/somewhere", source="path", origin="command", collection="code")
    )
    run, _ = await world.app.runs.enqueue(name, Ask(RunTrigger.HTTP))
    return run


async def running(world: World, name: str = "project") -> Run:
    """A run that another pod has begun."""
    run = await queued(world, name)
    claimed = await world.app.runs.claim("pod-2:1:a", 60.0, run_id=run.id)
    assert claimed is not None
    return claimed
