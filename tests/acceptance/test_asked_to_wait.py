"""A server that asks to come back later: the run waits in the queue, and its worker does something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from reposync.store.run import Run
from tests.acceptance.conftest import Person
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

TEN_MINUTES, HOUR = timedelta(minutes=10), timedelta(hours=1)
TEN_YEARS = "315360000"
SECRET = "glpat-Xk3vTq9sLmN2pRw7"


@pytest.fixture
def gitlab(person: Person, pod: Pod, repository: GitRepository, tmp_path: Path) -> Iterator[GitLabServer]:
    """With the project of the repository `app`, beside which a repository `other` is on this machine."""
    repository.commit({"a.py": b"def first(): pass\n"})
    other = GitRepository.create(tmp_path / "other.git")
    other.commit({"b.py": b"def other(): pass\n"})
    pod.environment = person.environment = {**person.environment, "GITLAB_TOKEN": SECRET}
    with GitLabServer() as gitlab:
        gitlab.add_project("platform/app", repository.path)
        gitlab.add_token(SECRET, scopes=("read_api", "read_repository"))
        person.configures(
            f'gitlab: [{{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}"}}]\n'
            "embedding: {provider: none}\ndaemon: {concurrency: 1}\n"
            "repositories:\n  - {name: app, gitlab: main, project: platform/app, schedule: yearly}\n"
            f"  - {{name: other, path: '{other.path}', schedule: yearly}}\n"
        )
        yield gitlab


def asks_to_wait(gitlab: GitLabServer, seconds: str, *, status: int = 429) -> None:
    gitlab.faults.answer(status, "Retry later", headers={"Retry-After": seconds}, path="platform", times=None)


def handed_back(log: ExecutionLog, pod: Pod) -> Run:
    def found() -> list[Run]:
        given_back = ("queued", "SOURCE_UNAVAILABLE")
        return [run for run in log.runs("app") if (run.status, run.error_code) == given_back]

    (run,) = until(found, 120, details=pod.log_tail)
    return run


def test_a_run_whose_gitlab_asks_to_wait_leaves_its_place_to_another_repository(
    pod: Pod, log: ExecutionLog, gitlab: GitLabServer
):
    asks_to_wait(gitlab, "600")
    pod.start()

    run = handed_back(log, pod)
    until(lambda: log.ended("other"), details=pod.log_tail)

    assert run.started_at is not None and run.not_before >= run.started_at + TEN_MINUTES
    assert "600 s" in str(run.error_message)
    assert (run.attempt, run.failures) == (1, 0)
    assert len(gitlab.log.matching("platform")) == 1, "it was asked once"

    # A person who knows better is not kept waiting.
    gitlab.faults.clear()
    assert pod.posts("/api/v1/repositories/app/sync").json()["id"] == run.id
    until(lambda: log.ended("app"), details=pod.log_tail)


@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_of_ten_years_is_one_of_an_hour_and_is_shown_wherever_the_run_is(
    person: Person, pod: Pod, log: ExecutionLog, gitlab: GitLabServer, status: int
):
    asks_to_wait(gitlab, TEN_YEARS, status=status)
    pod.start()

    run = handed_back(log, pod)

    assert run.started_at is not None
    assert run.started_at + HOUR / 2 < run.not_before <= run.started_at + 1.1 * HOUR
    moment = f"{run.not_before:%Y-%m-%d %H:%M:%S}"
    shows = re.compile(rf"next[ _]attempt(_at:|:? at) +{moment} UTC")
    for words in ("history --repository app", f"runs show {run.id}", "repos list", "repos show app"):
        assert shows.search(person.types(*words.split()).stdout), words
    listed = pod.gets("/api/v1/runs?repository=app").json()["items"][0]
    overview = pod.gets("/api/v1/repositories/app").json()
    assert listed["next_attempt_at"] == overview["next_attempt_at"] is not None
    for path in ("/", "/runs", f"/runs/{run.id}", "/repositories/app"):
        page = pod.gets(path).text.lower()
        assert "next attempt at <time" in page, path
        assert f"{run.not_before:%Y-%m-%dt%H:%M:%S}" in page, path

    def waits() -> str:
        return str(pod.health()["components"].get("waits", {}).get("reason"))

    until(lambda: f"app: next attempt at {moment} UTC. Reading the project of platform/app" in waits(), details=waits)
    assert (pod.metric("reposync_queue_oldest_seconds") or 0) > 0
    assert pod.metric("reposync_dependency_status", dependency="waits", status="degraded") == 1


@pytest.mark.parametrize("seconds", ["0", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_server_that_asks_to_come_back_at_once_is_not_flooded_and_the_command_ends(
    person: Person, gitlab: GitLabServer, seconds: str
):
    person.types("apply")
    asks_to_wait(gitlab, seconds)

    failed = person.types("sync", "app", exit_code=1)

    assert "the rate limit is reached (429). The server asks to wait 0 s." in failed.stdout
    assert len(gitlab.log.matching("platform")) < 16
