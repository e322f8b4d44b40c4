"""A daemon beside its registry file, as its log tells it: what lasts is said once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from reposync.app import registry_watcher
from reposync.app.application import Application
from reposync.app.registry_watcher import RegistryWatcher
from reposync.config.loading import load_registry
from reposync.config.settings import Settings
from reposync.store.registry import RegistryDocuments
from reposync.telemetry.health import Health
from tests.fixtures.applied import open_applied, replace_by
from tests.integration.api.serving import eventually

REGISTRY = "embedding: {provider: none}\nrepositories: [{name: app, git: https://git.example.com/app.git}]\n"


@dataclass
class Daemon:
    """The watcher of a daemon, which looks again and again."""

    app: Application
    folder: Path
    health: Health = field(default_factory=Health)
    reloads: list[str] = field(default_factory=list)
    logs: list[MutableMapping[str, Any]] = field(default_factory=list)
    in_force: int = 0

    @property
    def file(self) -> Path:
        return self.folder / "repositories.yaml"

    @property
    def errors(self) -> list[str]:
        return [each["event"] for each in self.logs if each["log_level"] == "error"]

    @property
    def status(self) -> str:
        return self.health.snapshot().components["registry"].status

    async def looks_again(self, times: int = 3) -> None:
        """A different document is current for a moment, and a look notices each change."""
        now = await RegistryDocuments(self.app.database).current()
        assert now is not None
        other = now.model_copy(update={"digest": "another"})
        for former, new in [(now, other), (other, now)] * times:
            before = self.in_force
            await replace_by(self.app.database, former, new.digest, now.document, by="a person")
            await eventually(lambda: self.in_force > before)  # noqa: B023

    async def said(self) -> None:
        self.in_force += 1

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncGenerator[None, None]:
        loaded = load_registry(self.file)
        watcher = RegistryWatcher(loaded, self.health, by="pod", on_reload=self.reloads.append)
        with capture_logs() as self.logs:
            await watcher.apply(self.app.database)
            task = asyncio.create_task(watcher.run(self.app, self.said))
            try:
                await eventually(lambda: self.in_force)
                yield
            finally:
                task.cancel()
                await asyncio.wait({task})


@pytest.fixture
def database_kind() -> str:
    return "sqlite"


@pytest.fixture
async def daemon(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Daemon, None]:
    monkeypatch.setattr(registry_watcher, "LOOK_SECONDS", 0.01)
    (tmp_path / "repositories.yaml").write_text(REGISTRY)
    settings = Settings.from_environment(
        {
            "REPOSYNC_STATE_DIR": str(tmp_path / "state"),
            "REPOSYNC_CONFIG": str(tmp_path / "repositories.yaml"),
            "REPOSYNC_DATABASE_URL": database_url,
        }
    )
    async with open_applied(settings) as app:
        daemon = Daemon(app, tmp_path)
        async with daemon.watching():
            yield daemon


async def test_a_file_that_is_away_is_an_error_once_and_it_is_said_that_it_is_back(daemon: Daemon) -> None:
    before = len(daemon.reloads)
    away = daemon.file.rename(daemon.folder / "away.yaml")
    await eventually(lambda: daemon.errors)
    await daemon.looks_again()
    assert len(daemon.errors) == 1
    assert str(daemon.file) in daemon.errors[0]
    assert (daemon.reloads[before:], daemon.status) == (["invalid"], "degraded")

    # The same file, and not a copy: nothing of it has changed.
    away.rename(daemon.file)
    await eventually(lambda: daemon.status == "ok")
    await daemon.looks_again()
    assert daemon.reloads[before:] == ["invalid", "ok"]
    assert [each["event"] for each in daemon.logs][-1] == "registry in force"

    # Another time is news.
    daemon.file.rename(away)
    await eventually(lambda: len(daemon.errors) == 2)


async def test_a_file_that_is_wrong_in_another_way_is_an_error_more(daemon: Daemon) -> None:
    clear = "gitlab: [{name: main, url: https://gitlab.example.com, token: glpat-hush}]\n"
    for number, text in enumerate(("repositories: [{nam: app}]\n", "repositories: 7\n", clear), 1):
        daemon.file.write_text(text)
        await eventually(lambda: len(daemon.errors) == number)  # noqa: B023
        await daemon.looks_again()

    assert "gitlab[0].token is in the clear: write ${GITLAB_TOKEN}" in daemon.errors[-1]
    assert "glpat-hush" not in str(daemon.logs)
    assert [each.name for each in await daemon.app.repositories.list()] == ["app"]
    daemon.file.write_text(REGISTRY)
    await eventually(lambda: daemon.status == "ok")
    assert len(daemon.errors) == 3


async def test_that_a_change_needs_a_restart_is_said_once(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.file.write_text(REGISTRY.replace("none", "local"))

    await eventually(lambda: "after a restart of the daemon" in caplog.text)
    await daemon.looks_again()

    assert caplog.text.count("after a restart of the daemon") == 1


async def test_a_pod_whose_document_was_superseded_says_so_until_it_is_current_again(daemon: Daemon) -> None:
    now = await RegistryDocuments(daemon.app.database).current()
    assert now is not None
    await replace_by(daemon.app.database, now, "newer", {}, by="pod-7")

    watcher = RegistryWatcher(load_registry(daemon.file), daemon.health, by="pod", on_reload=daemon.reloads.append)
    await watcher.apply(daemon.app.database)

    reason = str(daemon.health.snapshot().components["registry"].reason)
    assert "a newer one was applied by pod-7" in reason and "`reposync apply`" in reason
    assert (daemon.status, daemon.reloads[-1]) == ("degraded", "superseded")
    newer = now.model_copy(update={"digest": "newer"})
    await replace_by(daemon.app.database, newer, now.digest, now.document, by="a person")
    await watcher.apply(daemon.app.database)
    assert (daemon.status, daemon.reloads[-1]) == ("ok", "ok")
