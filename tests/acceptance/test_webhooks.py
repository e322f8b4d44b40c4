"""A push on GitLab, as a person sees it: the hook is installed by a command, and a daemon syncs at once."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator

import pytest

from reposync.config.database_url import sqlite_url
from tests.acceptance.conftest import Person
from tests.fixtures.gitlab_server import Change, GitLabServer, Project
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

TOKEN, ADMIN, SECRET = "glpat-reader-of-everything", "glpat-maintainer-of-all", "a-secret-of-webhooks-1"
PUBLIC = "https://reposync.example.com"
ADDRESS = f"{PUBLIC}/api/v1/webhooks/gitlab"


@pytest.fixture
def gitlab(person: Person) -> Iterator[GitLabServer]:
    with GitLabServer() as gitlab:
        gitlab.add_token(TOKEN, scopes=("read_api", "read_repository"))
        gitlab.add_token(ADMIN, scopes=("api",), user="grace")
        person.environment |= {
            "GITLAB_TOKEN": TOKEN,
            "HOOK_SECRET": SECRET,
            "HOOK_ADMIN": ADMIN,
            "REPOSYNC_STATE_DIR": str(person.home / "state"),
        }
        yield gitlab


@pytest.fixture
def project(gitlab: GitLabServer, repository: GitRepository) -> Project:
    repository.commit({"a.py": b"def first(): pass\n"})
    return gitlab.add_project("platform/app", repository.path, id=42)


def registry(gitlab: GitLabServer, *entries: str) -> str:
    lines = [
        "embedding: {provider: none}",
        "gitlab:",
        f'  - {{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}", webhook_secret: "${{HOOK_SECRET:-}}"}}',
        "repositories:",
        *(f"  - {{{each}, schedule: yearly}}" for each in entries),
    ]
    return "\n".join(lines) + "\n"


APP = "name: app, gitlab: main, project: platform/app"


@pytest.fixture
def pod(person: Person) -> Generator[Pod, None, None]:
    pod = Pod("laptop", person.home)
    try:
        yield pod
    finally:
        pod.__exit__(None, None, None)


def test_a_push_is_synced_at_once_by_the_daemon_that_the_installed_hook_leads_to(
    person: Person, pod: Pod, gitlab: GitLabServer, project: Project, repository: GitRepository
) -> None:
    person.configures(registry(gitlab, APP))
    log = ExecutionLog(sqlite_url(person.home / "state" / "reposync.db"))
    pod.environment = {"GITLAB_TOKEN": TOKEN, "HOOK_SECRET": SECRET}
    pod.start()
    (first,) = until(lambda: log.ended("app"), details=pod.log_tail)
    assert pod.url is not None
    (done,) = person.asks("webhooks", "install", "--url", pod.url, "--token-variable", "HOOK_ADMIN")
    assert (done["done"], done["project"], done["repositories"]) == ("created", "platform/app", ["app"])

    project.move("elsewhere/app")
    before, after = repository.head(), repository.commit({"b.py": b"def second(): pass\n"})
    (delivery,) = gitlab.webhooks.push(project, Change("main", before, after))

    assert delivery.status == 202, delivery.answer
    (reported,) = json.loads(delivery.answer)["runs"]
    (run,) = until(lambda: [each for each in log.ended("app") if each.id != first.id], details=pod.log_tail)
    assert (run.id, run.trigger, run.commit_after) == (reported["run_id"], "webhook", after)
    assert person.asks("search", "second")[0]["path"] == "b.py"
    again = gitlab.webhooks.again(project, delivery)
    assert (again.status, json.loads(again.answer)["ignored"][0]["reason"]) == (200, "already_indexed")
    assert SECRET not in "\n".join(pod.text)


def test_hooks_are_installed_and_renewed(
    person: Person, gitlab: GitLabServer, project: Project, repository: GitRepository
) -> None:
    gitlab.add_project("platform/two", repository.path, id=43)
    gitlab.add_project("platform/forbidden", repository.path, id=44)
    gitlab.tokens[ADMIN].projects = frozenset({42, 43})
    person.applies(
        registry(
            gitlab,
            f"{APP}, branch: main",
            "name: dev, gitlab: main, project: platform/app, branch: dev",
            "name: two, gitlab: main, project: platform/two, branch: main",
            "name: forbidden, gitlab: main, project: platform/forbidden",
            "name: here, path: .",
        )
    )
    common = ("--url", PUBLIC, "--token-variable", "HOOK_ADMIN")

    planned = person.types("webhooks", "install", "app", "two", *common, "--dry-run").stdout
    assert (
        planned == "project platform/app (app, dev): would be created\nproject platform/two (two): would be created\n"
    )
    assert project.hooks == {}
    # One without rights stops no other, and is reported.
    partly = person.types("webhooks", "install", *common, exit_code=1)
    assert partly.stdout.count(": created") == 2
    assert "platform/forbidden was not found" in partly.stderr
    again = person.types("webhooks", "install", "dev", "two", *common).stdout
    assert again.count("unchanged") == 2

    # Two branches of a project: the hook reports pushes to all branches.
    assert [hook.branch_filter for hook in project.hooks.values()] == [""]
    person.environment["HOOK_SECRET"] = "another-secret-of-webhooks"
    (renewed,) = person.asks("webhooks", "install", "app", *common)
    assert (renewed["done"], project.hooks[1].token) == ("updated", "another-secret-of-webhooks")


def test_a_group_gets_one_hook_for_all_of_its_projects(person: Person, gitlab: GitLabServer, project: Project) -> None:
    person.applies(registry(gitlab, APP))
    install = ("webhooks", "install", "--group", "platform", "--url", PUBLIC, "--token-variable", "HOOK_ADMIN")
    assert [person.asks(*install)[0]["done"] for _ in range(2)] == ["created", "unchanged"]
    assert [hook.url for hook in gitlab.group_hooks["platform"].values()] == [ADDRESS]

    gitlab.edition = "free"
    refused = person.types(*install, exit_code=1).stderr
    assert "GitLab Premium" in refused


def test_what_cannot_work_is_told_before_anything_is_made(
    person: Person, gitlab: GitLabServer, project: Project
) -> None:
    person.applies(registry(gitlab, APP, "name: here, path: ."))

    def refused(*words: str, exit_code: int = 2) -> str:
        return person.types("webhooks", "install", *words, exit_code=exit_code).stderr

    assert "is not a project of a configured GitLab server" in refused("here", "--url", PUBLIC)
    assert "Did you mean 'app'?" in refused("ap", "--url", PUBLIC, exit_code=3)
    assert "no http:// or https:// address" in refused("--url", "reposync.example.com")
    assert "must not contain a user, password" in refused("--url", "https://me:secret@reposync.example.com")
    assert "HOOK_ADM is not set" in refused("--url", PUBLIC, "--token-variable", "HOOK_ADM")
    reader = person.types("webhooks", "install", "--url", "http://reposync.example.com", exit_code=1).stderr
    assert "lacks the scope api" in reader
    assert "warning: over http://" in reader
    person.environment["HOOK_SECRET"] = ""
    assert "has no secret for webhooks" in refused("--url", PUBLIC)
    assert project.hooks == {}
