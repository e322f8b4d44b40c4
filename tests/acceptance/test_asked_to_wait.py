"""A server that asks to come back in ten minutes: the run waits in the queue, and its worker does something else."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from reposync.store.run import Run
from tests.acceptance.conftest import Person
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

TEN_MINUTES = timedelta(minutes=10)


def test_a_run_whose_gitlab_asks_to_wait_leaves_its_place_to_another_repository(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, tmp_path: Path
):
    repository.commit({"a.py": b"def first(): pass\n"})
    other = GitRepository.create(tmp_path / "other.git")
    other.commit({"b.py": b"def other(): pass\n"})
    secret = "glpat-Xk3vTq9sLmN2pRw7"
    pod.environment = {"GITLAB_TOKEN": secret}
    with GitLabServer() as gitlab:
        gitlab.add_project("platform/app", repository.path)
        gitlab.add_token(secret, scopes=("read_api", "read_repository"))
        gitlab.faults.answer(429, "Retry later", headers={"Retry-After": "600"}, path="platform", times=None)
        person.configures(
            f'gitlab: [{{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}"}}]\n'
            "embedding: {provider: none}\ndaemon: {concurrency: 1}\n"
            "repositories:\n  - {name: app, gitlab: main, project: platform/app, schedule: yearly}\n"
            f"  - {{name: other, path: '{other.path}', schedule: yearly}}\n"
        )
        pod.start()

        def handed_back() -> list[Run]:
            given_back = ("queued", "SOURCE_UNAVAILABLE")
            return [run for run in log.runs("app") if (run.status, run.error_code) == given_back]

        (run,) = until(handed_back, 120, details=pod.log_tail)
        until(lambda: log.ended("other"), details=pod.log_tail)

        assert run.started_at is not None and run.not_before >= run.started_at + TEN_MINUTES
        assert "600 s" in str(run.error_message)
        assert (run.attempt, run.failures) == (1, 0)
        assert len(gitlab.log.matching("platform")) == 1, "it was asked once"

        # A person who knows better is not kept waiting.
        gitlab.faults.clear()
        assert pod.posts("/api/v1/repositories/app/sync").json()["id"] == run.id
        until(lambda: log.ended("app"), details=pod.log_tail)
