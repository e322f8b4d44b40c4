"""`reposync serve` on one machine: nothing but a registry file, SQLite and the embedded engine."""

from __future__ import annotations

import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

QUIET = "schedule: yearly"


def registry(*repositories: str, more: str = "embedding: {provider: none}") -> str:
    return "\n".join([more, "repositories:", *(f"  - {{{each}}}" for each in repositories), ""])


def begins_to_sync(person: Person, pod: Pod, repository: GitRepository, embeddings: EmbeddingServer) -> None:
    """The daemon's first sync of `app` waits for the embedding server."""
    repository.commit({"a.py": b"def first(): pass\n"})
    person.configures(registry(f"name: app, path: '{repository.path}', {QUIET}", more=embeddings.registry))
    pod.start()
    embeddings.wait_for_waiting(1)


def test_a_registered_repository_is_indexed_at_once_and_again_at_every_tick(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository
):
    repository.commit({"a.py": b"def first(): pass\n"})
    person.configures(registry(f"name: app, path: '{repository.path}', schedule: every 2 seconds"))

    pod.start()
    until(lambda: log.ended("app"), details=pod.log_tail)
    head = repository.commit({"b.py": b"def second(): pass\n"})
    until(lambda: [run for run in log.ended("app") if run.commit_after == head], details=pod.log_tail)

    assert person.lists("search", "second")[0]["path"] == "b.py"
    ticks = [run.scheduled_for for run in log.runs("app") if run.scheduled_for]
    assert ticks == sorted(set(ticks))
    assert all(tick.second % 2 == 0 and tick.microsecond == 0 for tick in ticks)
    assert pod.terminate() == 0
    assert {run.status for run in log.runs()} == {"completed"}


def test_the_registry_file_is_followed_without_a_restart(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, tmp_path: Path
):
    repository.commit({"a.py": b"x = 1\n"})
    other = GitRepository.create(tmp_path / "other.git")
    other.commit({"b.py": b"y = 2\n"})
    first, second = f"name: one, path: '{repository.path}', {QUIET}", f"name: two, path: '{other.path}', {QUIET}"
    # As a ConfigMap is mounted: the name is a link to a link that is swapped.
    for version, text in (("v1", registry(first)), ("v2", registry(first, second))):
        (person.home / version).mkdir()
        (person.home / version / "repositories.yaml").write_text(text)
    (person.home / "..data").symlink_to("v1")
    (person.home / "repositories.yaml").symlink_to("..data/repositories.yaml")
    pod.start()
    until(lambda: log.ended("one"), details=pod.log_tail)

    (person.home / "..next").symlink_to("v2")
    (person.home / "..next").rename(person.home / "..data")
    until(lambda: log.ended("two"), details=pod.log_tail)

    # A file that is wrong changes nothing, and is reported.
    (person.home / "v2" / "repositories.yaml").write_text("repositories: [{nam: x}]\n")
    until(lambda: pod.health()["status"] == "degraded", details=pod.log_tail)
    assert "repositories.yaml:1" in pod.health()["components"]["registry"]["reason"]
    assert pod.metric("reposync_registry_reloads_total", result="invalid") == 1
    assert {each["state"] for each in person.lists("repos", "list")} == {"active"}

    (person.home / "v2" / "repositories.yaml").write_text(registry(second))
    wanted = {"one": "inactive", "two": "active"}
    until(lambda: {each["name"]: each["state"] for each in person.lists("repos", "list")} == wanted)
    until(lambda: pod.health()["status"] == "ok", details=pod.log_tail)
    assert len(log.ended("one")) == 1  # its history stays


