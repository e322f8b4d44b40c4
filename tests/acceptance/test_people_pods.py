"""People, their agents and pipelines behind a load balancer, while its pods are killed: nobody is signed out, and
nobody gets a wrong answer."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.gitlab_server import GitLabServer, User
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pod_balancer import PodBalancer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.qdrant_targets import Target
from tests.fixtures.repositories import GitRepository
from tests.integration.api.people import Pod as Address
from tests.integration.api.people import shown_secret, sign_in
from tests.integration.api.serving import bearer
from tests.integration.api.test_agents_sign_in import Agent
from tests.integration.sync.conftest import qdrant  # noqa: F401

INDEXER = "glpat-indexer-of-everything"
PAYMENTS, BILLING, HIDDEN = "platform/payments", "platform/billing", "vault/keys"
NAMES = (PAYMENTS, BILLING, HIDDEN)
AT_ONCE = 8
CALLS_OF_AN_ACCESS_TOKEN = 20
REGISTRY = """
embedding: {{provider: none}}
gitlab:
  - {{name: main, url: "{gitlab}", token: "${{GITLAB_TOKEN}}"}}
http:
  access: gitlab
  gitlab: main
  public_url: "{public_url}"
  sign_in: {{client_id: "{client_id}", client_secret: "${{SIGN_IN_SECRET}}"}}
