"""`reposync serve` with `access: gitlab`, as a reader sees it: from the registry file to a removal."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.gitlab_server.state import Hook
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

INDEXER, SECRET, SERVICE = "glpat-indexer-of-everything", "a-secret-of-system-hooks-1", "service-51be07c3d9aa"
REGISTRY = """
embedding: {{provider: none}}
gitlab:
  - {{name: main, url: "{url}", token: "${{GITLAB_TOKEN}}", webhook_secret: "${{HOOK_SECRET}}"}}
http: {{access: gitlab, gitlab: main}}
repositories:
  - {{name: app, gitlab: main, project: platform/app, schedule: yearly}}
  - {{name: other, gitlab: main, project: platform/other, schedule: yearly}}
"""


@pytest.fixture
def gitlab(repository: GitRepository) -> Iterator[GitLabServer]:
    repository.commit({"a.py": b"def first(): pass\n"})
    with GitLabServer() as gitlab:
        gitlab.add_token(INDEXER, scopes=("read_api", "read_repository"))
        for number, path in ((7, "platform/app"), (8, "platform/other")):
            gitlab.add_project(path, repository.path, id=number)
        yield gitlab


def test_a_reader_sees_their_project_until_they_are_removed_from_it(
    person: Person, pod: Pod, log: ExecutionLog, gitlab: GitLabServer
) -> None:
    ada, project = gitlab.rights.add_user("ada"), gitlab.project_at("platform/app")
    assert project is not None
    project.members[ada.id] = 20
    gitlab.add_token("glpat-of-ada", user=ada)
    person.configures(REGISTRY.format(url=gitlab.url))
    pod.environment = {"GITLAB_TOKEN": INDEXER, "HOOK_SECRET": SECRET, "REPOSYNC_API_TOKEN": SERVICE}
    pod.start()
    for name in ("app", "other"):
        until(lambda name=name: log.ended(name), details=pod.log_tail)  # type: ignore[misc]

    def found(token: str) -> tuple[int, set[str]]:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{pod.url}/api/v1/search?q=first", headers=headers, timeout=PATIENCE_SECONDS)
        return answer.status_code, {hit["repository"] for hit in answer.json().get("items", [])}

    assert found("glpat-of-ada") == (200, {"app"})
    assert found(SERVICE) == (200, {"app", "other"})
    assert (found("glpat-of-nobody")[0], httpx.get(f"{pod.url}/api/v1/runs").status_code) == (401, 401)
    gitlab.system_hooks.hooks = [Hook(1, f"{pod.url}/api/v1/webhooks/gitlab-system", token=SECRET)]
    project.members.clear()
    (delivery,) = gitlab.system_hooks.team("user_remove_from_team", ada, project)

    assert json.loads(delivery.answer) == {"status": "forgotten"}
    assert found("glpat-of-ada")[1] == set()
    assert pod.terminate() == 0
    text = "\n".join(pod.text)
    assert not [secret for secret in ("glpat-of-ada", "glpat-of-nobody", INDEXER, SECRET) if secret in text]
