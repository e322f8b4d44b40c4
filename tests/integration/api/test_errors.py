from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from reposync.api.app import create_app
from reposync.api.server import HttpLimits, serve_http
from reposync.errors import RepositoryNotFound, StoreUnavailable
from tests.integration.api.conftest import Daemon
from tests.integration.api.serving import client_of


class Order(BaseModel):
    password: int
    count: int


@pytest.fixture
def app(daemon: Daemon) -> FastAPI:
    """The application, with routes that fail in every way."""
    app = create_app(daemon.parts)

    @app.get("/unforeseen")
    async def unforeseen() -> None:
        raise ZeroDivisionError("hunter22")

    @app.get("/missing")
    async def missing() -> None:
        raise RepositoryNotFound("No repository is called 'x'.", remedy="`reposync repos list` shows them.")

    @app.get("/unavailable")
    async def unavailable() -> None:
        raise StoreUnavailable("The database does not answer.")

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "I hold no coffee.", {"X-Pot": "tea"})

    @app.post("/orders")
    async def orders(order: Order, limit: int = 1) -> int:
        return limit

    @app.post("/echo")
    async def echo(order: dict[str, str]) -> None:
        raise RepositoryNotFound(f"No repository is called {order['name']}.")

    @app.get("/half")
    async def half() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"begun"
            raise ZeroDivisionError

        return StreamingResponse(pieces())

    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "message"),
    [
        ("GET", "/nothing/here", 404, "NOT_FOUND", "There is nothing at /nothing/here."),
        ("GET", "/healthz/", 404, "NOT_FOUND", "There is nothing at /healthz/. No path ends with a slash."),
        ("GET", "/a%0A%00%ff", 404, "NOT_FOUND", "There is nothing at /a\n\0\ufffd."),
        ("GET", "/" + "a" * 5000, 404, "NOT_FOUND", "There is nothing at /" + "a" * 199 + "."),
        ("BREW", "/healthz", 405, "METHOD_NOT_ALLOWED", "BREW is not possible at /healthz, which takes GET, HEAD."),
        ("GET", "/teapot", 418, "IM_A_TEAPOT", "I hold no coffee."),
        (
            "GET",
            "/missing",
            404,
            "REPOSITORY_NOT_FOUND",
            "No repository is called 'x'. `reposync repos list` shows them.",
        ),
        ("GET", "/unavailable", 503, "STORE_UNAVAILABLE", "The database does not answer."),
    ],
)
async def test_every_error_has_the_same_shape(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str, message: str
) -> None:
    answer = await client.request(method, path)

    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    address = f"/help/errors#{code.lower()}"
    assert answer.json() == {"error": {"code": code, "message": message, "help": address, "details": {}, "next": []}}
    assert answer.headers.get("x-pot") == ("tea" if status == 418 else None)
    assert answer.headers.get("retry-after") == ("5" if status == 503 else None)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/healthz", "GET, HEAD"),
        ("POST", "/api/v1/repositories/platform/api", "GET, HEAD, PATCH, PUT, DELETE"),
        ("GET", "/api/v1/repositories/platform/api/sync", "POST"),
        ("HEAD", "/api/v1/runs/a4b8a167/cancel", "POST"),
        ("POST", "/static/code.css", "GET, HEAD"),
    ],
)
async def test_405_lists_every_method_of_the_path(
    client: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    answer = await client.request(method, path)

    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        assert answer.json()["error"]["code"] == "METHOD_NOT_ALLOWED"
        assert answer.json()["error"]["message"].endswith(f"{path}, which takes {allowed}.")


async def test_an_invalid_request_gets_the_places_without_its_values(client: httpx.AsyncClient) -> None:
    answer = await client.post("/orders?limit=many", json={"password": "hunter22"})

    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "REQUEST_INVALID"
    assert error["message"].startswith("The request is not valid: query.limit: ")
    assert [problem["where"] for problem in error["details"]["problems"]] == [
        ["query", "limit"],
        ["body", "password"],
        ["body", "count"],
    ]
    assert "hunter22" not in answer.text


async def test_a_message_that_quotes_half_a_surrogate_is_an_answer(client: httpx.AsyncClient) -> None:
    answer = await client.post("/echo", content=rb'{"name": "\ud800"}', headers={"Content-Type": "application/json"})

    assert answer.status_code == 404
    assert rb"\ud800" in answer.content


async def test_what_was_not_foreseen_is_answered_with_an_id_that_the_log_has_once(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await client.get("/unforeseen")

    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error["code"] == "INTERNAL_ERROR"
    incident = error["details"]["incident"]
    assert incident in error["message"]
    assert answer.headers["x-request-id"]
    assert "hunter22" not in answer.text
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.__dict__["incident"] for record in logged] == [incident]
    assert logged[0].exc_info is not None
    assert logged[0].exc_info[0] is ZeroDivisionError
    # The next one on the same connection is answered.
    assert (await client.get("/healthz")).status_code == 200


async def test_an_answer_that_breaks_off_is_not_taken_for_whole(client: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get("/half")

    assert (await client.get("/healthz")).status_code == 200


async def test_an_unanswered_request_gets_shutting_down(daemon: Daemon) -> None:
    app = create_app(daemon.parts)
    waiting = asyncio.Event()

    @app.get("/wait")
    async def wait() -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with httpx.AsyncClient() as client:
        async with serve_http(app, "127.0.0.1", 0, limits=HttpLimits(grace_seconds=0.05)) as address:
            request = asyncio.create_task(client.get(f"{address.url}/wait"))
            await waiting.wait()
        answer = await request

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "SHUTTING_DOWN"
