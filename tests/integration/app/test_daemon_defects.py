"""A defect in one of a daemon's tasks: it is logged with its cause, said on /readyz, and the daemon goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from reposync.app.daemon import Daemon, Roles
from reposync.config.loading import load_registry
from reposync.config.settings import Settings
from reposync.store.status import RunStatus
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics
from reposync.telemetry.redaction import Secrets
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.integration.sync.conftest import embeddings, qdrant  # noqa: F401

pytestmark = pytest.mark.full

LONG_SECONDS = 120.0
REGISTRY = """
embedding: {{provider: openai, url: "{url}", model: test/words, dimensions: 64}}
repositories:
  - {{name: app, path: "{path}", schedule: every second}}
"""


class Flawed(Metrics):
    """What a daemon tells its figures to, with a defect in each of these methods: the first two calls fail."""

    def __init__(self, *methods: str) -> None:
        super().__init__(version="1")
        self._left = dict.fromkeys(methods, 2)

    def _fails(self, method: str) -> None:
        if self._left.get(method, 0):
            self._left[method] -= 1
            raise TypeError(f"a defect in {method}")

    @property
    def failed(self) -> bool:
        return not any(self._left.values())

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        self._fails(name)
        super().count(name, *labels, by=by)

    def workers(self, *told: Any) -> None:
        self._fails("workers")
        super().workers(*told)


class Listening(Health):
    """Keeps what was reported of tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[str, str] = {}

    def report(self, component: str, status: Any, reason: str | None = None, *more: Any, **named: Any) -> None:
        if component.startswith("task:"):
            self.tasks[component] = f"{status}: {reason}"
        super().report(component, status, reason, *more, **named)


@pytest.fixture
def configured(qdrant: QdrantServer, embeddings: EmbeddingServer) -> Iterator[Settings]:  # noqa: F811
    with quick_folder() as folder:
        repository = GitRepository.create(folder / "app.git")
        repository.commit({"a.py": b"x = 1\n"})
        (folder / "repositories.yaml").write_text(REGISTRY.format(url=embeddings.url, path=repository.path))
        config, state = str(folder / "repositories.yaml"), str(folder / "state")
        variables = {"REPOSYNC_STATE_DIR": state, "REPOSYNC_CONFIG": config, "QDRANT_URL": qdrant.url}
        yield Settings.from_environment(variables)


@contextlib.asynccontextmanager
async def serving(settings: Settings, metrics: Metrics, health: Health) -> AsyncIterator[Daemon]:
    daemon = Daemon(settings, load_registry(settings.config_path), Roles(), metrics, health, Secrets())
    async with contextlib.AsyncExitStack() as resources:
        running = asyncio.create_task(daemon.run(resources))
        try:
            yield daemon
            assert not running.done(), "it goes on"
        finally:
            daemon.stop()
            async with asyncio.timeout(LONG_SECONDS):
                await running


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def completed(daemon: Daemon) -> int:
    if daemon.app is None:
        return 0
    return len(await daemon.app.runs.history("app", RunStatus.COMPLETED, limit=1_000))


async def more_are_completed(daemon: Daemon) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        before = await completed(daemon)
        while await completed(daemon) < before + 2:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("method", "task"), [("ticks", "cron"), ("workers", "workers")])
async def test_a_task_that_a_defect_ends_is_said_and_started_again(
    configured: Settings, method: str, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, health = Flawed(method), Listening()
    async with serving(configured, metrics, health) as daemon:
        await until(lambda: metrics.failed)
        await until(lambda: f"task:{task}" in health.tasks)
        await more_are_completed(daemon)

        said = health.tasks[f"task:{task}"]
        assert said.startswith("degraded: It ended by a defect and is started again: TypeError; the log has the ")
        assert health.snapshot().status == "degraded"
        assert f"a defect in {method}" in caplog.text
        assert said.split()[-1].rstrip(".") in caplog.text
