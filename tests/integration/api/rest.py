"""The API over a real database and a real server, and what another pod does meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from reposync.app.application import Application
from reposync.config.settings import Settings
from reposync.store.database import Database
from reposync.store.history import RunHistory
from reposync.store.run import Ask, Run, RunFigures, RunProblem
from reposync.store.runs import Runs
from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.applied import open_applied
from tests.fixtures.endings import ending
from tests.integration.api.serving import client_of, parts_of

API = "/api/v1"
REGISTRY = """\
gitlab: [{name: main, url: https://gitlab.example.com}]
repositories:
  - {name: payments, git: https://git.example.com/payments.git}
  - {name: platform/api, git: https://git.example.com/api.git, schedule: daily at 03:00}
  - {name: platform/wait, git: https://git.example.com/wait.git}
"""


@dataclass
class Rest:
    """`client` asks the server of one pod. `other` is the execution log as another pod has it."""

    app: Application
    client: httpx.AsyncClient
    other: Runs
    history: RunHistory
    folder: Path
    worker: str = "pod-b:1:0"
    seen: list[str] = field(default_factory=list)

    async def answers(self, method: str, path: str, status: int, **options: Any) -> Any:
        """The document of the answer, which has to have that status."""
        if isinstance(options.get("content"), str):
            options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
        answer = await self.client.request(method, API + path, **options)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def get(self, path: str, **query: Any) -> Any:
        return await self.answers("GET", path, 200, params=query)

    async def refusal(self, method: str, path: str, status: int, **options: Any) -> str:
        """The code of the error."""
        error = (await self.answers(method, path, status, **options))["error"]
        assert set(error) == {"code", "message", "help", "details", "next"}
        return str(error["code"])

    async def claimed(self, run_id: str) -> Run:
        """The run as the other pod has begun it."""
        run = await self.other.claim(self.worker, 60.0, run_id=run_id)
        assert run is not None
        return run

    async def ended(
        self, run_id: str, status: RunStatus = RunStatus.COMPLETED, problems: list[RunProblem] | None = None
    ) -> Run:
        """The other pod executes the run."""
        return await self.ended_claimed(await self.claimed(run_id), status, problems)

    async def ended_claimed(
        self, run: Run, status: RunStatus = RunStatus.COMPLETED, problems: list[RunProblem] | None = None
    ) -> Run:
        await self.other.add_problems(run, problems or [])
        code = None if status is RunStatus.COMPLETED else "SOURCE_ERROR"
        how = ending(status, code, code and "It did not answer.")
        return await self.other.end(run, how, RunFigures(files_processed=3))

    async def run(self, name: str, trigger: RunTrigger = RunTrigger.COMMAND, status: RunStatus | None = None) -> Run:
        """One of the history."""

        run, _ = await self.app.runs.enqueue(name, Ask(trigger))
        return run if status is None else await self.ended(run.id, status)


@contextlib.asynccontextmanager
async def opened(folder: Path, registry: str = REGISTRY, **variables: str) -> AsyncIterator[Application]:
    path = folder / "repositories.yaml"
    path.write_text(registry)
    places = {"REPOSYNC_STATE_DIR": str(folder / "state"), "REPOSYNC_CONFIG": str(path)}
    async with open_applied(Settings.from_environment(places | variables)) as app:
        yield app


@pytest.fixture
async def rest(tmp_path: Path, database_url: str) -> AsyncIterator[Rest]:
    async with (
        opened(tmp_path, REPOSYNC_DATABASE_URL=database_url) as app,
        await Database.open(database_url) as database,
        client_of(parts_of(app)) as client,
    ):
        yield Rest(app, client, Runs(database), RunHistory(database), tmp_path)
