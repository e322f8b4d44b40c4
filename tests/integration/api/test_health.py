"""What /readyz says about the things that a daemon depends on, and about those that answer slowly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from reposync.app.application import Application
from reposync.app.health_checks import HealthChecks
from reposync.telemetry.redaction import Secrets
from tests.fixtures.applied import apply_again
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.api.conftest import Daemon
from tests.integration.api.rest import opened

TOKEN = "glpat-Xk3vTq9sLmN2pRw7"
EVERY_SECONDS = 0.05
# Long enough that a healthy server answers within it on a busy machine.
IMPATIENT_SECONDS = 2.0


@dataclass
class Watched:
    """A daemon's checks at work, and what a probe is told."""

    app: Application
    client: httpx.AsyncClient
    seen: dict[str, Any] = field(default_factory=dict)

    async def component(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What is said of it, as soon as that is so."""
        found: dict[str, Any] = await self._until(lambda: self.seen["components"].get(name), holds)
        return found

    async def is_(self, name: str, status: str) -> dict[str, Any]:
        return await self.component(name, lambda said: said["status"] == status)

    async def gone(self, name: str) -> None:
        await self._until(lambda: {"is": name in self.seen["components"]}, lambda said: not said["is"])

    async def overall(self) -> tuple[int, str]:
        """As soon as every part was checked once."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await self.client.get("/readyz")).json()["status"] == "starting":
                await asyncio.sleep(0.01)
        return answer.status_code, answer.json()["status"]

    async def _until(self, look: Callable[[], Any], holds: Callable[[dict[str, Any]], bool]) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self.seen = (await self.client.get("/readyz")).json()
                if (found := look()) is not None and holds(found):
                    return found
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def watching(
    folder: Path, registry: str, *, timeout_seconds: float = 5.0, **variables: str
) -> AsyncIterator[Watched]:
    daemon = Daemon()
    async with daemon.client() as client, opened(folder, registry, **variables) as app:
        secrets = Secrets(app.configuration.secrets())
        checks = HealthChecks(app, daemon.health, secrets, EVERY_SECONDS, EVERY_SECONDS, timeout_seconds)
        running = asyncio.create_task(checks.run())
        try:
            yield Watched(app, client)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


@pytest.fixture
def folder() -> Any:
    with quick_folder() as folder:
        yield folder


async def test_with_nothing_configured_database_embedded_index_and_static_model_are_well(folder: Path) -> None:
    async with watching(folder, "") as watched:
        for name in ("database", "qdrant", "embedding"):
            said = await watched.is_(name, "ok")
            assert said["reason"] is None
            assert said["latency_seconds"] >= 0

        assert sorted(watched.seen["components"]) == ["database", "embedding", "qdrant", "waits"]
        assert await watched.overall() == (200, "ok")
    # The engine is started by whoever needs it, not by who asks how it is.
    assert not (folder / "state" / "index").exists()


async def test_a_qdrant_server_that_goes_is_down_while_the_pod_is_degraded_and_ok_when_it_is_back(folder: Path) -> None:
    with QdrantServer(folder / "qdrant") as qdrant:
        async with watching(folder, "embedding: {provider: none}", REPOSYNC_QDRANT_URL=qdrant.url) as watched:
            await watched.is_("qdrant", "ok")
            qdrant.kill()
            said = await watched.is_("qdrant", "down")
            assert said["reason"].startswith(f"Qdrant at {qdrant.url}: the request to check the connection failed")
            assert said["latency_seconds"] is None
            assert await watched.overall() == (200, "degraded")
            qdrant.start()
            await watched.is_("qdrant", "ok")
            assert await watched.overall() == (200, "ok")


async def test_redis_that_goes_leaves_the_pod_degraded(folder: Path, redis_server: RedisServer) -> None:
    async with watching(folder, "embedding: {provider: none}", REPOSYNC_REDIS_URL=redis_server.url) as watched:
        await watched.is_("redis", "ok")
        redis_server.kill()
        said = await watched.is_("redis", "degraded")
        assert "Redis" in said["reason"]
        assert await watched.overall() == (200, "degraded")


@pytest.mark.parametrize("provider", ["openai", "ollama"])
async def test_an_embedding_server_is_checked_and_nothing_is_embedded(folder: Path, provider: str) -> None:
    with EmbeddingServer() as embeddings:
        url = embeddings.url
        registry = f'embedding: {{provider: {provider}, url: "{embeddings.url}", model: test/words}}'
        async with watching(folder, registry) as watched:
            await watched.is_("embedding", "ok")
            embeddings.stop()
            said = await watched.is_("embedding", "degraded")
        assert said["reason"].startswith(f"A request to the embedding server at {url}/")
        assert "the connection failed" in said["reason"]
        assert embeddings.inputs == []
        assert not [each for each in embeddings.log if each.inputs]


async def test_each_gitlab_server_is_checked_with_its_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    with GitLabServer() as known, GitLabServer() as public, GitLabServer() as strange:
        known.add_token(TOKEN, scopes=("read_api",))
        registry = (
            f"gitlab: [{{name: known, url: '{known.url}', token: '${{GITLAB_TOKEN}}'}}, "
            f"{{name: public, url: '{public.url}'}}, "
            f"{{name: strange, url: '{strange.url}', token: '${{GITLAB_TOKEN}}'}}]\nembedding: {{provider: none}}\n"
        )
        async with watching(folder, registry) as watched:
            await watched.is_("database", "ok")
            await watched.is_("gitlab:known", "ok")
            # Who has no token is not told the version, but that GitLab is there.
            await watched.is_("gitlab:public", "ok")
            said = await watched.is_("gitlab:strange", "degraded")
            assert said["reason"].startswith(f"{strange.url} does not accept the token for its version.")
            assert TOKEN not in said["reason"]
            assert await watched.overall() == (200, "degraded")
        for server in (known, public, strange):
            assert {request.path for request in server.log} == {"/api/v4/version"}


async def test_a_server_that_is_not_gitlab_is_degraded_and_one_that_left_the_registry_disappears(folder: Path) -> None:
    with GitLabServer() as first, EmbeddingServer() as no_gitlab:
        kept = f'{{name: kept, url: "{no_gitlab.url}"}}'
        rest = "\nembedding: {provider: none}\n"
        file, both = folder / "repositories.yaml", f'gitlab: [{{name: leaving, url: "{first.url}"}}, {kept}]{rest}'
        async with watching(folder, both) as watched:
            await watched.is_("gitlab:leaving", "ok")
            said = await watched.is_("gitlab:kept", "degraded")
            assert "answered 404" in said["reason"]

            file.write_text(f"gitlab: [{kept}]{rest}")
            await apply_again(watched.app)
            await watched.gone("gitlab:leaving")
            # Under the same name at another address: what is said is of that one.
            file.write_text(f'gitlab: [{{name: kept, url: "{first.url}"}}]{rest}')
            await apply_again(watched.app)
            await watched.is_("gitlab:kept", "ok")
            await watched.is_("database", "ok")
            assert await watched.overall() == (200, "ok")


async def test_a_server_that_never_answers_holds_up_neither_a_probe_nor_any_other_check(folder: Path) -> None:
    with GitLabServer() as gitlab, TcpProxy(gitlab.url) as proxy:
        proxy.stall()
        registry = f'gitlab: [{{name: slow, url: "{proxy.url}"}}]\nembedding: {{provider: none}}\n'
        async with watching(folder, registry, timeout_seconds=IMPATIENT_SECONDS) as watched:
            await watched.is_("database", "ok")
            assert "gitlab:slow" not in watched.seen["components"] or watched.seen["status"] == "degraded"
            said = await watched.is_("gitlab:slow", "degraded")
            assert "2 s" in said["reason"] or "no answer within the time-out" in said["reason"]
            proxy.resume()
            await watched.is_("gitlab:slow", "ok")
