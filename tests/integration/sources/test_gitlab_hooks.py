"""Webhooks made through python-gitlab: once, however often, and in words where GitLab refuses."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from reposync.errors import SourceDenied, SourceError, SourceGone, SourceUnavailable
from reposync.outgoing import RetryPolicy
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.gitlab_hooks import ENDPOINT, GitLabHooks, HookPlace, HookWish, fingerprint
from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.gitlab_server.state import Hook
from tests.fixtures.repositories import GitRepository

TOKEN = "glpat-hooks"
URL = f"https://reposync.example.com{ENDPOINT}"
SIGNING = "whsec_" + base64.b64encode(b"k" * 32).decode()
PROJECT, GROUP = HookPlace("project", "platform/app", 42), HookPlace("group", "platform")

# Of GitLab's OpenAPI file, postApiV4ProjectsIdHooks, and of 19.0, which is younger than the file.
KNOWN_ATTRIBUTES = {
    *("branch_filter_strategy", "confidential_issues_events", "confidential_note_events", "custom_headers"),
    *("custom_webhook_template", "deployment_events", "description", "emoji_events", "enable_ssl_verification"),
    *("feature_flag_events", "issues_events", "job_events", "merge_requests_events", "milestone_events", "name"),
    *("note_events", "pipeline_events", "push_events", "push_events_branch_filter", "releases_events"),
    *("resource_access_token_events", "tag_push_events", "token", "url", "url_variables", "vulnerability_events"),
    *("wiki_page_events", "signing_token"),
}


def wish(
    url: str = URL, *, secret: str | None = "a-secret-of-hooks", signing: str | None = None, branch: str | None = None
) -> HookWish:
    held = [SecretStr(each) if each else None for each in (secret, signing)]
    return HookWish(url, *held, fingerprint(*held), branch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitLabServer]:
    repository = GitRepository.create(tmp_path / "app.git")
    with GitLabServer() as server:
        server.add_project("platform/app", repository.path, id=42)
        server.add_token(TOKEN, scopes={"api"})
        yield server


@pytest.fixture
def project(server: GitLabServer) -> Project:
    return server.projects[0]


@pytest.fixture
async def hooks(server: GitLabServer) -> AsyncIterator[GitLabHooks]:
    quick = RetryPolicy(attempts=2, first_delay_seconds=0.01, max_delay_seconds=0.01, max_wait_seconds=1)
    hooks = GitLabHooks(GitLabClient(server.url, token=SecretStr(TOKEN), retry=quick))
    yield hooks
    await hooks.close()


def writes(server: GitLabServer) -> list[str]:
    return [record.method for record in server.log if record.method != "GET"]


async def test_the_second_time_nothing_is_written(server: GitLabServer, project: Project, hooks: GitLabHooks) -> None:
    done = [(await hooks.ensure(PROJECT, wish(branch="main")))[0] for _ in range(3)]

    assert done == ["created", "unchanged", "unchanged"]
    assert writes(server) == ["POST"]
    (hook,) = project.hooks.values()
    assert (hook.url, hook.token, hook.branch_filter) == (URL, "a-secret-of-hooks", "main")
    assert (hook.push_events, hook.other_events, hook.enable_ssl_verification) == (True, set(), True)


async def test_only_attributes_that_gitlab_knows_are_sent(server: GitLabServer, hooks: GitLabHooks) -> None:
    await hooks.ensure(PROJECT, wish(signing=SIGNING, branch="main"))
    (sent,) = server.hook_attributes
    assert set(sent) <= KNOWN_ATTRIBUTES


@pytest.mark.parametrize(
    ("wanted", "changed"),
    [
        (wish(secret="another-secret-of-hooks"), {"token": "another-secret-of-hooks"}),
        (wish(f"https://elsewhere.example.com{ENDPOINT}"), {"url": f"https://elsewhere.example.com{ENDPOINT}"}),
        (wish(branch="next"), {"branch_filter": "next"}),
        (wish(signing=SIGNING), {"signing_token": SIGNING}),
        (wish(secret=None, signing=SIGNING), {"signing_token": SIGNING, "token": None}),
    ],
    ids=["secret", "address", "branch", "signing", "signing alone"],
)
async def test_what_changed_is_changed_in_the_same_hook(
    project: Project, hooks: GitLabHooks, wanted: HookWish, changed: dict[str, str | None]
) -> None:
    await hooks.ensure(PROJECT, wish())
    assert [(await hooks.ensure(PROJECT, wanted))[0] for _ in range(2)] == ["updated", "unchanged"]
    (hook,) = project.hooks.values()
    assert {name: getattr(hook, name) for name in changed} == changed


async def test_what_somebody_changed_by_hand_is_put_right(project: Project, hooks: GitLabHooks) -> None:
    await hooks.ensure(PROJECT, wish())
    (hook,) = project.hooks.values()
    right = (True, True, "a-secret-of-hooks", set())

    for attribute, wrong in (
        ("push_events", False),
        ("enable_ssl_verification", False),
        ("token", None),
        ("other_events", {"issues_events"}),
        ("description", "ours"),
    ):
        setattr(hook, attribute, wrong)
        assert [(await hooks.ensure(PROJECT, wish()))[0] for _ in range(2)] == ["updated", "unchanged"], attribute
        assert (hook.push_events, hook.enable_ssl_verification, hook.token, hook.other_events) == right


async def test_hooks_of_others_are_left_alone(project: Project, hooks: GitLabHooks) -> None:
    project.hooks[1] = Hook(1, "https://ci.example.com/hook", created_at="2024-01-01T00:00:00.000Z")
    staging = wish(f"https://staging.example.com{ENDPOINT}", secret="the-secret-of-staging")
    await hooks.ensure(PROJECT, staging)
    await hooks.ensure(PROJECT, wish())

    assert [hook.url for hook in project.hooks.values()] == ["https://ci.example.com/hook", staging.url, URL]


async def test_a_dry_run_writes_nothing(server: GitLabServer, project: Project, hooks: GitLabHooks) -> None:
    assert await hooks.ensure(PROJECT, wish(), dry_run=True) == ("created", None)
    assert project.hooks == {}
    await hooks.ensure(PROJECT, wish())
    server.log.forget()
    assert (await hooks.ensure(PROJECT, wish(branch="x"), dry_run=True))[0] == "updated"
    assert writes(server) == []


async def test_a_hook_whose_making_was_not_answered_is_not_made_twice(
    server: GitLabServer, project: Project, hooks: GitLabHooks
) -> None:
    server.faults.cut_body(10, path="/hooks", method="POST")
    assert (await hooks.ensure(PROJECT, wish()))[0] == "unchanged"
    assert len(project.hooks) == 1


async def test_an_older_gitlab_is_told_the_secret_again_each_time(
    server: GitLabServer, project: Project, hooks: GitLabHooks
) -> None:
    server.describes_hooks = server.signs_hooks = False
    assert [(await hooks.ensure(PROJECT, wish()))[0] for _ in range(2)] == ["created", "updated"]
    assert len(project.hooks) == 1


async def test_a_gitlab_that_does_not_sign_is_told_apart(
    server: GitLabServer, project: Project, hooks: GitLabHooks
) -> None:
    server.signs_hooks = False
    with pytest.raises(SourceError, match=r"does not sign.*GitLab 19\.0"):
        await hooks.ensure(PROJECT, wish(secret=None, signing=SIGNING))
    assert project.hooks == {}
    # With a secret token beside it the hook works all the same.
    assert (await hooks.ensure(PROJECT, wish(signing=SIGNING)))[0] == "created"


async def test_a_moved_project_is_reached_by_its_number_or_by_its_former_path(
    project: Project, hooks: GitLabHooks
) -> None:
    project.move("elsewhere/renamed")
    assert (await hooks.ensure(PROJECT, wish()))[0] == "created"
    assert (await hooks.ensure(HookPlace("project", "platform/app"), wish()))[0] == "unchanged"


async def test_a_group_has_a_hook_of_its_own(server: GitLabServer, hooks: GitLabHooks) -> None:
    assert [(await hooks.ensure(GROUP, wish()))[0] for _ in range(2)] == ["created", "unchanged"]
    assert [hook.url for hook in server.group_hooks["platform"].values()] == [URL]


async def test_refusals_say_what_is_missing(server: GitLabServer, hooks: GitLabHooks) -> None:
    token = server.tokens[TOKEN]
    token.role = "maintainer"
    with pytest.raises(SourceDenied, match=r"group platform.*role Owner"):
        await hooks.ensure(GROUP, wish())
    token.role = "developer"
    with pytest.raises(SourceDenied, match=r"project platform/app.*role Maintainer"):
        await hooks.ensure(PROJECT, wish())
    token.role = "owner"
    server.edition = "free"
    with pytest.raises(SourceDenied, match=r"group platform.*GitLab Premium"):
        await hooks.ensure(GROUP, wish())
    with pytest.raises(SourceGone, match="Group nowhere was not found"):
        await hooks.ensure(HookPlace("group", "nowhere"), wish())
    with pytest.raises(SourceGone, match="Project no/where was not found"):
        await hooks.ensure(HookPlace("project", "no/where"), wish())
    token.scopes = frozenset({"read_api"})
    with pytest.raises(SourceDenied, match=r"scope api.*--token-variable"):
        await hooks.ensure(PROJECT, wish())
    token.expired = True
    with pytest.raises(SourceDenied, match="has expired"):
        await hooks.ensure(PROJECT, wish())
    token.expired = False
    token.scopes = frozenset({"api"})
    server.faults.answer(422, json.dumps({"error": "Invalid url given"}), path="/hooks", method="POST")
    with pytest.raises(SourceError, match=r"refuses the webhook.*Invalid url given.*Outbound requests"):
        await hooks.ensure(PROJECT, wish())
    server.faults.answer(502, path="/hooks", times=None)
    with pytest.raises(SourceUnavailable, match="project platform/app"):
        await hooks.ensure(PROJECT, wish())


def test_a_fingerprint_tells_secrets_apart_and_which_is_which() -> None:
    one, two = SecretStr("a" * 16), SecretStr("b" * 16)
    assert len({fingerprint(*pair) for pair in ((one, None), (None, one), (one, two), (two, one))}) == 4
