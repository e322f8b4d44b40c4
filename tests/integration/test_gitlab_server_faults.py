"""What goes wrong on demand at the GitLab test server, and what the clients we know make of it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import gitlab
import httpx
import pytest

from tests.fixtures.gitlab_server import Change, Contract, GitLabServer, OtherHost, Project
from tests.fixtures.repositories import GitRepository

TOKEN = "glpat-test"
API = "/api/v4/projects/42"


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "payments.git")
    repository.commit({"README.md": b"# Payments\n"})
    return repository


@pytest.fixture
def server(repository: GitRepository) -> Iterator[GitLabServer]:
    with GitLabServer(contract=Contract.load()) as server:
        server.add_project("platform/payments-api", repository.path, id=42)
        server.add_token(TOKEN, scopes={"api"})
        yield server
        assert server.contract_errors == []


@pytest.fixture
def client(server: GitLabServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as client:
        yield client


@pytest.fixture
def project(server: GitLabServer) -> Project:
    return server.projects[0]


# Rules ------------------------------------------------------------------------------------------------------------


def test_a_rule_strikes_the_request_it_names_and_no_other(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.bad_gateway(path="/repository/tree", method="GET", nth=2, times=2)

    trees = [client.get(f"{API}/repository/tree").status_code for _ in range(4)]

    assert trees == [200, 502, 502, 200]
    assert client.get(API).status_code == 200
    assert [record.fault for record in server.log] == [None, "answer 502", "answer 502", None, None]


def test_a_bad_gateway_is_html(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.bad_gateway()

    assert client.get(API).headers["content-type"].startswith("text/html")


def test_rules_take_turns_and_end_when_cleared(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.throttle_rack()
    server.faults.bad_gateway(times=None)
    first = [client.get(API).status_code for _ in range(3)]

    server.faults.clear()

    assert (first, client.get(API).status_code) == ([429, 502, 502], 200)


# Throttling -------------------------------------------------------------------------------------------------------


def test_rack_throttles_in_plain_text_with_all_its_headers(server: GitLabServer, client: httpx.Client) -> None:
    server.clock = lambda: 1_700_000_000.0
    server.faults.throttle_rack(retry_after_seconds=7)

    answer = client.get(API)

    assert (answer.status_code, answer.text) == (429, "Retry later\n")
    assert answer.headers["content-type"].startswith("text/plain")
    shown = {name: value for name, value in answer.headers.items() if name.startswith(("ratelimit", "retry"))}
    assert shown == {
        "ratelimit-name": "throttle_authenticated_api",
        "ratelimit-limit": "2000",
        "ratelimit-observed": "2001",
        "ratelimit-remaining": "0",
        "ratelimit-reset": "1700000007",
        "ratelimit-resettime": "Tue, 14 Nov 2023 22:13:27 GMT",
        "retry-after": "7",
    }


def test_the_application_throttles_in_json_without_a_word_of_when(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.throttle_application()

    answer = client.get(API)

    words = "This endpoint has been requested too many times. Try again later."
    assert (answer.status_code, answer.json()) == (429, {"message": {"error": words}})
    assert not [name for name in answer.headers if name.startswith(("ratelimit", "retry"))]


def test_a_date_to_return_at_breaks_python_gitlab(server: GitLabServer, client: httpx.Client) -> None:
    server.clock = lambda: 1_700_000_000.0
    server.faults.throttle_http_date(retry_after_seconds=60, times=2)

    date = parsedate_to_datetime(client.get(API).headers["Retry-After"])

    assert date.timestamp() == 1_700_000_060
    with gitlab.Gitlab(server.url, private_token=TOKEN) as remote, pytest.raises(ValueError, match="Nov 2023"):
        remote.projects.get(42)


# Connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_bytes", [0, 10])
def test_a_cut_body_ends_the_connection_early(server: GitLabServer, client: httpx.Client, after_bytes: int) -> None:
    server.faults.cut_body(after_bytes, path="/tree")

    with pytest.raises(httpx.RemoteProtocolError):
        client.get(f"{API}/repository/tree")

    assert (server.log[0].status, server.log[0].bytes_out) == (200, after_bytes)
    assert client.get(f"{API}/repository/tree").status_code == 200


def test_a_cut_pack_breaks_the_fetch(server: GitLabServer, repository: GitRepository, client: httpx.Client) -> None:
    server.faults.cut_body(5, path=r"\.git/info/refs")

    with pytest.raises(httpx.RemoteProtocolError):
        client.get("/platform/payments-api.git/info/refs?service=git-upload-pack", auth=("x", TOKEN))


@pytest.mark.parametrize("after_bytes", [None, 0, 10])
def test_a_held_answer_waits_for_its_gate(server: GitLabServer, client: httpx.Client, after_bytes: int | None) -> None:
    gate = server.faults.hold(path="/tree", after_bytes=after_bytes)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.get, f"{API}/repository/tree")
        assert gate.arrived.wait(30)
        assert (waiting.done(), len(server.log)) == (False, 0)
        assert httpx.get(f"{server.url}/api/v4/version").status_code == 401
        gate.open()
        answer = waiting.result(30)

    assert answer.json()[0]["path"] == "README.md"


def test_a_client_that_gives_up_waiting_leaves_the_server_in_order(server: GitLabServer, client: httpx.Client) -> None:
    gate = server.faults.hold(path="/tree")

    with pytest.raises(httpx.ReadTimeout):
        client.get(f"{API}/repository/tree", timeout=0.05)
    gate.open()
    server.log.wait_for(lambda records: len(records) == 1)

    assert client.get(f"{API}/repository/tree").status_code == 200


def test_a_server_that_stops_while_an_answer_is_held_ends_it(repository: GitRepository) -> None:
    with GitLabServer() as server, ThreadPoolExecutor(1) as threads:
        gate = server.faults.hold()
        waiting = threads.submit(httpx.get, f"{server.url}/api/v4/version")
        assert gate.arrived.wait(30)
        server.__exit__(None, None, None)
        assert waiting.exception(30) is not None or waiting.result().status_code == 401


def test_the_head_moves_during_a_run(server: GitLabServer, client: httpx.Client, repository: GitRepository) -> None:
    server.faults.call(lambda: repository.commit({"late.py": b"1"}), path="/tree")

    head = client.get(f"{API}/repository/commits/HEAD").json()["id"]
    pinned = client.get(f"{API}/repository/tree", params={"ref": head}).json()
    unpinned = client.get(f"{API}/repository/tree").json()

    assert [row["path"] for row in pinned] == ["README.md"]
    assert [row["path"] for row in unpinned] == ["README.md", "late.py"]


def test_git_is_refused_everywhere_at_once(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.refuse_git(403)

    git = client.get("/platform/payments-api.git/info/refs?service=git-upload-pack", auth=("x", TOKEN))

    assert (git.status_code, client.get(API).status_code) == (403, 200)


# Redirects and projects that go away ------------------------------------------------------------------------------


def test_a_redirect_takes_a_private_token_to_another_host_but_not_a_bearer(server: GitLabServer) -> None:
    # What python-gitlab and httpx do, and why the token is sent as Bearer.
    with OtherHost(body=b'{"id": 1}') as other:
        server.faults.redirect(other.url, times=None)

        with gitlab.Gitlab(server.url, private_token=TOKEN) as remote:
            remote.http_get("/projects/42")
        with httpx.Client(follow_redirects=True) as client:
            client.get(f"{server.url}{API}", headers={"Authorization": f"Bearer {TOKEN}"})

        leaked, kept = other.requests
    assert (leaked.path, leaked.headers["private-token"]) == (API, TOKEN)
    assert "authorization" not in kept.headers


def test_a_moved_project_redirects_get_to_its_id_and_nothing_else(
    client: httpx.Client, project: Project, server: GitLabServer
) -> None:
    project.move("platform/billing/payments")
    old = "/api/v4/projects/platform%2Fpayments-api"

    moved = client.get(f"{old}/repository/tree?recursive=true")
    changed = client.post(f"{old}/hooks", json={"url": "http://x.example"})

    assert moved.status_code == 301
    assert moved.headers["Location"] == f"{server.url}{API}/repository/tree?recursive=true"
    assert (changed.status_code, changed.json()) == (
        405,
        {"message": "Non GET methods are not allowed for moved projects"},
    )
    assert client.get(API).json()["path_with_namespace"] == "platform/billing/payments"


def test_a_deleted_project_is_not_found(client: httpx.Client, project: Project) -> None:
    project.deleted = True

    answer = client.get(f"{API}/repository/tree")

    assert (answer.status_code, answer.json()) == (404, {"message": "404 Project Not Found"})


# Groups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def group(server: GitLabServer, repository: GitRepository) -> str:
    for number, path in enumerate(("platform/a", "platform/tools/b", "platform/tools/c", "platformer/d"), start=50):
        server.add_project(path, repository.path, id=number, archived=path.endswith("a"))
    server.add_project("platform/hidden", repository.path, id=60)
    server.tokens[TOKEN].projects = frozenset({42, 50, 51, 52, 53})
    return "/api/v4/groups/platform/projects"


def _ids(answer: httpx.Response) -> list[int]:
    return [row["id"] for row in answer.json()]


def test_a_group_lists_its_own_projects_and_on_request_those_below(client: httpx.Client, group: str) -> None:
    assert _ids(client.get(group)) == [50, 42]
    assert _ids(client.get(group, params={"include_subgroups": "true"})) == [52, 51, 50, 42]
    assert _ids(client.get(group, params={"include_subgroups": "true", "archived": "false"})) == [52, 51, 42]
    assert client.get("/api/v4/groups/nobody/projects").json() == {"message": "404 Group Not Found"}
    number = client.get(API).json()["namespace"]["id"]
    assert _ids(client.get(f"/api/v4/groups/{number}/projects")) == [50, 42]


def test_a_groups_projects_come_by_numbered_and_by_keyset_pages(client: httpx.Client, group: str) -> None:
    query: dict[str, Any] = {"include_subgroups": "true", "per_page": 2, "order_by": "id", "sort": "asc"}

    numbered = [_ids(client.get(group, params=query | {"page": page})) for page in (1, 2)]
    keyset, following = [], f"{group}?pagination=keyset&include_subgroups=true&per_page=2&order_by=id&sort=asc"
    while following:
        answer = client.get(following)
        keyset.append(_ids(answer))
        following = answer.links.get("next", {}).get("url", "")

    assert numbered == [[42, 50], [51, 52]]
    # A full last page links onward here too: the end is an empty page.
    assert keyset == [[42, 50], [51, 52], []]
    assert client.get(group, params={"pagination": "keyset", "order_by": "name"}).status_code == 405


def test_python_gitlab_lists_a_group(server: GitLabServer, group: str) -> None:
    with gitlab.Gitlab(server.url, private_token=TOKEN) as remote:
        found = remote.groups.get("platform", lazy=True).projects.list(
            include_subgroups=True, iterator=True, per_page=1
        )
        assert [row.path_with_namespace for row in found] == [
            "platform/tools/c",
            "platform/tools/b",
            "platform/a",
            "platform/payments-api",
        ]


# Webhooks ---------------------------------------------------------------------------------------------------------

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


def test_hooks_need_more_than_reading(server: GitLabServer) -> None:
    server.add_token("glpat-reader")

    answer = httpx.post(
        f"{server.url}{API}/hooks", json={"url": "http://x.example"}, headers={"PRIVATE-TOKEN": "glpat-reader"}
    )

    assert (answer.status_code, answer.json()["scope"]) == (403, "api")
    assert httpx.get(f"{server.url}{API}/hooks").status_code in (401, 404)


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


# In and beside a loop ---------------------------------------------------------------------------------------------


async def test_it_serves_asynchronous_tests_too(repository: GitRepository) -> None:
    async with GitLabServer() as server, OtherHost() as other, httpx.AsyncClient() as client:
        server.add_project("a/b", repository.path, id=1, visibility="public")
        answers = await asyncio.gather(
            *(client.get(f"{server.url}/api/v4/projects/1/repository/tree?recursive=true") for _ in range(20)),
            client.get(other.url),
        )

    assert {answer.status_code for answer in answers} == {200}
    assert not [thread for thread in threading.enumerate() if thread.name in (server.url, other.url)]
