"""Commands beside daemons, as real processes: who executes a run, and whose it is when somebody presses Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

FILES = 300


@pytest.fixture
def registered(person: Person, embeddings: EmbeddingServer, repository: GitRepository) -> Person:
    """`app` is registered, and its state is that of the daemons below."""
    repository.many(FILES)
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    person.configures(
        f"{embeddings.registry}daemon: {{retry_seconds: 0.5}}\n"
        f"repositories:\n  - {{name: app, path: '{repository.path}', schedule: yearly}}\n"
    )
    return person


@pytest.fixture
def worker(registered: Person, pod: Pod) -> Pod:
    """A daemon that executes runs; not started."""
    pod.name = "worker"
    return pod


@pytest.fixture
def door(registered: Person) -> Generator[Pod, None, None]:
    """A daemon that only answers over HTTP; not started."""
    with ExitStack() as ended:
        yield ended.push(Pod("door", registered.home, options=("--no-workers", "--no-scheduler")))


def answer(process: subprocess.Popen[str], exit_code: int = 0) -> tuple[dict[str, Any], str]:
    """The run that a `sync --json` ended with, and what it said meanwhile."""
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == exit_code, err
    (run,) = json.loads(out)["items"]
    return run, err


def interrupted(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, err


def is_alive(pod: Pod) -> bool:
    return pod.metric("reposync_workers") == 1


def requested_over_http(pod: Pod) -> str:
    accepted = pod.posts("/api/v1/repositories/app/sync")
    assert accepted.status_code == 202, accepted.text
    return str(accepted.json()["id"])


def test_a_sync_beside_a_daemon_is_executed_by_the_daemon_and_followed(
    registered: Person, worker: Pod, log: ExecutionLog, embeddings: EmbeddingServer
):
    worker.start()
    until(lambda: log.ended("app"), details=worker.log_tail)
    assert is_alive(worker)
    with embeddings.holding():
        typed = registered.starts("sync", "app", "--full", "--json")
        until(lambda: len(log.runs("app")) == 2, details=worker.log_tail)
    run, err = answer(typed)

    assert (run["status"], run["trigger"], run["worker"].partition(":")[0]) == ("completed", "command", "worker")
    assert "app: " in err

    # A worker that was killed is known to be dead when its heartbeat is too old: nobody waits longer for it.
    worker.kill()
    run, _ = answer(registered.starts("sync", "app", "--json"))
    assert run["status"] == "completed"
    assert not run["worker"].startswith("worker:")


def test_a_run_whose_daemon_is_killed_is_taken_over_by_the_command_that_follows_it(
    registered: Person, worker: Pod, log: ExecutionLog, embeddings: EmbeddingServer
):
    with embeddings.holding():
        worker.start()
        embeddings.wait_for_waiting(1)
        first = log.runs("app")[0]
        typed = registered.starts("sync", "app", "--json")
        until(lambda: len(log.runs("app")) == 2, details=worker.log_tail)
        worker.kill()
    run, _ = answer(typed)

    assert run["status"] == "completed"
    assert [each.outcome for each in log.attempts(first)] == ["lost", "completed"]


def test_ctrl_c_ends_a_run_only_if_nobody_else_asked_for_it(
    registered: Person, worker: Pod, log: ExecutionLog, embeddings: EmbeddingServer
):
    with ExitStack() as held:
        held.enter_context(embeddings.holding())
        worker.start()
        embeddings.wait_for_waiting(1)
        following = registered.starts("sync", "app", "--full")
        until(lambda: [run for run in log.runs("app") if run.full], details=worker.log_tail)
        requested_over_http(worker)
        interrupted(following)
        first, second = log.runs("app")
        assert (first.status, second.status) == ("running", "queued"), "a click asked for it, too"

        registered.types("runs", "cancel", second.id)
        following = registered.starts("sync", "app")
        until(lambda: len(log.runs("app")) == 3, details=worker.log_tail)
        interrupted(following)
        assert log.runs("app")[2].status == "cancelled", "nobody else asked for it"
        kept = requested_over_http(worker)
        following = registered.starts("sync", "app", "--full")
        until(lambda: [run for run in log.runs("app") if run.full and run.id == kept], details=worker.log_tail)
        interrupted(following)
    until(lambda: kept in [run.id for run in log.ended("app")], details=worker.log_tail)
    assert first.id in [run.id for run in log.ended("app")]


def test_everything_is_queued_at_once_beside_a_daemon_and_taken_back_at_once(
    registered: Person, worker: Pod, log: ExecutionLog, embeddings: EmbeddingServer, repository: GitRepository
):
    text = (registered.home / "repositories.yaml").read_text()
    registered.configures(f"{text}  - {{name: other, path: '{repository.path}', schedule: yearly}}\n")
    worker.start()
    until(lambda: log.ended("app") and log.ended("other"), details=worker.log_tail)
    with embeddings.holding():
        repository.many(10, content=lambda number: b"def again_%d(): pass\n" % number)
        typed = registered.starts("sync")
        embeddings.wait_for_waiting(2)  # the worker executes both
        interrupted(typed)
        until(
            lambda: {log.runs(name)[-1].status for name in ("app", "other")} == {"cancelled"}, details=worker.log_tail
        )


def test_a_run_with_other_requests_outlives_the_command_that_executes_it(
    registered: Person, door: Pod, worker: Pod, log: ExecutionLog, embeddings: EmbeddingServer
):
    door.start()
    until(lambda: door.gets("/api/v1/repositories/app").status_code == 200, details=door.log_tail)
    run_id = requested_over_http(door)
    with embeddings.holding():
        executing = registered.starts("sync", "app", "--full")
        embeddings.wait_for_waiting(1)
        executing.send_signal(signal.SIGTERM)
        executing.communicate(timeout=PATIENCE_SECONDS)
        assert executing.returncode == 130
    (run,) = log.runs("app")
    # What the command asked for stays in the run that it joined.
    assert (run.id, run.status, run.full) == (run_id, "queued", True)

    worker.start()
    (run,) = until(lambda: log.ended("app"), details=worker.log_tail)
    assert [each.outcome for each in log.attempts(run)] == ["released", "completed"]


def test_a_source_that_this_machine_cannot_reach_does_not_end_a_run_with_other_requests(
    registered: Person, door: Pod, worker: Pod, log: ExecutionLog, repository: GitRepository
):
    door.start()
    until(lambda: door.gets("/api/v1/repositories/app").status_code == 200, details=door.log_tail)
    run_id = requested_over_http(door)
    away = repository.path.rename(repository.path.with_name("away.git"))

    run, _ = answer(registered.starts("sync", "app", "--json"), exit_code=1)

    assert (run["id"], run["status"]) == (run_id, "retrying")
    assert run["error_code"].startswith("SOURCE")
    away.rename(repository.path)
    worker.start()
    (ended,) = until(lambda: log.ended("app"), details=worker.log_tail)
    assert (ended.id, ended.failures) == (run_id, 1), "the attempt of the command does not count"

    # What nobody else asked for fails at once, for the person who watches.
    assert worker.terminate() == 0
    repository.path.rename(away)
    run, _ = answer(registered.starts("sync", "app", "--json"), exit_code=1)
    assert (run["status"], run["attempt"]) == ("failed", 1)


def test_who_lacks_the_token_leaves_the_run_to_who_has_it(person: Person, repository: GitRepository, log: ExecutionLog):
    """Whether the token is the daemon's or the person's: the run is executed by the one of them who has it."""
    secret = "glpat-Xk3vTq9sLmN2pRw7"
    repository.commit({"a.py": b"def first(): pass\n"})
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    with GitLabServer() as gitlab:
        gitlab.add_project("platform/app", repository.path)
        gitlab.add_token(secret, scopes=("read_api", "read_repository"))
        person.configures(
            "embedding: {provider: none}\n"
            f'gitlab: [{{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}"}}]\n'
            "repositories:\n  - {name: app, gitlab: main, project: platform/app, schedule: yearly}\n"
        )
        with Pod("worker", person.home, {"GITLAB_TOKEN": secret}) as worker:
            until(lambda: log.ended("app"), details=worker.log_tail)
            run, _ = answer(person.starts("sync", "app", "--json"))
            assert (run["status"], run["worker"].partition(":")[0]) == ("completed", "worker")
            assert worker.terminate() == 0
        # Nobody is left who has it: the sentence names what is missing, at once.
        run, _ = answer(person.starts("sync", "app", "--json"), exit_code=1)
        assert (run["status"], run["error_code"]) == ("failed", "SECRET_MISSING")
        assert "GITLAB_TOKEN" in run["error_message"]

        # It has no registry file: what is registered is in the database.
        with Pod("worker", person.home / "elsewhere", {"REPOSYNC_STATE_DIR": str(person.home / "state")}) as worker:
            until(lambda: worker.events("serving") and is_alive(worker), details=worker.log_tail)
            requested_over_http(worker)
            waiting = log.runs("app")[-1]
            until(lambda: [each.times for each in log.attempts(waiting) if each.times > 1], details=worker.log_tail)
            shown = person.types("runs", "show", waiting.id).stdout
            assert re.search(r"released after .*, \d+ times  worker\S*  SECRET_MISSING: .*GITLAB_TOKEN", shown), shown

            person.environment["GITLAB_TOKEN"] = secret
            run, _ = answer(person.starts("sync", "app", "--json"))
            assert (run["id"], run["status"]) == (waiting.id, "completed")
            assert not run["worker"].startswith("worker:")
            (ended,) = [each for each in log.runs("app") if each.id == run["id"]]
            assert [each.error_code for each in log.attempts(ended)] == ["SECRET_MISSING", None]
            assert worker.terminate() == 0
