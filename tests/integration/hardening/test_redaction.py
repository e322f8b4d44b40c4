"""Servers that quote in their refusals what they were sent, secrets and all: these are seen nowhere."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from reposync.app.application import Application
from reposync.config.settings import Settings
from reposync.errors import SecretMissing, SourceError
from reposync.store.endings import Fail, HandBack, Retry
from reposync.store.run import Ask, Run, RunFigures, RunProblem
from reposync.store.status import RunTrigger
from tests.acceptance.conftest import Person
from tests.fixtures.applied import open_applied
from tests.fixtures.gitlab_server.serving import ThreadedServer
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

# In the shapes in which their makers give them out; none was ever valid.
GITLAB_TOKEN = "glpat-Zk3vQ9xW7yL2mN4pR6tB.01.0w1abcd9z"
WEBHOOK_SECRET = "7f3c9a1e5b8d2f4a6c0e1b3d5f7a9c2e"
EMBEDDING_KEY = "sk-proj-A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6"
QDRANT_KEY = "eyJhbGciOiJIUzI1NiJ9.eyJhY2Nlc3MiOiJydyJ9.kP3q9vXz1Lw8Yt5Rb2Nc7Ms4Jd6Hf0Ge"
API_TOKEN = "5d1e8c3b7a9f2046e8b1c3d5f7092a4c"
GIT_PASSWORD = "plain-Pa55word-of-a-person"
PROXY_PASSWORD = "plain-Pa55word-of-a-proxy"
SECRETS = (PROXY_PASSWORD, GITLAB_TOKEN, WEBHOOK_SECRET, EMBEDDING_KEY, QDRANT_KEY, API_TOKEN, GIT_PASSWORD)

CONFIGURATION = """
gitlab:
  - {{name: main, url: "{url}", token: "${{GITLAB_TOKEN}}", webhook_secret: "${{WEBHOOK_SECRET}}"}}
embedding: {{provider: openai, url: "{url}/v1", model: m, dimensions: 8, api_key: "${{EMBEDDING_KEY}}"}}
qdrant: {{url: "{url}"}}
daemon: {{max_attempts: 1}}
repositories:
  - {{name: of-gitlab, gitlab: main, project: platform/payments-api}}
  - {{name: of-git, git: "{url}/handbook.git", username: reader, password: "${{GIT_PASSWORD}}"}}
  - {{name: here, path: "{path}"}}
