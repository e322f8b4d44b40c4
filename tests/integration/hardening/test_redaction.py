"""Servers that quote in their refusals what they were sent, secrets and all: these are seen nowhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tests.acceptance.conftest import Person
from tests.fixtures.gitlab_server.serving import ThreadedServer
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

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


def test_no_secret_is_in_logs_history_pages_answers_or_files(
    parrot: tuple[Parrot, str], person: Person, repository: GitRepository, tmp_path: Path
) -> None:
    heard, url = parrot
    repository.commit({"a.py": b"def a():\n    return 1\n"})
    environment = {
        "GITLAB_TOKEN": GITLAB_TOKEN,
        "WEBHOOK_SECRET": WEBHOOK_SECRET,
        "EMBEDDING_KEY": EMBEDDING_KEY,
        "QDRANT_API_KEY": QDRANT_KEY,
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
    history = json.loads(seen["history --json"])
    assert all("cannot understand" in run["error_message"] for run in history if run["repository"] == "of-gitlab")
    assert [(where, secret) for where, text in seen.items() for secret in SECRETS if secret in text] == []
    assert [(where, secret) for where, text in seen.items() for secret in SECRETS if secret[8:-4] in text] == []
