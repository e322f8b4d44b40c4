"""A GitLab group in the registry file: its projects are there without anybody naming them."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

SECRET = "glpat-Gq8wZt3nKp5LxR2v"


@pytest.fixture
def gitlab() -> Generator[GitLabServer, None, None]:
    with GitLabServer() as server:
        server.add_token(SECRET, scopes=("read_api", "read_repository"))
        yield server


@pytest.fixture
def project(gitlab: GitLabServer, tmp_path: Path):
    def add(path: str, **reported):
        repository = GitRepository.create(tmp_path / f"{path.replace('/', '-')}.git")
        repository.commit({"main.py": f"def {path.rpartition('/')[2]}(): pass\n".encode()})
        return gitlab.add_project(path, repository.path, **reported)

    return add


@pytest.fixture
def configured(person: Person, gitlab: GitLabServer) -> Person:
    person.environment["GITLAB_TOKEN"] = SECRET
    person.applies(
        f'gitlab: [{{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}"}}]\n'
        "embedding: {provider: none}\n"
        "groups:\n"
        "  - {gitlab: main, group: platform, exclude: ['platform/secret'], schedule: yearly,\n"
        "     discover: every 2 seconds}\n"
    )
    return person


def test_sync_finds_the_projects_of_the_group_and_indexes_them(configured: Person, project):
    project("platform/api")
    project("platform/web/shop")
    project("platform/secret")
    project("platform/old", archived=True)
    project("elsewhere/app")

    runs = configured.lists("sync")

    assert [(run["repository"], run["status"]) for run in runs] == [
        ("platform/api", "completed"),
        ("platform/web/shop", "completed"),
    ]
    assert configured.lists("search", "shop")[0]["repository"] == "platform/web/shop"


def test_a_group_is_registered_and_removed_by_command_with_and_without_a_daemon(
    log: ExecutionLog, configured: Person, project
):
    project("platform/api")
    project("labs/one")
    settings = ("--gitlab", "main", "--schedule", "yearly")
    assert configured.asks("groups", "set", "labs", *settings)["origin"] == "command"
    assert {run["repository"] for run in configured.lists("sync")} == {"labs/one", "platform/api"}
    assert configured.asks("groups", "remove", "labs")["deactivated"] == ["labs/one"]

    with Pod("pod", configured.home, {"GITLAB_TOKEN": SECRET}) as pod:
        project("labs/two")
        configured.asks("groups", "set", "labs", *settings, "--exclude", "one")
        until(lambda: log.ended("labs/two"), details=pod.log_tail)
        shown = {group["group"]: group["repositories"] for group in configured.lists("groups", "list")}
        assert shown == {"labs": 1, "platform": 1}
        assert configured.asks("groups", "remove", "labs")["deactivated"] == ["labs/two"]


def test_the_daemon_follows_projects_that_come_move_and_go(configured: Person, log: ExecutionLog, project):
    api, shop = project("platform/api"), project("platform/shop")
    with Pod("pod", configured.home, {"GITLAB_TOKEN": SECRET}) as pod:
        until(lambda: log.ended("platform/api") and log.ended("platform/shop"), details=pod.log_tail)

        project("platform/new")
        shop.path = "platform/store"
        api.archived = True
        until(lambda: log.ended("platform/new") and log.runs("platform/store"), details=pod.log_tail)
        until(lambda: "paused" in {each["state"] for each in configured.lists("repos", "list")}, details=pod.log_tail)

        shown = {each["name"]: each for each in configured.lists("repos", "list")}
        assert set(shown) == {"platform/api", "platform/new", "platform/store"}
        assert shown["platform/api"]["state"] == "paused"
        assert "archived" in shown["platform/api"]["paused_reason"]
        # The index of both stays; the moved one is found under its new name.
        assert {hit["repository"] for hit in configured.lists("search", "shop")} >= {"platform/store"}
        assert pod.metric("reposync_group_discoveries_total", result="ok") >= 1

        # What is still in the group comes back by itself; what left it goes with a person's word.
        refused = configured.types("repos", "remove", "platform/new", "--yes", exit_code=4)
        assert "exclude" in refused.stderr
        assert configured.asks("repos", "remove", "platform/api", "--yes")["status"] == "completed"
        assert SECRET not in "\n".join(pod.text)