def test_commands_reach_the_running_daemon(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, embeddings: EmbeddingServer
):
    repository.commit({"a.py": b"def first(): pass\n"})
    person.applies(embeddings.registry)
    pod.start()

    added = person.asks("repos", "add", "app", "--path", str(repository.path), "--schedule", "every 2 seconds")
    assert (added["state"], added["schedule"]) == ("active", "every 2 seconds")
    until(lambda: log.ended("app"), details=pod.log_tail)
    again = person.types("repos", "add", "app", "--path", str(repository.path), exit_code=4)
    assert "There is a repository 'app' already" in again.stderr

    person.types("repos", "pause", "app")
    until(lambda: not [run for run in log.runs("app") if run.status in ("queued", "running")])
    paused = len(log.runs("app"))
    # A person may sync it all the same; the clock may not.
    (run,) = person.lists("sync", "app")
    assert run["status"] == "completed"
    assert len(log.runs("app")) == paused + 1

    person.types("repos", "resume", "app")
    until(lambda: len(log.ended("app")) > paused + 1, details=pod.log_tail)

    removed = person.asks("repos", "remove", "app", "--yes")
    assert (removed["status"], removed["files_deleted"]) == ("completed", 1)
    assert removed["worker"].startswith("laptop:")
    assert person.lists("repos", "list") == []
    assert log.runs("app")  # the history stays
    gone = len(log.runs("app"))
    repository.commit({"b.py": b"x\n"})
    assert len(log.runs("app")) == gone


def test_sigterm_gives_a_run_time_to_end(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, embeddings: EmbeddingServer
):
    with embeddings.holding():
        begins_to_sync(person, pod, repository, embeddings)
        pod.signals()
        until(lambda: pod.events("waiting for active runs"), details=pod.log_tail)
    assert pod.ends() == 0
    (run,) = log.runs("app")
    assert (run.status, run.attempt) == ("completed", 1)


def test_a_second_signal_hands_the_run_back_at_once_and_the_next_start_goes_on_with_it(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, embeddings: EmbeddingServer
):
    with embeddings.holding():
        begins_to_sync(person, pod, repository, embeddings)
        pod.signals(signal.SIGINT)
        until(lambda: pod.events("waiting for active runs"), details=pod.log_tail)
        pod.signals(signal.SIGINT)
        assert pod.ends() == 0
    (run,) = log.runs("app")
    assert run.status == "queued"

    pod.start()
    (run,) = until(lambda: log.ended("app"), details=pod.log_tail)
    assert [each.outcome for each in log.attempts(run)] == ["released", "completed"]
    assert run.max_attempts == 4  # the attempt that was handed back does not count


def test_a_source_that_fails_is_tried_again_then_given_up_and_can_be_sent_back(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, tmp_path: Path
):
    repository.commit({"a.py": b"x = 1\n"})
    secret = "glpat-Xk3vTq9sLmN2pRw7"
    person.environment["GITLAB_TOKEN"] = secret
    pod.environment = {"GITLAB_TOKEN": secret}
    with GitLabServer() as gitlab:
        project = gitlab.add_project("platform/app", repository.path)
        gitlab.add_token(secret, scopes=("read_api", "read_repository"))
        patience = "daemon: {max_attempts: 2, retry_seconds: 0.2, retry_max_seconds: 0.2}"
        server = f'gitlab: [{{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}"}}]'
        healthy = GitRepository.create(tmp_path / "healthy.git")
        healthy.commit({"b.py": b"y = 2\n"})
        person.configures(
            registry(
                f"name: app, gitlab: main, project: platform/app, {QUIET}",
                f"name: healthy, path: '{healthy.path}', schedule: every 2 seconds",
                more=f"{server}\nembedding: {{provider: none}}\n{patience}",
            )
        )
        project.repository.path.rename(tmp_path / "away")  # every answer about it is an error of the server
        pod.start()
        (run,) = until(lambda: log.ended("app", "failed"), 90, details=pod.log_tail)
        assert run.attempt == 2
        assert [each.outcome for each in log.attempts(run)] == ["retrying", "failed"]
        assert run.error_code
        before = len(log.ended("healthy"))
        until(lambda: len(log.ended("healthy")) > before, details=pod.log_tail)  # nobody else is disturbed

        (tmp_path / "away").rename(project.repository.path)
        assert person.asks("runs", "retry", run.id)["status"] in ("queued", "running", "completed")
        (run,) = until(lambda: log.ended("app"), details=pod.log_tail)
        assert run.attempt == 3
        refused = person.types("runs", "retry", run.id, exit_code=4)
        assert "only a failed or cancelled run can be tried again" in refused.stderr
        shown = person.types("runs", "show", run.id).stdout
        assert "attempts:" in shown and "retrying" in shown
        gitlab.crashes.clear()
    lines = [line for line in pod.lines if line.get("repository") == "app"]
    assert lines and all(line["pod"] == "laptop" and line["run"] for line in lines)
    assert secret not in "\n".join(pod.text)


