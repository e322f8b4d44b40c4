"""Hooks, and what is posted to them after a push."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import gitlab
import httpx
import pytest

from tests.fixtures.gitlab_server import Change, GitLabServer, OtherHost, Project
from tests.fixtures.repositories import GitRepository
from tests.integration.gitlab_server.conftest import API, TOKEN

SIGNING_TOKEN = "whsec_" + base64.b64encode(b"k" * 32).decode()


def test_hooks_are_made_changed_and_deleted_by_python_gitlab(server: GitLabServer) -> None:
    with gitlab.Gitlab(server.url, private_token=TOKEN) as remote:
        hooks = remote.projects.get(42).hooks
        made = hooks.create({"url": "https://x.example/hook", "token": "secret", "push_events": True})
        made.push_events_branch_filter = "main"
        made.save()
        shown = hooks.list(get_all=True)
        with pytest.raises(gitlab.GitlabCreateError, match="Invalid url"):
            hooks.create({"url": "ftp://x.example"})
        made.delete()
        assert hooks.list(get_all=True) == []

    assert [(hook.url, hook.push_events_branch_filter, hook.alert_status) for hook in shown] == [
        ("https://x.example/hook", "main", "executable")
    ]
    assert "secret" not in json.dumps(shown[0].attributes)


def test_hooks_need_more_than_reading(server: GitLabServer, anonymous: httpx.Client) -> None:
    server.add_token("glpat-reader")

    answer = anonymous.post(
        f"{server.url}{API}/hooks", json={"url": "http://x.example"}, headers={"PRIVATE-TOKEN": "glpat-reader"}
    )

    assert (answer.status_code, answer.json()["scope"]) == (403, "api")
    assert anonymous.get(f"{server.url}{API}/hooks").status_code in (401, 404)


def test_a_push_is_posted_with_token_and_signature(
    server: GitLabServer, client: httpx.Client, project: Project, repository: GitRepository
) -> None:
    before = repository.head()
    for number in range(25):
        after = repository.commit({"n.py": b"%d" % number, "README.md": None} if number else {"n.py": b"0"})
    with OtherHost(status=202) as receiver:
        hook = {"url": f"{receiver.url}/hook", "token": "secret", "signing_token": SIGNING_TOKEN}
        assert client.post(f"{API}/hooks", json=hook).status_code == 201

        (delivery,) = server.webhooks.push(project, Change("main", before, after))
        repeated = server.webhooks.again(project, delivery)

        first, second = receiver.requests
    event = json.loads(first.body)
    assert (event["object_kind"], event["ref"], event["project"]["id"]) == ("push", "refs/heads/main", 42)
    assert (event["before"], event["after"], event["checkout_sha"]) == (before, after, after)
    assert (len(event["commits"]), event["total_commits_count"], event["commits"][-1]["id"]) == (20, 25, after)
    assert event["commits"][-1]["modified"] == ["n.py"]
    assert (first.headers["x-gitlab-token"], first.headers["x-gitlab-event"]) == ("secret", "Push Hook")
    signed = f"{first.headers['webhook-id']}.{first.headers['webhook-timestamp']}.".encode() + first.body
    digest = base64.b64encode(hmac.digest(b"k" * 32, signed, hashlib.sha256)).decode()
    assert first.headers["webhook-signature"] == f"v1,{digest}"
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == first.headers["webhook-id"]
    assert first.headers["x-gitlab-event-uuid"] != second.headers["x-gitlab-event-uuid"]
    assert (delivery.status, repeated.body) == (202, delivery.body)


def test_a_push_of_more_than_three_refs_is_told_to_nobody(
    server: GitLabServer, client: httpx.Client, project: Project, repository: GitRepository
) -> None:
    with OtherHost() as receiver:
        client.post(f"{API}/hooks", json={"url": receiver.url, "push_events_branch_filter": "release/*"})
        changes = [Change(f"release/{number}", None, repository.head()) for number in range(4)]

        assert server.webhooks.push(project, *changes) == []
        assert len(server.webhooks.push(project, *changes[:3])) == 3
        assert server.webhooks.push(project, Change("main", None, repository.head())) == []
        (deleted,) = server.webhooks.push(project, Change("release/1", repository.head(), None))

    assert (json.loads(deleted.body)["after"], json.loads(deleted.body)["checkout_sha"]) == ("0" * 40, None)


def test_a_hook_that_keeps_failing_is_backed_off_and_then_switched_off(
    server: GitLabServer, client: httpx.Client, project: Project, repository: GitRepository
) -> None:
    now = 1_700_000_000.0
    server.clock = lambda: now
    change = Change("main", None, repository.head())
    with OtherHost(status=500) as receiver:
        client.post(f"{API}/hooks", json={"url": receiver.url})
        assert [server.webhooks.push(project, change)[0].status for _ in range(4)] == [500] * 4
        assert server.webhooks.push(project, change) == []
        assert client.get(f"{API}/hooks/1").json()["alert_status"] == "temporarily_disabled"
        now += 60
        receiver.status = 200
        assert server.webhooks.push(project, change)[0].succeeded
        assert client.get(f"{API}/hooks/1").json()["alert_status"] == "executable"
        receiver.status = 500
        while True:
            now += 25 * 3600
            if not server.webhooks.push(project, change):
                break

    assert len(receiver.requests) == 4 + 1 + 40
    assert client.get(f"{API}/hooks/1").json()["alert_status"] == "disabled"