"""


class Parrot:
    """Refuses everything, and says in all the places where one of our servers says why what it was asked."""

    def __init__(self) -> None:
        self.heard = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Request(scope).headers
        headers = "; ".join(f"{name}: {value}" for name, value in given.items())
        scheme, _, credentials = given.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            headers += f"; from {base64.b64decode(credentials).decode()}"
        self.heard += headers
        told = f"cannot understand {headers}"
        body = {"message": told, "error": {"message": told}, "status": {"error": told}, "detail": told}
        await JSONResponse(body, 400)(scope, receive, send)


@pytest.fixture
def parrot() -> Iterator[tuple[Parrot, str]]:
    server, parrot = ThreadedServer(), Parrot()
    server.serve(parrot)
    yield parrot, server.url
    server.stop()


@pytest.mark.full
def test_no_secret_is_in_logs_history_pages_answers_or_files(
    parrot: tuple[Parrot, str], person: Person, repository: GitRepository, tmp_path: Path
) -> None:
    heard, url = parrot
    repository.commit({"a.py": b"def a():\n    return 1\n"})
    environment = {
        "GITLAB_TOKEN": GITLAB_TOKEN,
        "WEBHOOK_SECRET": WEBHOOK_SECRET,
        "EMBEDDING_KEY": EMBEDDING_KEY,
        "REPOSYNC_QDRANT_API_KEY": QDRANT_KEY,
        "REPOSYNC_API_TOKEN": API_TOKEN,
        "GIT_PASSWORD": GIT_PASSWORD,
        "REPOSYNC_STATE_DIR": str(tmp_path / "pod" / "state"),
        "HTTPS_PROXY": f"http://worker:{PROXY_PASSWORD}@127.0.0.1:1",
    }
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod" / "repositories.yaml").write_text(CONFIGURATION.format(url=url, path=repository.path))
    bearer = {"Authorization": f"Bearer {API_TOKEN}"}
    seen: dict[str, str] = {}

    with Pod("parrots", tmp_path / "pod", environment, ("--log-level", "DEBUG")) as pod:

        def failed() -> bool:
            runs = pod.gets("/api/v1/runs", headers=bearer).json().get("items", [])
            return len(runs) >= 3 and all(run["error_code"] for run in runs)

        until(failed, details=pod.log_tail)
        for path in ("/api/v1/runs", "/api/v1/repositories", "/readyz", "/metrics"):
            seen[path] = pod.gets(path, headers=bearer).text
        for run in pod.gets("/api/v1/runs", headers=bearer).json()["items"]:
            seen[f"run of {run['repository']}"] = pod.gets(f"/api/v1/runs/{run['id']}", headers=bearer).text
        seen["search"] = pod.gets("/api/v1/search?q=x", headers=bearer).text
        wrong = {"X-Gitlab-Token": f"{WEBHOOK_SECRET}-not", "X-Gitlab-Event": "Push Hook"}
        seen["webhook"] = pod.gets(f"/api/v1/webhooks/gitlab?token={GITLAB_TOKEN}", headers=wrong).text
        seen["not found"] = pod.gets(f"/api/v1/runs/{GITLAB_TOKEN[:20]}?private_token={GITLAB_TOKEN}").text
        assert pod.terminate() == 0
        seen["log"] = "\n".join(pod.text)

    person.environment |= environment | {"REPOSYNC_CONFIG": str(tmp_path / "pod" / "repositories.yaml")}
    for words in (("sync", "here"), ("search", "x"), ("history", "--json")):
        done = person.types(*words, exit_code=None)
        seen[" ".join(words)] = done.stdout + done.stderr
    for file in (tmp_path / "pod" / "state").glob("reposync.db*"):
        seen[file.name] = file.read_bytes().decode("latin-1")

    assert [secret for secret in (GITLAB_TOKEN, QDRANT_KEY, GIT_PASSWORD) if secret not in heard.heard] == []
    history = json.loads(seen["history --json"])["items"]
    assert all("cannot understand" in run["error_message"] for run in history if run["repository"] == "of-gitlab")
    assert [(where, secret) for where, text in seen.items() for secret in SECRETS if secret in text] == []
    assert [(where, secret) for where, text in seen.items() for secret in SECRETS if secret[8:-4] in text] == []


@pytest.fixture
async def handbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Application]:
    """A process with the password of a repository and a token, each in a variable of a name of its own."""
    monkeypatch.setenv("HANDBOOK_PASSWORD", GIT_PASSWORD)
    monkeypatch.setenv("OUR_GITLAB", API_TOKEN)
    registry = tmp_path / "repositories.yaml"
    registry.write_text(
        'gitlab: [{name: main, url: "https://gitlab.example.com", token: "${OUR_GITLAB}"}]\n'
        "embedding: {provider: none}\n"
        'repositories: [{name: handbook, git: "http://127.0.0.1:1/handbook.git", username: reader, '
        'password: "${HANDBOOK_PASSWORD}"}]\n'
    )
    environment = {"REPOSYNC_STATE_DIR": str(tmp_path / "state"), "REPOSYNC_CONFIG": str(registry)}
    with pytest.raises(SourceError) as refused:
        async with open_applied(Settings.from_environment(environment)) as app:
            yield app
            raise SourceError(f"The server quotes {API_TOKEN}.", remedy=f"Is {API_TOKEN} right?")
    assert str(refused.value) == "The server quotes ***. Is *** right?", "with which a command ends"


async def test_whatever_the_reason_no_secret_is_written_into_the_history(handbook: Application, tmp_path: Path) -> None:
    runs, why = handbook.runs, f"it was given {GIT_PASSWORD} and {API_TOKEN}"
    async with handbook.parts(await handbook.catalog.find("handbook")):
        pass

    async def claimed() -> Run:
        run, _ = await runs.enqueue("handbook", Ask(RunTrigger.COMMAND))
        found = await runs.claim("pod-1", 60.0, run_id=run.id)
        assert found is not None
        return found

    handed_back = await runs.end(await claimed(), HandBack(SecretMissing.code, why))
    again = await claimed()
    await runs.add_problems(again, [RunProblem("a.py", "failed", why)])
    retried = await runs.end(again, Retry("SOURCE_UNAVAILABLE", why, delay_seconds=0.0))
    failed = await runs.end(await claimed(), Fail("CONFIG_INVALID", why), RunFigures())

    said = [run.error_message for run in (handed_back, retried, failed)]
    said += [each.error_message for each in (await handbook.history.get(failed.id)).all_attempts]
    said += [each.detail for each in await handbook.history.problems(failed.id)]
    assert said == ["it was given *** and ***"] * 7
    kept = b"".join(file.read_bytes() for file in (tmp_path / "state").glob("reposync.db*"))
    assert b"it was given" in kept
    assert [each for each in (GIT_PASSWORD, API_TOKEN) if each.encode() in kept] == []