@pytest.mark.full
def test_old_history_is_deleted_and_what_is_indexed_stays(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository
):
    repository.commit({"a.py": b"x = 1\n"})
    entry = f"name: app, path: '{repository.path}', {QUIET}"
    person.configures(registry(entry))
    pod.start()
    (first,) = until(lambda: log.ended("app"), details=pod.log_tail)
    assert pod.terminate() == 0

    tenth_of_a_second = f"{0.1 / 86_400:.9f}"
    more = f"embedding: {{provider: none}}\ndaemon: {{history_days: {tenth_of_a_second}}}"
    person.configures(registry(entry, more=more))
    pod.start()
    until(lambda: first.id not in {run.id for run in log.runs("app")}, details=pod.log_tail)
    assert person.asks("repos", "show", "app")["last_commit"] == repository.head()


@pytest.mark.full
def test_one_huge_repository_lets_small_ones_go_first_and_then_goes_on(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, tmp_path, embeddings: EmbeddingServer
):
    repository.many(3_000)
    small = GitRepository.create(tmp_path / "small.git")
    small.commit({"a.py": b"def small(): pass\n"})
    server = (
        f'embedding: {{provider: openai, url: "{embeddings.url}", model: test/words, dimensions: 64, batch: 50, '
        "concurrency: 1}\ndaemon: {concurrency: 1, fair_share_seconds: 1}"
    )
    huge = f"name: huge, path: '{repository.path}', {QUIET}"
    person.configures(registry(huge, more=server))
    pod.start()
    until(lambda: len(embeddings.inputs) > 800, details=pod.log_tail)
    with embeddings.holding():
        person.configures(registry(huge, f"name: small, path: '{small.path}', {QUIET}", more=server))
        until(lambda: log.runs("small") and log.runs("small")[0].status == "running", details=pod.log_tail)
    (run,) = until(lambda: log.ended("huge"), 120, details=pod.log_tail)

    attempts = log.attempts(run)
    assert [each.outcome for each in attempts] == ["yielded", "completed"]
    (first_small,) = log.ended("small")
    assert first_small.completed_at < run.completed_at
    # It went on from where it was.
    assert run.files_processed == 3_000 == sum(each.files_processed for each in attempts)
    assert attempts[0].chunks_embedded > 0 < attempts[1].chunks_embedded


@pytest.mark.full
def test_each_push_during_a_long_change_of_the_model_is_searchable_after_the_next_share(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository, embeddings: EmbeddingServer
):
    embeddings.other_models = frozenset({"test/words", "test/other"})
    repository.many(2_500)
    server = (
        f'embedding: {{provider: openai, url: "{embeddings.url}", model: test/words, dimensions: 64, batch: 50, '
        "concurrency: 1}\ndaemon: {concurrency: 2, fair_share_seconds: 1}"
    )
    app = f"name: app, path: '{repository.path}', {QUIET}"
    person.configures(registry(app, more=server))
    pod.start()
    until(lambda: log.ended("app"), 120, details=pod.log_tail)
    assert pod.terminate() == 0
    embeddings.forget()
    person.configures(registry(app, more=server.replace("test/words", "test/other")))
    pod.start()
    until(lambda: pod.posts("/api/v1/repositories/app/sync").status_code == 202, details=pod.log_tail)

    def yields() -> int:
        return sum(attempt.outcome == "yielded" for run in log.runs("app") for attempt in log.attempts(run))

    for word in ("omega", "sigma"):
        before = len(embeddings.inputs), yields()
        until(lambda: len(embeddings.inputs) > before[0] + 200, details=pod.log_tail)  # noqa: B023
        with embeddings.holding():
            head = repository.commit({f"{word}.py": f"def {word}():\n    return 24\n".encode()})
            assert pod.posts("/api/v1/repositories/app/sync").status_code == 202
            until(lambda: yields() > before[1], details=pod.log_tail)  # noqa: B023
        until(lambda: any(word in text for text in embeddings.inputs), details=pod.log_tail)  # noqa: B023
        with embeddings.holding():
            until(lambda: person.asks("index", "status", "app")["live"]["commit"] == head, details=pod.log_tail)  # noqa: B023
            found = person.asks("index", "status", "app")
            (match,) = person.asks("grep", word)["items"]
        assert (found["live"]["model"], found["building"]["model"]) == ("test/words", "test/other")
        assert match["path"] == f"{word}.py"
    until(lambda: person.asks("index", "status", "app")["live"]["model"] == "test/other", 120, details=pod.log_tail)
    for word in ("omega", "sigma"):
        assert person.asks("grep", word)["items"][0]["path"] == f"{word}.py"
        assert sum(word in text for text in embeddings.inputs) == 2, "once for each model"


