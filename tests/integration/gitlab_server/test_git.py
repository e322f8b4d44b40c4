"""Git over HTTP, driven by the git command and by dulwich."""

from __future__ import annotations

import gzip
import random
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from dulwich.client import HttpGitClient
from dulwich.objects import ObjectID
from dulwich.repo import Repo

from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.repositories import GitRepository, git_environment
from tests.integration.gitlab_server.conftest import GIT, TOKEN


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "payments.git")
    repository.commit({"README.md": b"# Payments\n"})
    repository.many(50)
    return repository


def address(server: GitLabServer, *, user: str = "oauth2", token: str = TOKEN, path: str = GIT) -> str:
    return f"{server.url.replace('//', f'//{user}:{token}@')}{path}"


def git(*arguments: str, cwd: Path, ok: bool = True) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, env=git_environment(), capture_output=True, check=False)
    output = (done.stdout + done.stderr).decode()
    assert (done.returncode == 0) is ok, output
    return output


@pytest.mark.parametrize("user", ["oauth2", "ada", "reposync", "anybody"])
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
    blobs = [row.sha for row in repository.ls_tree()]
    missing = git("rev-list", "--objects", "--missing=print", "HEAD", cwd=partial)
    assert {line[1:] for line in missing.splitlines() if line.startswith("?")} == set(blobs)

    first = repository.git("rev-list", "--max-parents=0", "HEAD").decode().strip()
    git("fetch", "--quiet", "--depth=1", "origin", first, cwd=partial)

    assert git("rev-parse", "FETCH_HEAD", cwd=partial).strip() == first
    assert git("cat-file", "blob", blobs[0], cwd=partial).encode() == repository.read(blobs[0])


def test_git_without_filters_sends_everything(server: GitLabServer, project: Project, tmp_path: Path) -> None:
    project.allow_filter = False

    words = git("clone", "--bare", "--filter=blob:none", address(server), "whole", cwd=tmp_path)

    assert "filtering not recognized" in words
    assert "?" not in git("rev-list", "--objects", "--missing=print", "HEAD", cwd=tmp_path / "whole")


def test_old_protocol_gives_an_unadvertised_sha_only_where_that_is_allowed(
    server: GitLabServer, project: Project, repository: GitRepository, tmp_path: Path
) -> None:
    first = repository.git("rev-list", "--max-parents=0", "HEAD").decode().strip()
    git("init", "--quiet", "--bare", "local", cwd=tmp_path)
    old = ("-c", "protocol.version=0", "fetch", "--quiet", "--depth=1")
    project.allow_any_sha = False
    words = git(*old, address(server), first, cwd=tmp_path / "local", ok=False)
    assert "unadvertised object" in words

    project.allow_any_sha = True

    git(*old, address(server), first, cwd=tmp_path / "local")


def test_git_follows_a_moved_project_and_loses_a_deleted_one(
    server: GitLabServer, project: Project, tmp_path: Path
) -> None:
    project.move("platform/billing/payments")
    git("clone", "--quiet", address(server), "by-old-path", cwd=tmp_path)

    project.deleted = True

    assert "not found" in git("ls-remote", address(server), cwd=tmp_path, ok=False)


def test_pushing_is_refused(server: GitLabServer, tmp_path: Path) -> None:
    git("clone", "--quiet", address(server), "clone", cwd=tmp_path)

    assert "403" in git("push", "--quiet", "origin", "HEAD:other", cwd=tmp_path / "clone", ok=False)


@pytest.mark.parametrize("status", [403, 404])
def test_git_over_http_can_be_switched_off(
    server: GitLabServer, anonymous: httpx.Client, project: Project, tmp_path: Path, status: Any
) -> None:
    project.git_refused = status

    git("ls-remote", address(server), cwd=tmp_path, ok=False)

    assert server.log.git[-1].status == status
    answer = anonymous.get(f"{server.url}/api/v4/projects/42", headers={"PRIVATE-TOKEN": TOKEN})
    assert answer.status_code == 200


