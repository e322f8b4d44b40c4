"""A smoke test of the GitLab test server with unmodified clients: python-gitlab, git and httpx."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gitlab
import httpx
import pytest
from gitlab.v4.objects import Project as RemoteProject

from tests.fixtures.gitlab_server import Change, Contract, GitLabServer, OtherHost, Project
from tests.fixtures.repositories import GitRepository, git_environment
from tests.integration.gitlab_server.conftest import API, GIT, REFS, TOKEN, Get


def address(server: GitLabServer, *, user: str = "oauth2", token: str = TOKEN, path: str = GIT) -> str:
    return f"{server.url.replace('//', f'//{user}:{token}@')}{path}"


def git(*arguments: str, cwd: Path, ok: bool = True) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, env=git_environment(), capture_output=True, check=False)
    output = (done.stdout + done.stderr).decode()
    assert (done.returncode == 0) is ok, output
    return output


@pytest.fixture
def group(server: GitLabServer, repository: GitRepository) -> str:
    for number, path in enumerate(("platform/a", "platform/tools/b", "platform/tools/c", "platformer/d"), start=50):
        server.add_project(path, repository.path, id=number, archived=path.endswith("a"))
    server.add_project("platform/hidden", repository.path, id=60)
    server.tokens[TOKEN].projects = frozenset({42, 50, 51, 52, 53})
    return "/api/v4/groups/platform/projects"


def _ids(answer: httpx.Response) -> list[int]:
    return [row["id"] for row in answer.json()]


SIGNING_TOKEN = "whsec_" + base64.b64encode(b"k" * 32).decode()


def test_tokens_that_are_dead_or_unknown_say_so(server: GitLabServer, anonymous: httpx.Client) -> None:
    server.add_token("glpat-old", expired=True)
    server.add_token("glpat-gone", revoked=True)
    server.add_token("glpat-profile", scopes={"read_user"})

    def ask(token: str) -> tuple[int, Any]:
        answer = anonymous.get(f"{server.url}/api/v4/projects/42", headers={"Authorization": f"Bearer {token}"})
        return answer.status_code, answer.json()

    expired = "Token is expired. You can either do re-authorization or token refresh."
    revoked = "Token was revoked. You have to re-authorize from the user."
    assert ask("glpat-old") == (401, {"error": "invalid_token", "error_description": expired})
    assert ask("glpat-gone") == (401, {"error": "invalid_token", "error_description": revoked})
    assert ask("nonsense") == (401, {"message": "401 Unauthorized"})
    assert ask("glpat-profile")[0] == 403
    for token in ("glpat-old", "glpat-gone", "nonsense", "glpat-profile"):
        assert anonymous.get(f"{server.url}{REFS}", auth=("x", token)).status_code == 401


def test_without_a_token_a_public_project_lacks_fields_and_a_private_one_is_not_there(
    server: GitLabServer, anonymous: httpx.Client, project: Project
) -> None:
    private = anonymous.get(f"{server.url}/api/v4/projects/42")
    project.visibility = "public"
    public = anonymous.get(f"{server.url}/api/v4/projects/42").json()
    known = anonymous.get(f"{server.url}/api/v4/projects/42", headers={"PRIVATE-TOKEN": TOKEN}).json()

    assert (private.status_code, private.json()) == (404, {"message": "404 Project Not Found"})
    assert "archived" not in public
    assert "empty_repo" not in public
    assert (known["archived"], known["empty_repo"]) == (False, False)
    assert anonymous.get(f"{server.url}/api/v4/version").status_code == 401
    assert anonymous.get(f"{server.url}/api/v4/projects/42/repository/tree").status_code == 200


@pytest.mark.parametrize("paging", [{"per_page": 2}, {"per_page": 2, "pagination": "keyset"}, {"pagination": "none"}])
def test_every_way_to_page_a_tree_gives_what_git_lists(
    remote: RemoteProject, repository: GitRepository, paging: dict[str, Any]
) -> None:
    if paging.get("pagination") == "none":
        rows = list(remote.repository_tree(recursive=True, get_all=False, **paging))
    else:
        rows = list(remote.repository_tree(recursive=True, iterator=True, **paging))

    found = {(row["path"].encode(), row["id"], row["mode"]) for row in rows if row["type"] != "tree"}
    assert found == {(row.path, row.sha, f"{row.mode:06o}") for row in repository.ls_tree()}
    assert len(rows) == len({row["path"] for row in rows})


def test_bytes_of_a_path_that_are_not_utf8_are_dropped(get: Get, repository: GitRepository) -> None:
    repository.commit({b"caf\xe9.py": b"1", b"caf\xe8.py": b"2"}, replace=True)

    assert [row["path"] for row in get(f"{API}/repository/tree").json()] == ["caf.py", "caf.py"]


def test_a_branch_with_slashes_is_asked_for_encoded(remote: RemoteProject, repository: GitRepository) -> None:
    sha = repository.head()
    assert sha is not None
    repository.force(sha, branch="feature/pay/later")

    assert remote.branches.get("feature/pay/later").commit["id"] == sha
    assert remote.commits.get("feature/pay/later").id == sha
    assert {branch.name: branch.default for branch in remote.branches.list(iterator=True)} == {
        "feature/pay/later": False,
        "main": True,
    }
    assert remote.branches.list(search="^feat", get_all=True)[0].name == "feature/pay/later"
    with pytest.raises(gitlab.GitlabGetError, match="404 Branch Not Found"):
        remote.branches.get("no/such")


def test_a_files_headers_tell_everything_but_its_content(remote: RemoteProject, repository: GitRepository) -> None:
    made = repository.head()
    head = repository.commit({"other": b"1"})
    content = b"#!/bin/sh\n"

    headers = remote.files.head("bin/deploy", ref="main")
    raw = remote.files.raw("bin/deploy", ref="main")

    shown = {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-gitlab-")}
    assert shown == {
        "x-gitlab-blob-id": next(row.sha for row in repository.ls_tree() if row.path == b"bin/deploy"),
        "x-gitlab-commit-id": head,
        "x-gitlab-content-sha256": hashlib.sha256(content).hexdigest(),
        "x-gitlab-encoding": "base64",
        "x-gitlab-file-name": "deploy",
        "x-gitlab-file-path": "bin/deploy",
        "x-gitlab-last-commit-id": made,
        "x-gitlab-ref": "main",
        "x-gitlab-size": "10",
        "x-gitlab-execute-filemode": "true",
    }
    assert raw == content


def test_a_rule_strikes_the_request_it_names_and_no_other(server: GitLabServer, client: httpx.Client) -> None:
    server.faults.bad_gateway(path="/repository/tree", method="GET", nth=2, times=2)

    trees = [client.get(f"{API}/repository/tree").status_code for _ in range(4)]

    assert trees == [200, 502, 502, 200]
    assert client.get(API).status_code == 200
    assert [record.fault for record in server.log] == [None, "answer 502", "answer 502", None, None]


@pytest.mark.parametrize("after_bytes", [None, 0, 10])
def test_a_held_answer_waits_for_its_gate(
    server: GitLabServer, anonymous: httpx.Client, client: httpx.Client, after_bytes: int | None
) -> None:
    gate = server.faults.hold(path="/tree", after_bytes=after_bytes)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.get, f"{API}/repository/tree")
        assert gate.arrived.wait(30)
        assert (waiting.done(), len(server.log)) == (False, 0)
        assert anonymous.get(f"{server.url}/api/v4/version").status_code == 401
        gate.open()
        answer = waiting.result(30)

    assert answer.json()[-1]["path"] == "README.md"


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


@pytest.mark.parametrize("user", ["oauth2", "anybody"])
def test_git_clones_with_the_token_as_password_of_any_user(
    server: GitLabServer, repository: GitRepository, tmp_path: Path, user: str
) -> None:
    git("clone", "--quiet", address(server, user=user), "clone", cwd=tmp_path)

    assert git("rev-parse", "HEAD", cwd=tmp_path / "clone").strip() == repository.head()
    assert (tmp_path / "clone/README.md").read_bytes() == b"# Payments\n"
    assert [record.status for record in server.log.git] == [401, 200, 200, 200]


def test_git_fetches_trees_first_and_blobs_by_sha_later(
    server: GitLabServer, repository: GitRepository, tmp_path: Path
) -> None:
    git("clone", "--quiet", "--bare", "--depth=1", "--filter=blob:none", address(server), "partial", cwd=tmp_path)
    partial = tmp_path / "partial"
    blobs = [row.sha for row in repository.ls_tree() if row.mode != 0o160000]
    missing = git("rev-list", "--objects", "--missing=print", "HEAD", cwd=partial)
    assert {line[1:] for line in missing.splitlines() if line.startswith("?")} == set(blobs)

    first = repository.git("rev-list", "--max-parents=0", "HEAD").decode().strip()
    git("fetch", "--quiet", "--depth=1", "origin", first, cwd=partial)

    assert git("rev-parse", "FETCH_HEAD", cwd=partial).strip() == first
    assert git("cat-file", "blob", blobs[0], cwd=partial).encode() == repository.read(blobs[0])


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


def test_a_crash_of_the_server_fails_the_test_that_met_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="crashed"), GitLabServer() as server:
        server.add_project("a/gone", tmp_path / "nowhere.git", id=1, visibility="public")
        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 500


def test_a_wrong_answer_of_the_running_server_is_collected(repository: GitRepository) -> None:
    contract = Contract.load()
    if contract is None:
        pytest.skip("GitLab's OpenAPI file is not beside this checkout (../shared/contracts)")
    with GitLabServer(contract=contract) as server:
        wrong: Any = 5
        server.add_project("a/b", repository.path, id=1, visibility="public", description=wrong)

        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 200
        assert re.search(r"description.*5 is not", server.contract_errors[0])
