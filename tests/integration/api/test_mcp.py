"""The tools for agents at `/mcp`, asked by the SDK's own client in both eras of the protocol."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import jsonschema
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.fixtures.world import World
from tests.integration.api.serving import serving

SESSIONS = b"def remove_expired_sessions(sessions, now):\n    return [s for s in sessions if s.expires > now]\n"
ERAS = pytest.mark.parametrize("era", ["2026-07-28", "legacy", "auto"])


@contextlib.asynccontextmanager
async def agent(url: str, era: str = "auto", **headers: str) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=era) as client,
    ):
        yield client


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    world.repository.commit({"src/sessions.py": SESSIONS, "docs/notes.md": b"# Notes\n\nSessions expire.\n"})
    await world.completed()
    async with serving(world.app) as client:
        yield str(client.base_url).rstrip("/")


async def called(client: Client, name: str, **arguments: Any) -> Any:
    """What the tool answers, checked against its own schema."""
    (tool,) = [each for each in (await client.list_tools()).tools if each.name == name]
    jsonschema.validate(arguments, tool.input_schema)
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    jsonschema.validate(result.structured_content, tool.output_schema)
    return result


@ERAS
async def test_a_question_is_answered_with_lines_of_files(url: str, era: str) -> None:
    async with agent(url, era) as client:
        result = await called(client, "search_code", query="where are expired sessions removed")

    first = result.structured_content["files"][0]
    assert (first["repository"], first["path"]) == ("project", "src/sessions.py")
    assert first["excerpts"][0]["text"].splitlines() == SESSIONS.decode().splitlines()
    assert "src/sessions.py:1-2 in function remove_expired_sessions, 1-2\n def remove" in result.content[0].text
