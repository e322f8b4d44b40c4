"""The GitLab of the tests, as unmodified clients see it: python-gitlab, httpx and git. Details that the product relies
on are proven by the product's own tests in tests/integration/sources."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gitlab
import httpx
import pytest
from gitlab.v4.objects import Project as RemoteProject

from tests.fixtures.gitlab_server import Certificate, Change, GitLabServer, OtherHost, Project
from tests.fixtures.gitlab_server.state import Hook
from tests.fixtures.repositories import Executable, GitRepository, Submodule, Symlink, git_environment

TOKEN = "glpat-test"
API = "/api/v4/projects/42"
GIT = "/platform/payments-api.git"
REFS = f"{GIT}/info/refs?service=git-upload-pack"


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "payments.git")
    repository.commit(
        {
            b"README.md": b"# Payments\n",
            b"bin/deploy": Executable(b"#!/bin/sh\n"),
            b"docs/latest": Symlink("../README.md"),
            b"docs/new\nline.md": b"newline\n",
            b"src/deep/er/module.py": b"x = 1\n",
            b"vendor/library": Submodule("1" * 40),
        }
    )
    return repository


@pytest.fixture
def server(repository: GitRepository) -> Iterator[GitLabServer]:
    with GitLabServer() as server:
        server.add_project("platform/payments-api", repository.path, id=42)
        server.add_token(TOKEN, scopes={"api"})
        yield server


@pytest.fixture
def project(server: GitLabServer) -> Project:
    return server.projects[0]


@pytest.fixture
def client(server: GitLabServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"PRIVATE-TOKEN": TOKEN}, timeout=30) as client:
        yield client


@pytest.fixture
def remote(server: GitLabServer) -> Iterator[RemoteProject]:
    with gitlab.Gitlab(server.url, private_token=TOKEN, timeout=30) as connection:
        yield connection.projects.get("platform/payments-api")


@pytest.mark.parametrize("paging", [{"per_page": 2}, {"per_page": 2, "pagination": "keyset"}, {"pagination": "none"}])
def test_every_way_to_page_a_tree_lists_what_git_lists(
    remote: RemoteProject, repository: GitRepository, paging: dict[str, Any]
) -> None:
    how: dict[str, Any] = {"get_all": False} if paging.get("pagination") == "none" else {"iterator": True}
    rows = list(remote.repository_tree(recursive=True, **how, **paging))

    found = {(row["path"].encode(), row["id"], row["mode"]) for row in rows if row["type"] != "tree"}
    assert found == {(row.path, row.sha, f"{row.mode:06o}") for row in repository.ls_tree()}
    assert len(rows) == len({row["path"] for row in rows})


def test_branches_commits_blobs_and_files_are_those_of_the_repository(
    remote: RemoteProject, client: httpx.Client, repository: GitRepository
) -> None:
    head = repository.commit({"logo.bin": bytes(range(256))})
    repository.force(head, branch="feature/later")
    blob = next(row.sha for row in repository.ls_tree() if row.path == b"logo.bin")

    assert [branch.name for branch in remote.branches.list(iterator=True)] == ["feature/later", "main"]
    assert remote.branches.get("feature/later").commit["id"] == remote.commits.get("HEAD").id == head
    assert remote.repository_merge_base(["main", "feature/later"])["id"] == head
    assert remote.repository_raw_blob(blob) == bytes(range(256))
    assert remote.files.head("bin/deploy", ref="main")["x-gitlab-execute-filemode"] == "true"
    for path, message in (
        ("branches/no", "Branch"),
        ("commits/no", "Commit"),
        (f"blobs/{'0' * 40}/raw", "Blob"),
        ("tree?ref=no", "Tree"),
        ("tree?path=no", "invalid revision or path"),
    ):
        answer = client.get(f"{API}/repository/{path}")
        assert (answer.status_code, answer.json()) == (404, {"message": f"404 {message} Not Found"})


def test_a_group_lists_the_projects_that_the_token_sees(
    server: GitLabServer, client: httpx.Client, repository: GitRepository
) -> None:
    for number, path in enumerate(("platform/a", "platform/tools/b", "platformer/d", "platform/hidden"), start=50):
        server.add_project(path, repository.path, id=number)
    server.tokens[TOKEN].projects = frozenset({42, 50, 51, 52})
    pages, following = [], "/api/v4/groups/platform/projects?pagination=keyset&include_subgroups=true&order_by=id"
    following += "&sort=asc&per_page=2"
    while following:
        answer = client.get(following)
        pages.append([row["id"] for row in answer.json()])
        following = answer.links.get("next", {}).get("url", "")

    assert pages == [[42, 50], [51]]
    assert [row["id"] for row in client.get("/api/v4/groups/platform/projects").json()] == [50, 42]
    assert client.get("/api/v4/groups/nobody/projects").status_code == 404


@pytest.mark.parametrize(
    ("token", "rest", "git"),
    [
        ({"value": "glpat-old", "expired": True}, 401, 401),
        ({"value": "glpat-gone", "revoked": True}, 401, 401),
        ({"value": "glpat-profile", "scopes": {"read_user"}}, 403, 401),
        ({"value": "glpat-git", "scopes": {"read_repository"}}, 403, 200),
        ({"value": "glpat-elsewhere", "projects": [7]}, 404, 404),
    ],
    ids=lambda value: value["value"] if isinstance(value, dict) else None,
)
def test_a_token_opens_what_it_is_for(server: GitLabServer, token: dict[str, Any], rest: int, git: int) -> None:
    server.add_token(**token)

    with httpx.Client(base_url=server.url) as client:
        assert client.get(API, headers={"Authorization": f"Bearer {token['value']}"}).status_code == rest
        assert client.get(REFS, auth=("x", token["value"])).status_code == git
        assert client.get(API).status_code == 404
        assert client.get(REFS).headers["WWW-Authenticate"] == 'Basic realm="GitLab"'
    assert token["value"] not in repr(list(server.log))


def test_git_fetches_trees_first_and_blobs_later_unless_filters_are_off(
    server: GitLabServer, project: Project, repository: GitRepository, tmp_path: Path
) -> None:
    address = f"{server.url.replace('//', f'//anybody:{TOKEN}@')}{GIT}"

    def git(*words: str, cwd: Path = tmp_path) -> str:
        done = subprocess.run(["git", *words], cwd=cwd, env=git_environment(), capture_output=True, check=True)
        return (done.stdout + done.stderr).decode()

    git("clone", "--quiet", "--bare", "--depth=1", "--filter=blob:none", address, "partial")
    missing = git("rev-list", "--objects", "--missing=print", "HEAD", cwd=tmp_path / "partial")
    files = [row for row in repository.ls_tree() if row.mode != 0o160000]
    assert {line[1:] for line in missing.splitlines() if line.startswith("?")} == {row.sha for row in files}
    assert git("cat-file", "blob", files[0].sha, cwd=tmp_path / "partial").encode() == repository.read(files[0].sha)

    project.allow_filter = False
    assert "filtering not recognized" in git("clone", "--bare", "--filter=blob:none", address, "whole")


def test_a_moved_project_redirects_and_a_deleted_one_is_gone(
    server: GitLabServer, client: httpx.Client, project: Project
) -> None:
    project.move("platform/billing/payments")
    old = "/api/v4/projects/platform%2Fpayments-api/repository/tree"

    moved = client.get(old)
    assert (moved.status_code, moved.headers["Location"]) == (301, f"{server.url}{API}/repository/tree")
    assert client.post(old).status_code == 405
    project.deleted = True
    assert client.get(API).status_code == 404


def test_faults_strike_the_requests_that_they_name(server: GitLabServer, client: httpx.Client) -> None:
    tree = f"{API}/repository/tree"
    server.faults.bad_gateway(path="/tree", nth=2, times=2)
    assert [client.get(tree).status_code for _ in range(4)] == [200, 502, 502, 200]
    server.faults.throttle_rack(retry_after_seconds=7)
    assert client.get(API).headers["Retry-After"] == "7"
    whole = client.get(tree).json()
    server.faults.edit_rows(lambda rows: rows[:-2])
    assert client.get(tree).json() == whole[:-2]
    server.faults.clear()
    server.faults.cut_body(10, path="/tree")
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(tree)
    gate = server.faults.hold(path="/tree")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.get, tree)
        assert gate.arrived.wait(30)
        assert not waiting.done()
        gate.open()
        assert waiting.result(30).status_code == 200
    server.faults.answer(418, times=None)
    assert client.get(API).status_code == 418
    server.faults.clear()
    assert client.get(API).status_code == 200


def test_a_crash_of_the_server_fails_the_test_that_met_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="crashed"), GitLabServer() as server:
        server.add_project("a/gone", tmp_path / "nowhere.git", id=1, visibility="public")
        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 500


def test_a_push_is_posted_to_the_hooks_with_token_and_signature(
    server: GitLabServer, project: Project, repository: GitRepository
) -> None:
    before, after = repository.head(), repository.commit({"n.py": b"1", "README.md": None})
    signing_token = "whsec_" + base64.b64encode(b"k" * 32).decode()
    with OtherHost(status=202) as receiver:
        project.hooks[1] = Hook(1, f"{receiver.url}/hook", "secret", signing_token, branch_filter="main")
        assert server.webhooks.push(project, Change("other", None, after)) == []
        (delivery,) = server.webhooks.push(project, Change("main", before, after))
        (received,) = receiver.requests

    event = json.loads(received.body)
    assert (event["ref"], event["before"], event["after"], event["project"]["id"]) == (
        "refs/heads/main",
        before,
        after,
        42,
    )
    assert received.headers["x-gitlab-token"] == "secret"
    signed = f"{received.headers['webhook-id']}.{received.headers['webhook-timestamp']}.".encode() + received.body
    digest = base64.b64encode(hmac.digest(b"k" * 32, signed, hashlib.sha256)).decode()
    assert (delivery.status, received.headers["webhook-signature"]) == (202, f"v1,{digest}")


def test_it_speaks_tls_with_a_certificate_of_its_own(repository: GitRepository, tmp_path: Path) -> None:
    certificate = Certificate.make(tmp_path)
    if certificate is None:
        pytest.skip("the openssl command is not installed")
    with GitLabServer(tls=certificate) as server:
        server.add_project("a/b", repository.path, id=1, visibility="public")
        url = f"{server.url}/api/v4/projects/1"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(url)
        trusting = ssl.create_default_context(cafile=certificate.certificate)
        assert httpx.get(url, verify=trusting).status_code == 200
