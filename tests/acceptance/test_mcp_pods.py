"""Agents and several daemons: any pod answers any request, also while one of them is killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.acceptance.conftest import Person
from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import Pod, until
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository

CALLS, AT_ONCE, KILLED_AFTER = 1_000, 8, 300
CLIENTS = 200
TRIES = 4
CLOSED = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
"""Of a connection that was open."""
QUESTIONS: list[tuple[str, dict[str, object]]] = [
    ("search_code", {"q": "remove expired sessions"}),
    ("list_repositories", {}),
    ("read_code", {"repository": "app", "path": "sessions.py"}),
]
TOKEN = "a-token-of-32-characters-0123456"


class RoundRobin:
    """Each request goes to the next pod, whatever came before it; a pod that cannot be reached is left out from then
    on, as balancers do. `reached`: how many each pod has answered."""

    def __init__(self, urls: list[str]) -> None:
        self._turns = itertools.count()
        self.pods = list(urls)
        self.reached = dict.fromkeys(urls, 0)

    def next(self) -> str:
        return self.pods[next(self._turns) % len(self.pods)]


class Balanced(httpx2.AsyncHTTPTransport):
    def __init__(self, balancer: RoundRobin) -> None:
        super().__init__()
        self._balancer = balancer

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pod = self._balancer.next()
        request.url = request.url.copy_with(host=httpx2.URL(pod).host, port=httpx2.URL(pod).port)
        try:
            answer = await super().handle_async_request(request)
        except httpx2.TransportError:
            self._balancer.pods = [each for each in self._balancer.pods if each != pod]
            raise
        self._balancer.reached[pod] += 1
        return answer


@contextlib.asynccontextmanager
async def agent(transport: httpx2.AsyncBaseTransport, url: str, era: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE_SECONDS, transport=transport) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=era) as client,
    ):
        yield client


@pytest.fixture
def pods(
    tmp_path: Path, person: Person, postgresql: PostgresqlDatabases, repository: GitRepository
) -> Generator[list[Pod], None, None]:
    repository.commit({"sessions.py": b"def remove_expired_sessions(): pass\n", "mail.py": b"def send(): pass\n"})
    with QdrantServer(tmp_path / "qdrant") as qdrant, contextlib.ExitStack() as running:
        person.environment |= {
            "REPOSYNC_DATABASE_URL": postgresql.upgraded(),
            "REPOSYNC_QDRANT_URL": qdrant.url,
            "REPOSYNC_API_TOKEN": f"read:{TOKEN}",
            "REPOSYNC_CONFIG": str(person.home / "repositories.yaml"),
        }
        person.applies(f"embedding: {{provider: none}}\nrepositories: [{{name: app, path: '{repository.path}'}}]\n")
        person.types("sync")
        found = [running.enter_context(Pod(each, tmp_path / each, person.environment)) for each in ("a", "b", "c")]
        for pod in found:
            until(lambda pod=pod: pod.gets("/readyz").status_code == 200, details=pod.log_tail)  # type: ignore[misc]
        yield found


class Refused(Exception):
    """The result of a tool is an error."""


async def call(client: Client, name: str, arguments: dict[str, object]) -> None:
    result = await client.call_tool(name, arguments)
    if result.is_error:
        raise Refused(str(result.content))


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("era", ["2026-07-28", "legacy"])
async def test_a_thousand_calls_are_answered_by_three_pods_of_which_one_is_killed(pods: list[Pod], era: str) -> None:
    url = pods[0].url or ""
    balancer = RoundRobin([pod.url or "" for pod in pods])
    waiting, tries, problems = iter(range(CALLS)), Counter[int](), []

    async def works() -> None:
        """As agents do: the SDK's client ends with its connection, and is opened again."""
        left = next(waiting, None)
        while left is not None:
            try:
                async with agent(Balanced(balancer), url, era) as client:
                    while left is not None:
                        if left == KILLED_AFTER and not tries[left]:
                            await asyncio.to_thread(pods[0].kill)
                        await call(client, *QUESTIONS[left % len(QUESTIONS)])
                        left = next(waiting, None)
            except* (Refused, httpx2.HTTPError, MCPError) as errors:
                tries[left or 0] += 1
                if tries[left or 0] > TRIES:
                    problems.append((left, repr(errors.exceptions)))
                    left = next(waiting, None)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(works())

    assert problems == []
    assert min(balancer.reached.values()) > KILLED_AFTER / 4
    assert sum(balancer.reached.values()) >= CALLS


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_two_hundred_agents_at_once_are_all_answered(pods: list[Pod]) -> None:
    async def asks(number: int) -> str | None:
        problem = ""
        for attempt in range(TRIES):
            try:
                async with agent(
                    httpx2.AsyncHTTPTransport(), pods[number % len(pods)].url or "", "2026-07-28"
                ) as client:
                    await call(client, "search_code", {"q": f"sessions {number}"})
                return None
            except* (Refused, *CLOSED) as errors:
                # A pod that is asked too much says so at once, and one that gets no request on a connection for ten
                # seconds, because this process has no time for all its agents, closes it: try again.
                problem = repr(errors.exceptions)
            await asyncio.sleep(2**attempt)
        return problem

    problems = await asyncio.gather(*map(asks, range(CLIENTS)))

    assert [each for each in problems if each is not None] == []
    assert [pod.log_tail() for pod in pods if not pod.is_running or any(_is_error(line) for line in pod.lines)] == []


def _is_error(line: dict[str, object]) -> bool:
    return line.get("level") in ("error", "critical")