def dulwich_client(server: GitLabServer) -> HttpGitClient:
    return HttpGitClient(server.url, username="oauth2", password=TOKEN)


def test_dulwich_lists_refs(server: GitLabServer, repository: GitRepository) -> None:
    refs = dict(dulwich_client(server).get_refs(GIT.encode()).refs)

    head = (repository.head() or "").encode()
    assert refs == {b"HEAD": head, b"refs/heads/main": head}


def test_dulwich_fetches_trees_and_then_the_blobs_it_wants(
    server: GitLabServer, repository: GitRepository, tmp_path: Path
) -> None:
    client = dulwich_client(server)
    rows = repository.ls_tree()
    head = [ObjectID((repository.head() or "").encode())]
    blobs = [ObjectID(row.sha.encode()) for row in rows]
    with closing(Repo.init_bare(str(tmp_path / "trees"), mkdir=True)) as trees:
        client.fetch(GIT.encode(), trees, lambda refs, depth=None: head, depth=1, filter_spec=b"blob:none")
        kinds = {trees.object_store.get_raw(sha)[0] for sha in trees.object_store}
        held = [sha in trees.object_store for sha in blobs]
    with closing(Repo.init_bare(str(tmp_path / "blobs"), mkdir=True)) as content:
        client.fetch(GIT.encode(), content, lambda refs, depth=None: blobs)
        read = {sha.decode(): content.object_store.get_raw(sha)[1] for sha in blobs}

    assert (kinds, any(held)) == ({1, 2}, False)
    assert read == {row.sha: repository.read(row.sha) for row in rows}


def test_a_compressed_request_body_and_protocol_two_are_understood(
    server: GitLabServer, anonymous: httpx.Client, repository: GitRepository
) -> None:
    body = gzip.compress(b"0014command=ls-refs\n0015agent=test/1.0.0\n0001" + b"0009peel\n0000")
    headers = {
        "Content-Type": "application/x-git-upload-pack-request",
        "Content-Encoding": "gzip",
        "Git-Protocol": "version=2",
    }

    def pieces() -> Iterator[bytes]:
        yield body[:10]
        yield body[10:]

    whole = anonymous.post(f"{server.url}{GIT}/git-upload-pack", content=body, headers=headers, auth=("x", TOKEN))
    chunked = anonymous.post(f"{server.url}{GIT}/git-upload-pack", content=pieces(), headers=headers, auth=("x", TOKEN))

    assert f"{repository.head()} HEAD".encode() in whole.content
    assert chunked.content == whole.content


def test_a_client_that_goes_away_in_the_middle_ends_git_too(
    server: GitLabServer, repository: GitRepository, anonymous: httpx.Client
) -> None:
    size_bytes = 3_000_000
    repository.commit({"large.bin": random.Random(1).randbytes(size_bytes)})
    body = f"0032want {repository.head()}\n00000009done\n".encode()
    headers = {"Content-Type": "application/x-git-upload-pack-request"}
    gate = server.faults.hold(path="git-upload-pack", after_bytes=1_000)

    post = anonymous.build_request("POST", f"{GIT}/git-upload-pack", content=body, headers=headers)
    answer = anonymous.send(post, auth=("x", TOKEN), stream=True)
    assert gate.arrived.wait(30)
    children = psutil.Process().children()
    packers = [below for child in children for below in child.children(recursive=True)]
    assert packers
    answer.close()

    _, alive = psutil.wait_procs(packers, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    gate.open()
    server.log.wait_for(lambda records: len(records) == 1)
    assert server.log[0].bytes_out < size_bytes


def test_the_dumb_protocol_serves_nothing(server: GitLabServer, anonymous: httpx.Client) -> None:
    for path in (f"{GIT}/HEAD", f"{GIT}/info/refs", f"{GIT}/objects/info/packs", f"{GIT}/../payments.git/config"):
        assert anonymous.get(f"{server.url}{path}", auth=("x", TOKEN)).status_code in (403, 404), path
