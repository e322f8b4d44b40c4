"""A push on GitLab, as a user sees it: a daemon syncs at once."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.gitlab_server import Change, GitLabServer, Project
from tests.fixtures.gitlab_server.state import Hook
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

TOKEN, SECRET = "glpat-reader-of-everything", "a-secret-of-webhooks-1"


@pytest.fixture
def gitlab(person: Person) -> Iterator[GitLabServer]:
    with GitLabServer() as gitlab:
        gitlab.add_token(TOKEN, scopes=("read_api", "read_repository"))
        person.environment |= {"GITLAB_TOKEN": TOKEN, "HOOK_SECRET": SECRET}
        yield gitlab


@pytest.fixture
def project(gitlab: GitLabServer, repository: GitRepository) -> Project:
    repository.commit({"a.py": b"def first(): pass\n"})
    return gitlab.add_project("platform/app", repository.path, id=42)


REGISTRY = """
embedding: {{provider: none}}
gitlab:
  - {{name: main, url: "{url}", token: "${{GITLAB_TOKEN}}", webhook_secret: "${{HOOK_SECRET:-}}"}}
repositories:
  - {{name: app, gitlab: main, project: platform/app, schedule: yearly}}
"""


def test_a_push_is_synced_at_once(
    person: Person,
    pod: Pod,
    log: ExecutionLog,
    gitlab: GitLabServer,
    project: Project,
    repository: GitRepository,
) -> None:
    person.configures(REGISTRY.format(url=gitlab.url))
    pod.environment = {"GITLAB_TOKEN": TOKEN, "HOOK_SECRET": SECRET}
    pod.start()
    (first,) = until(lambda: log.ended("app"), details=pod.log_tail)
    assert pod.url is not None
    project.hooks[1] = Hook(1, f"{pod.url}/api/v1/webhooks/gitlab", token=SECRET)
    project.move("billing/app")
    before, after = repository.head(), repository.commit({"b.py": b"def second(): pass\n"})
    (delivery,) = gitlab.webhooks.push(project, Change("main", before, after))

    assert delivery.status == 202, delivery.answer
    (reported,) = json.loads(delivery.answer)["runs"]
    (run,) = until(lambda: [each for each in log.ended("app") if each.id != first.id], details=pod.log_tail)
    assert (run.id, run.trigger, run.commit_after) == (reported["run_id"], "webhook", after)
    assert person.lists("search", "second")[0]["path"] == "b.py"
    again = gitlab.webhooks.again(project, delivery)
    assert (again.status, json.loads(again.answer)["ignored"][0]["reason"]) == (200, "already_indexed")
    assert SECRET not in "\n".join(pod.text)
