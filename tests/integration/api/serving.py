"""The HTTP side over a whole world: a database, an index, a repository. And server-sent events as clients read them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import httpx

from reposync.api.auth import Access
from reposync.app.application import Application
from reposync.store.repository import Registration
from reposync.store.run import Run
from reposync.store.status import RunTrigger
from tests.fixtures.world import World
from tests.integration.api.documented import client_of, parts_of


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


async def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What `condition` (awaited, where it is to be) gives as soon as that is something."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.02)


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and error code."""
    return answer.status_code, answer.json()["error"]["code"]


async def queued(world: World, name: str = "project") -> Run:
    await world.app.repositories.register(
        Registration(name=name, location="/somewhere", source="path", origin="command", collection="code")
    )
    run, _ = await world.app.runs.enqueue(name, RunTrigger.HTTP)
    return run


async def running(world: World, name: str = "project") -> Run:
    """A run that another pod has begun."""
    run = await queued(world, name)
    claimed = await world.app.runs.claim("pod-2:1:a", 60.0, run_id=run.id)
    assert claimed is not None
    return claimed