repositories:
"""
# Every connection of a client goes to the next pod.
ONE_REQUEST_EACH = httpx.Limits(max_keepalive_connections=0)
MCP = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}


Ask = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]


def word(name: str) -> str:
    return "word_of_" + name.replace("/", "_")


@dataclass
class Company:
    """Ada reads the first repository, Bob and a job the second, and the third is hidden from everybody."""

    gitlab: GitLabServer
    balancer: PodBalancer
    ada: User
    repeated: int = 0

    @property
    def address(self) -> Address:
        return Address(self.balancer.url, self.balancer.url)

    async def kills(self, pod: Pod) -> None:
        await asyncio.to_thread(pod.kill)

    async def replaces(self, pod: Pod) -> None:
        """It gets requests again as soon as it is ready for them."""
        self.balancer.pods.remove(pod)
        await asyncio.to_thread(pod.start)
        await asyncio.to_thread(is_ready, pod)
        self.balancer.pods.append(pod)

    async def asked(self, ask: Ask) -> httpx.Response:
        """The answer; a request whose connection broke is sent once more."""
        async with httpx.AsyncClient(
            base_url=self.balancer.url, timeout=PATIENCE_SECONDS, limits=ONE_REQUEST_EACH
        ) as client:
            try:
                return await ask(client)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                self.repeated += 1
                return await ask(client)

    def shown(self, answer: httpx.Response) -> set[str]:
        """The repositories that the answer shows anything of."""
        assert answer.status_code == 200, answer.text
        return {name for name in NAMES if name in answer.text or word(name) in answer.text}


def is_ready(pod: Pod) -> None:
    until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)


@pytest.fixture
def company(
    tmp_path: Path, person: Person, postgresql: PostgresqlDatabases, qdrant: Target
) -> Generator[Company, None, None]:
    with GitLabServer() as gitlab, PodBalancer() as balancer, ExitStack() as running:
        gitlab.add_token(INDEXER, scopes=("read_api", "read_repository"))
        for number, name in enumerate(NAMES, start=7):
            repository = GitRepository.create(tmp_path / "git" / f"{name}.git")
            repository.commit({"a.py": f"def {word(name)}():\n    return 'shared word'\n".encode()})
            gitlab.add_project(name, repository.path, id=number)
        company = Company(gitlab, balancer, gitlab.rights.add_user("ada"))
        bob = gitlab.rights.add_user("bob")
        for user, name in ((company.ada, PAYMENTS), (bob, BILLING)):
            project = gitlab.project_at(name)
            assert project is not None
            project.members[user.id] = 20
        gitlab.add_token("glpat-of-bob", user=bob)
        gitlab.oauth.signed_in = company.ada

        application = gitlab.oauth.add_application(f"{balancer.url}/sign-in/callback")
        entries = [f"  - {{name: {name}, gitlab: main, project: {name}, schedule: yearly}}\n" for name in NAMES]
        text = REGISTRY.format(gitlab=gitlab.url, public_url=balancer.url, client_id=application.id)
        person.configures(text + "".join(entries))
        environment = {
            "REPOSYNC_DATABASE_URL": postgresql.upgraded(),
            "REPOSYNC_QDRANT_URL": qdrant.url,
            "REPOSYNC_CONFIG": str(person.home / "repositories.yaml"),
            "GITLAB_TOKEN": INDEXER,
            "SIGN_IN_SECRET": application.secret,
        }
        pods = [running.enter_context(Pod(name, tmp_path / name, environment)) for name in ("a", "b", "c")]
        log = ExecutionLog(environment["REPOSYNC_DATABASE_URL"])
        for name in NAMES:
            until(lambda name=name: log.ended(name), details=pods[0].log_tail)  # type: ignore[misc]
        for pod in pods:
            is_ready(pod)
        balancer.pods = pods
        yield company


@dataclass
class Client:
    """How it searches and lists, and what it may be shown."""

    expected: set[str]
    search: Ask
    names: Ask


def over_http(expected: str, headers: Mapping[str, str]) -> Client:
    return Client(
        {expected},
        lambda client: client.get("/api/v1/search", params={"q": "shared word"}, headers=headers),
        lambda client: client.get("/api/v1/repositories", headers=headers),
    )


def on_pages(expected: str, cookie: str) -> Client:
    headers = {"Cookie": cookie, "Accept": "text/html"}
    return Client(
        {expected},
        lambda client: client.get("/search", params={"q": "shared word"}, headers=headers),
        lambda client: client.get("/access", headers=headers),
    )


@dataclass
class Tokens:
    """What an agent keeps. It gets new tokens after so many calls."""

    agent: Agent
    access: str
    refresh: str
    calls: int = 0
    refreshed: int = 0
    # A refresh whose answer is lost ends the agent's tokens, as one by a thief does: no pod is killed during one.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def current(self) -> str:
        async with self.lock:
            self.calls += 1
            if self.calls % CALLS_OF_AN_ACCESS_TOKEN == 0:
                answer = await self.agent.refresh(self.refresh)
                assert answer.status_code == 200, answer.text
                self.access, self.refresh = answer.json()["access_token"], answer.json()["refresh_token"]
                self.refreshed += 1
            return self.access

    def client(self, expected: str) -> Client:
        def calls(tool: str, arguments: Mapping[str, Any]) -> Ask:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}

            async def ask(client: httpx.AsyncClient) -> httpx.Response:
                return await client.post("/mcp", json=body, headers=MCP | bearer(await self.current()))

            return ask

        return Client({expected}, calls("search_code", {"q": "shared word"}), calls("list_repositories", {}))


def questions(clients: Mapping[str, Client]) -> Iterator[tuple[str, Client, Ask]]:
    """Searches and lists in turns, of all clients."""
    while True:
        yield from ((name, client, client.search) for name, client in clients.items())
        yield from ((name, client, client.names) for name, client in clients.items())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("calls", [100, pytest.param(1_000, marks=pytest.mark.full)])
async def test_pods_are_killed_during_a_sign_in_and_calls_and_nobody_is_signed_out_or_gets_a_wrong_answer(
    company: Company, calls: int
) -> None:
    balancer, gitlab = company.balancer, company.gitlab

    # The pod that began the sign-in is killed while the browser is at GitLab.
    async with company.address.browser(limits=ONE_REQUEST_EACH) as browser:
        await sign_in(browser, meanwhile=lambda: company.kills(balancer.reached[-1]))
        killed = balancer.reached[-2]
        assert not killed.is_running and balancer.reached[-1] is not killed
        await company.replaces(killed)
        personal = shown_secret(await browser.post("/access/tokens", data={"name": "laptop", "days": "30"}))

        # The pod that let the agent in is killed before the agent gets its tokens.
        agent = Agent((company.address, company.address))
        assert (await agent.register()).status_code == 201
        code = await agent.code(browser)
        killed = balancer.reached[-1]
        await company.kills(killed)
        granted = (await agent.token(code=code)).json()
        await company.replaces(killed)
        cookie = "; ".join(f"{each.name}={each.value}" for each in browser.cookies.jar)

    tokens = Tokens(agent, granted["access_token"], granted["refresh_token"])
    project = gitlab.project_at(BILLING)
    assert project is not None
    job = gitlab.jobs.sign(gitlab.jobs.claims(project, balancer.url))
    clients = {
        "session": on_pages(PAYMENTS, cookie),
        "personal token": over_http(PAYMENTS, bearer(personal)),
        "agent": tokens.client(PAYMENTS),
        "token of GitLab": over_http(BILLING, bearer("glpat-of-bob")),
        "job": over_http(BILLING, bearer(job)),
    }
    waiting = iter(enumerate(itertools.islice(questions(clients), calls)))
    answered, wrong, killed = Counter[str](), list[str](), balancer.pods[0]
    began = len(balancer.reached)

    async def works() -> None:
        for number, (name, client, ask) in waiting:
            if number == calls * 3 // 10:
                async with tokens.lock:
                    await company.kills(killed)
            answer = await company.asked(ask)
            if answer.status_code != 200 or company.shown(answer) != client.expected:
                wrong.append(f"{number}, {name}: {answer.status_code} {answer.text[:500]}")
            answered[name] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(works())

    assert wrong == []
    assert answered == dict.fromkeys(clients, calls // len(clients))
    assert company.repeated <= AT_ONCE
    reached = Counter(pod.name for pod in balancer.reached[began:])
    assert not killed.is_running and min(reached[pod.name] for pod in balancer.pods) >= calls // 15, reached
    assert tokens.refreshed == calls // len(clients) // CALLS_OF_AN_ACCESS_TOKEN
    # Every sign-in that began is still the same one.
    assert (len(gitlab.oauth.grants), gitlab.oauth.refreshes) == (1, 0)