def test_a_port_that_is_taken_or_open_to_everybody_is_refused(person: Person, pod: Pod):
    person.configures("embedding: {provider: none}\n")
    pod.start()
    port = pod.url.rpartition(":")[2]
    taken = person.types("serve", "--port", port, exit_code=2)
    assert port in taken.stderr
    exposed = person.types("serve", "--host", "0.0.0.0", exit_code=2)
    assert "REPOSYNC_API_TOKEN" in exposed.stderr


def test_a_daemon_does_as_many_searches_at_a_time_as_the_registry_says(
    person: Person, pod: Pod, repository: GitRepository, embeddings: EmbeddingServer
):
    repository.commit({"a.py": b"def first(): pass\n"})
    searches = "http: {searches: 3}\n"
    person.applies(registry(f"name: app, path: '{repository.path}'", more=embeddings.registry + searches))
    person.types("sync")
    with pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        embeddings.forget()
        with ThreadPoolExecutor(6) as clients:
            with embeddings.holding():
                asked = [clients.submit(pod.gets, f"/api/v1/search?q=word{number}") for number in range(6)]
                embeddings.wait_for_waiting(3)
            assert {each.result().status_code for each in asked} == {200}
    assert embeddings.most_at_once == 3


def test_a_database_that_another_process_holds_locked_is_reported_until_it_is_released(
    person: Person, pod: Pod, repository: GitRepository
) -> None:
    person.configures(registry(f"name: app, path: '{repository.path}', {QUIET}"))
    pod.start()
    until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
    other = sqlite3.connect(person.home / "state" / "reposync.db", isolation_level=None, timeout=60.0)
    other.execute("BEGIN IMMEDIATE")

    until(lambda: pod.gets("/readyz").status_code == 503, details=pod.log_tail)
    reported = pod.health()["components"]["database"]
    assert (reported["status"], "holds the write lock for too long" in reported["reason"]) == ("down", True)
    assert pod.gets("/healthz").status_code == 200

    other.execute("ROLLBACK")
    other.close()
    until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
    assert pod.terminate() == 0


def test_sighup_reads_the_registry_file_again_and_ends_nothing(
    person: Person, pod: Pod, log: ExecutionLog, repository: GitRepository
):
    repository.commit({"a.py": b"x = 1\n"})
    entry = f"name: app, path: '{repository.path}', schedule: {{}}"
    person.configures(registry(entry.format("yearly")))
    pod.start()
    until(lambda: log.ended("app"), details=pod.log_tail)
    before = person.asks("repos", "show", "app")["schedule"]

    # A change that no poll notices: the same size, the same time.
    file = person.home / "repositories.yaml"
    seen = file.stat()
    file.write_text(registry(entry.format("hourly")))
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    pod.signals(signal.SIGHUP)

    until(lambda: person.asks("repos", "show", "app")["schedule"] != before, details=pod.log_tail)
    assert pod.terminate() == 0
