"""A client that a generator makes of `/openapi.json` does everything that can be done and asked."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import Pod, until
from tests.fixtures.redis_server import RedisServer, redis_server  # noqa: F401
from tests.fixtures.repositories import GitRepository

SECRET, TOKEN = "glpat-Vb7nQe2wXk9sLd4m", "operate-secret-of-tests-7"
PACKAGE = "generated_reposync_client"
SESSION = b"def remove_expired(sessions):\n    return [one for one in sessions if one.is_valid]\n"
FILES = {"session.py": SESSION, **{f"module_{number}.py": b"x = %d\n" % number for number in range(40)}}


class Generated:
    """The functions of the client, by the names of the operations in the document."""

    def __init__(self, url: str) -> None:
        self.models: ModuleType = importlib.import_module(f"{PACKAGE}.models")
        document = httpx.get(f"{url}/openapi.json").json()
        described = [operation for methods in document["paths"].values() for operation in methods.values()]
        self.functions = {
            operation["operationId"]: importlib.import_module(
                f"{PACKAGE}.api.{operation['tags'][0]}.{operation['operationId']}"
            )
            for operation in described
        }
        make_client = importlib.import_module(PACKAGE).AuthenticatedClient
        self.client = make_client(url, TOKEN, raise_on_unexpected_status=True, timeout=httpx.Timeout(90))

    def __call__(self, operation: str, *path: str, **arguments: Any) -> Any:
        """The document of the answer, which is no error."""
        answer = self.functions[operation].sync(*path, client=self.client, **arguments)
        assert answer is not None and not isinstance(answer, self.models.ErrorAnswer), (operation, answer)
        return answer

    def refused(self, operation: str, *path: str, **arguments: Any) -> str:
        """The code of the error."""
        answer = self.functions[operation].sync(*path, client=self.client, **arguments)
        assert isinstance(answer, self.models.ErrorAnswer), answer
        return str(answer.error.code)


@pytest.fixture
def gitlab(tmp_path: Path) -> Iterator[GitLabServer]:
    with GitLabServer() as server:
        server.add_token(SECRET, scopes=("read_api", "read_repository"))
        yield server


@pytest.fixture
def do(
    tmp_path: Path,
    gitlab: GitLabServer,
    redis_server: RedisServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Generated]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "repositories.yaml").write_text(
        f'gitlab: [{{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}"}}]\n'
        "embedding: {provider: none}\ndefaults: {schedule: never}\n"
    )
    variables = {"GITLAB_TOKEN": SECRET, "REPOSYNC_API_TOKEN": TOKEN, "REPOSYNC_REDIS_URL": redis_server.url}
    with Pod("pod", home, variables) as pod:
        assert pod.url is not None
        (tmp_path / "generator.yaml").write_text("post_hooks: []\n")  # it is not formatted
        options = ("--meta", "none", "--config", tmp_path / "generator.yaml", "--fail-on-warning")
        made = subprocess.run(
            [
                *(sys.executable, "-m", "openapi_python_client", "generate", "--url", f"{pod.url}/openapi.json"),
                *("--output-path", tmp_path / "client" / PACKAGE, *options),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        monkeypatch.syspath_prepend(tmp_path / "client")
        generated = Generated(pod.url)
        with generated.client:
            yield generated


def test_a_generated_client_does_everything_that_can_be_done_and_asked(
    do: Generated, gitlab: GitLabServer, tmp_path: Path
) -> None:
    models = do.models
    repository = GitRepository.create(tmp_path / "app.git")
    commit = repository.commit(FILES)
    gitlab.add_project("team/app", repository.path)

    def ended(run: Any) -> str:
        over = ("completed", "failed", "cancelled", "blocked")
        return str(until(lambda: (status := do("get_run", run.id).status) in over and status))

    # register, sync, history, overview
    assert (
        do("register", body=models.NewRepository(name="team/app", gitlab="main", project="team/app")).state == "active"
    )
    run = do("sync", "team/app", wait=60)
    assert (run.status, run.commit_after, run.files_processed) == ("completed", commit, len(FILES))
    assert [item.id for item in do("history", repository="team/app").items] == [run.id]
    assert do("problems", run.id).items == []
    (overview,) = do("list_repositories").items
    assert (overview.name, overview.last_commit) == ("team/app", commit)
    assert do("get_repository", "team/app").files == len(FILES)
    assert [item.repository for item in do("indexes").items] == ["team/app"]
    assert do("repository_index", "team/app").repository == "team/app"
    assert do("wait", "team/app", commit=commit, timeout=10).relation == "same"

    # search, similar, grep, read, eval
    assert do("search", q="remove expired sessions").items[0].path == "session.py"
    assert do("search", like="team/app:module_1.py:1").items != []
    assert do("grep", q="remove_[a-z]+", repository=["team/app"]).items[0].path == "session.py"
    assert "def remove_expired" in do("read", "team/app", "session.py", start=1, end=1).text
    assert [one.name for one in do("outline", "team/app", path="session.py").symbols] == ["remove_expired"]
    question = models.AskedQuestion(question="remove expired sessions", repository="team/app", path="session.py")
    assert do("evaluate", body=models.Questions([question])).live.mrr == 1.0

    # change, pause, resume, put
    assert do("change", "team/app", body=models.Change(schedule="daily at 03:00")).cron_expression == "0 3 * * *"
    paused = do("change", "team/app", body=models.Change(is_active=False, paused_reason="migration"))
    assert (paused.state, paused.paused_reason) == ("paused", "migration")
    assert do("change", "team/app", body=models.Change(is_active=True)).state == "active"
    definition = models.NewRepository(name="team/app", gitlab="main", project="team/app", branch="missing")
    assert do("put_repository", "team/app", body=definition).definition["branch"] == "missing"

    # retry
    failed = do("sync", "team/app", wait=60)
    assert (failed.status, failed.error_code) == ("failed", "BRANCH_NOT_FOUND")
    do("change", "team/app", body=models.Change(branch=None))
    assert ended(do("retry", failed.id)) == "completed"
    assert do("retry_failed").items == []

    # verify, repair, approve
    assert do("verify", "team/app").exact
    assert ended(do("repair", "team/app", body=models.RepairOptions(full=True))) == "completed"
    repository.commit({path: None for path in FILES if path != "session.py"})
    assert do("plan", target="team/app").files_to_delete == len(FILES) - 1
    blocked = do("sync", "team/app", wait=60)
    assert (blocked.status, blocked.error_code) == ("blocked", "DELETION_BLOCKED")
    assert ended(do("approve", blocked.id)) == "completed"
    assert do("get_repository", "team/app").files == 1

    def held() -> Any:
        """A run whose GitLab does not answer."""
        gate = gitlab.faults.hold(path="", times=None)
        running = do("sync", "team/app", body=models.SyncOptions(full=True))
        until(lambda: [lock.run_id for lock in do("locks").items] == [running.id] and gate.arrived.is_set())
        return running

    # cancel, release
    running = held()
    do("cancel", running.id)
    assert ended(running) == "cancelled"
    gitlab.faults.clear()
    running = held()
    assert do("release", "team/app", force=True).released
    assert ended(running) == "cancelled"
    gitlab.faults.clear()

    # groups
    gitlab.add_project("labs/tool", repository.path)
    assert do("put_group", "labs", body=models.NewGroup(gitlab="main", schedule="never")).origin == "http"
    assert "labs/tool" in until(lambda: [row.name for row in do("list_repositories", name="labs/").items])
    assert [group.group for group in do("list_groups").items] == ["labs"]
    assert [group.problem for group in do("discover").groups] == [None]
    assert do("sync_target", body=models.Target("team/app")).repository == "team/app"
    assert do("targets", target=["team/app"]).items == ["team/app"]
    assert do("remove_group", "labs").deactivated == ["labs/tool"]

    # remove, and an error
    assert do("leftovers").items == []
    assert do("remove", "team/app").status == "completed"
    assert do.refused("get_repository", "team/app") == "REPOSITORY_NOT_FOUND"
    assert do("healthz") and do("readyz") and do("metrics")
