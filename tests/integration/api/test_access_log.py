"""What an operator sees of requests: one line each in the log, and metrics that no client can make grow."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from reposync.api.auth import Access
from reposync.config.sections import HttpConfig
from tests.fixtures.world import World
from tests.integration.api.serving import OPERATOR, READER, TOKENS, bearer, client_of, following, parts_of, running
from tests.integration.api.test_mcp import agent


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(parts_of(world.app, Access(TOKENS)), headers=bearer(READER)) as client:
        yield client


async def sampled(client: httpx.AsyncClient, name: str) -> dict[tuple[str, ...], float]:
    """By the values of the labels, in the order of their names."""
    page = (await client.get("/metrics")).text
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"reposync_{name}"
    }


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == "reposync.access"]


async def test_requests_are_counted_by_route_and_unknown_paths_as_one(client: httpx.AsyncClient) -> None:
    for path in ("/api/v1/repositories/a/b", "/api/v1/repositories/c", "/api/v1/nothing", "/nothing/else", "/runs"):
        await client.get(path)
    await client.head("/api/v1/repositories/d")
    await client.request("BREW", "/nothing")
    await client.get("/static/style.css")
    await client.get("/api/v1/repositories", headers={"host": "elsewhere.example.com", "authorization": "Bearer no"})

    counted = await sampled(client, "http_requests_total")
    assert counted[("GET", "/api/v1/repositories/{name:path}", "404")] == 2
    assert counted[("HEAD", "/api/v1/repositories/{name:path}", "404")] == 1
    assert counted[("GET", "other", "404")] == 2
    assert counted[("GET", "/runs", "200")] == 1
    assert counted[("GET", "/api/v1/repositories", "401")] == 1
    assert {route for _, route, _ in counted} <= {
        *("/api/v1/repositories/{name:path}", "/api/v1/repositories", "/runs", "/static", "/metrics", "other")
    }
    assert {method for method, _, _ in counted} <= {"GET", "HEAD", "other"}
    assert (await sampled(client, "http_request_duration_seconds_count"))[("GET", "refused", "other")] == 2
    errors = await sampled(client, "http_errors_total")
    assert (errors[("REPOSITORY_NOT_FOUND",)], errors[("UNAUTHENTICATED",)]) == (3, 1)


async def test_a_search_is_counted_whatever_asks_for_it(client: httpx.AsyncClient, world: World) -> None:
    await client.get("/api/v1/search", params={"q": "anything"})
    await client.get("/search", params={"q": "anything"})
    await client.get("/api/v1/grep", params={"q": "("})
    async with agent(str(client.base_url).rstrip("/"), "2026-07-28", **bearer(READER)) as tools:
        result = await tools.call_tool("search_code", {"q": "anything"})
        await tools.call_tool("no_such_tool", {})

    searches = await sampled(client, "search_duration_seconds_count")
    assert sum(count for (kind, _), count in searches.items() if kind == "search") == 3
    assert searches[("grep", "refused")] == 1
    calls = await sampled(client, "mcp_call_duration_seconds_count")
    assert calls == {("failed" if result.is_error else "ok", "search_code"): 1, ("failed", "other"): 1}


async def test_a_line_says_who_got_what_and_never_what_was_searched(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "reposync.access"):
        await client.get("/api/v1/search", params={"q": "confidential"}, headers={"X-Request-Id": "mine-1"})
        await client.get("/healthz")
        await client.get("/search", params={"q": "confidential"}, headers=bearer(OPERATOR))
        await client.get("/api/v1/runs", headers=bearer("wrong"))

    first, second, third = lines(caplog)
    assert (first["request"], first["actor"], first["route"]) == ("mine-1", "token 1", "/api/v1/search")
    assert first["milliseconds"] > 0
    assert (second["actor"], second["route"]) == ("token 2", "/search")
    assert (third["actor"], third["status"]) == ("anonymous", 401)
    assert "confidential" not in str([first, second, third])


async def test_a_search_is_logged_if_the_registry_wants_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    access = Access([], HttpConfig(log_queries=True))
    with caplog.at_level(logging.INFO, "reposync.access"):
        async with client_of(parts_of(world.app, access)) as client:
            await client.get("/api/v1/search", params={"q": "confidential"})

    (line,) = lines(caplog)
    assert (line["path"], line["query"]) == ("/api/v1/search", "q=confidential")


async def test_a_stream_is_counted_when_it_begins(client: httpx.AsyncClient, world: World) -> None:
    run = await running(world)
    async with following(client, run.id, **bearer(READER)) as events:
        await anext(events)
        counted = await sampled(client, "http_request_duration_seconds_count")

    assert counted[("GET", "ok", "/api/v1/runs/{run_id}/events")] == 1
