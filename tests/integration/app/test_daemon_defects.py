"""A defect in one of a daemon's tasks: it is logged with its cause, said on /readyz, and the daemon goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from reposync.app.daemon import Daemon, Roles
from reposync.catalog.targets import Catalog, SyncTarget
from reposync.config.loading import load_registry
from reposync.config.settings import Settings
from reposync.store.repository import Repository
from reposync.store.status import RunStatus
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics
from reposync.telemetry.redaction import Secrets
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.folders import quick_folder
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.qdrant_server import QdrantServer
from tests.fixtures.repositories import GitRepository
from tests.integration.api.serving import eventually
from tests.integration.sync.conftest import embeddings, qdrant  # noqa: F401

pytestmark = pytest.mark.full

REGISTRY = """
embedding: {{provider: openai, url: "{url}", model: test/words, dimensions: 64}}
repositories:
  - {{name: app, path: "{path}", schedule: every second}}
"""


class Flawed(Metrics):
    """What a daemon tells its figures to: the first two calls of `method` fail."""

    def __init__(self, method: str) -> None:
        super().__init__(version="1")
        self.method, self.left = method, 2

    def _fails(self, method: str) -> None:
        if method == self.method and self.left:
            self.left -= 1
            raise TypeError(f"a defect in {method}")

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        self._fails(name)
        super().count(name, *labels, by=by)

    def workers(self, *told: Any) -> None:
        self._fails("workers")
        super().workers(*told)


@pytest.fixture
def configured(qdrant: QdrantServer, embeddings: EmbeddingServer) -> Iterator[Settings]:  # noqa: F811
    with quick_folder() as folder:
        repository = GitRepository.create(folder / "app.git")
        repository.commit({"a.py": b"x = 1\n"})
        (folder / "repositories.yaml").write_text(REGISTRY.format(url=embeddings.url, path=repository.path))
        config, state = str(folder / "repositories.yaml"), str(folder / "state")
        variables = {"REPOSYNC_STATE_DIR": state, "REPOSYNC_CONFIG": config, "REPOSYNC_QDRANT_URL": qdrant.url}
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
            async with asyncio.timeout(PATIENCE_SECONDS):
                await running


async def completed(daemon: Daemon) -> int:
    app = daemon.app
    return 0 if app is None else len(await app.history.runs("app", RunStatus.COMPLETED, limit=1_000))


async def test_a_defect_before_an_attempt_has_begun_ends_it_for_retry_and_not_with_its_lease(
    configured: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    failed = asyncio.Event()

    class FlawedCatalog(Catalog):
        """Cannot make a target of the first row that it is asked for."""

        def of_row(self, row: Repository) -> SyncTarget:
            if not failed.is_set():
                failed.set()
                raise TypeError("a defect in the catalogue")
            return Catalog.of_row(self, row)

    async with serving(configured, Metrics(version="1"), Health()) as daemon:
        await eventually(lambda: completed(daemon))  # it has adopted the registry
        app = daemon.app
        assert app is not None
        app.catalog = FlawedCatalog(app.configuration.registry, app.repositories, {})
        await eventually(failed.is_set)
        before = await completed(daemon)

        async def goes_on() -> bool:
            return await completed(daemon) > before

        await eventually(goes_on)
        runs = await app.history.runs("app", limit=1_000)
        outcomes = [
            (each.outcome, each.error_code) for run in runs for each in (await app.history.get(run.id)).all_attempts
        ]
        assert ("retrying", "INTERNAL_ERROR") in outcomes
        assert "lost" not in [outcome for outcome, _ in outcomes]
        assert "a defect in the catalogue" in caplog.text


@pytest.mark.parametrize(("method", "task"), [("ticks", "cron"), ("workers", "workers")])
async def test_a_task_that_a_defect_ends_is_said_and_started_again(
    configured: Settings, method: str, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, health = Flawed(method), Health()

    def said() -> str:
        found = health.snapshot().components.get(f"task:{task}")
        return "" if found is None else f"{found.status}: {found.reason}"

    async with serving(configured, metrics, health) as daemon:

        async def goes_on() -> bool:
            return await completed(daemon) >= before + 2

        await eventually(lambda: not metrics.left and said())
        assert said().startswith("degraded: It ended by a defect and is started again: TypeError; the log has the ")
        assert health.snapshot().status == "degraded"
        assert f"a defect in {method}" in caplog.text
        assert said().split()[-1].rstrip(".") in caplog.text
        before = await completed(daemon)
        await eventually(goes_on)
