"""Daemons on machines whose clocks are wrong, or are set while they run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reposync.config.database_url import sqlite_url
from reposync.store.database import Database
from reposync.store.run import Run
from reposync.store.tables import Worker
from reposync.store.workers import Workers
from tests.fixtures.databases import PostgresqlDatabases
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

A_DAY = 86_400.0
TWO_HOURS = 7_200.0


class Installation:
    """Pods on one database, each with a clock of its own."""

    def __init__(self, folder: Path, repository: GitRepository, stack: ExitStack, database_url: str) -> None:
        self._folder = folder
        self._stack = stack
        self.log = ExecutionLog(database_url)
        self._variables = {"REPOSYNC_DATABASE_URL": database_url, "REPOSYNC_CONFIG": str(folder / "repositories.yaml")}
        (folder / "repositories.yaml").write_text(
            "embedding: {provider: none}\n"
            f"repositories:\n  - {{name: app, path: '{repository.path}', schedule: '@every 2s'}}\n"
        )

    def pod(self, name: str, *, ahead_seconds: float = 0.0) -> Pod:
        self.sets_clock(name, ahead_seconds)
        program = (sys.executable, "-m", "tests.fixtures.shifted_daemon", str(self._folder / f"{name}.clock"))
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
        # One state folder: without a Qdrant server the index is there.
        variables = self._variables | {"PYTHONPATH": path, "REPOSYNC_STATE_DIR": str(self._folder / "state")}
        return self._stack.enter_context(Pod(name, self._folder, variables, program=program))

    def sets_clock(self, name: str, ahead_seconds: float) -> None:
        temporary = self._folder / f"{name}.next"
        temporary.write_text(str(ahead_seconds))
        temporary.rename(self._folder / f"{name}.clock")

    def ticks(self) -> list[Run]:
        return [run for run in self.log.runs("app") if run.scheduled_for is not None]

    def workers(self) -> list[Worker]:
        async def read() -> list[Worker]:
            async with await Database.open(self.log.url) as database:
                return await Workers(database).alive()

        return asyncio.run(read())


@contextmanager
def installed(folder: Path, repository: GitRepository, database_url: str) -> Generator[Installation, None, None]:
    repository.commit({"a.py": b"x = 1\n"})
    home = folder / "installation"
    home.mkdir()
    with ExitStack() as stack:
        yield Installation(home, repository, stack, database_url)


def test_a_pod_whose_clock_is_a_day_ahead_reports_it_and_stops_no_schedule(
    tmp_path: Path, repository: GitRepository, postgresql: PostgresqlDatabases
):
    with installed(tmp_path, repository, postgresql.upgraded()) as installation:
        wrong = installation.pod("wrong", ahead_seconds=A_DAY)
        until(lambda: len(installation.ticks()) >= 2 and installation.log.ended("app"), details=wrong.log_tail)

        clock = until(lambda: (found := wrong.health()["components"].get("clock")) and found["reason"] and found)
        assert clock["status"] == "degraded"
        assert "s ahead of the database's" in clock["reason"]
        skew = wrong.metric("reposync_clock_skew_seconds")
        assert skew == pytest.approx(A_DAY, abs=60)
        assert wrong.metric("reposync_repository_freshness_seconds", repository="app") < 3600
        (worker,) = installation.workers()
        assert worker.clock_skew_seconds == pytest.approx(A_DAY, abs=60)

        right = installation.pod("right")
        wrong.kill()
        before = len(installation.ticks())
        until(lambda: len(installation.ticks()) >= before + 2, details=right.log_tail)
        assert right.health()["components"]["clock"]["status"] == "ok"
        assert abs(right.metric("reposync_clock_skew_seconds")) < 30
        now = datetime.now(UTC)
        assert all(run.scheduled_for <= now + timedelta(seconds=5) for run in installation.ticks())


def test_a_single_daemon_goes_on_when_its_clock_is_set_back_by_two_hours(tmp_path: Path, repository: GitRepository):
    with installed(tmp_path, repository, sqlite_url(tmp_path / "reposync.db")) as installation:
        pod = installation.pod("pod", ahead_seconds=TWO_HOURS)
        until(lambda: len(installation.ticks()) >= 2, details=pod.log_tail)

        installation.sets_clock("pod", 0.0)

        def since() -> list[Run]:
            return [run for run in installation.ticks() if run.scheduled_for <= datetime.now(UTC)]

        until(lambda: len([run for run in since() if run.status == "completed"]) >= 2, details=pod.log_tail)
        assert pod.health()["status"] == "ok"

        pod.kill()
        before = len(since())
        again = installation.pod("pod")
        until(lambda: len(since()) >= before + 2, details=again.log_tail)
        assert again.health()["status"] == "ok"
