"""Git over HTTP of the GitLab test server, driven by the git command and by dulwich; who may do what on both doors."""

from __future__ import annotations

import base64
import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from dulwich.client import HttpGitClient
from dulwich.objects import ObjectID
from dulwich.repo import Repo

from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.repositories import GitRepository, git_environment

TOKEN = "glpat-test"
GIT = "/platform/payments-api.git"
REFS = f"{GIT}/info/refs?service=git-upload-pack"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "payments.git")
    repository.commit({"README.md": b"# Payments\n"})
    repository.many(50)
    return repository


@pytest.fixture
def server(repository: GitRepository) -> Iterator[GitLabServer]:
    with GitLabServer() as server:
        server.add_project("platform/payments-api", repository.path, id=42)
        server.add_token(TOKEN)
        yield server


@pytest.fixture
def project(server: GitLabServer) -> Project:
    return server.projects[0]


def address(server: GitLabServer, *, user: str = "oauth2", token: str = TOKEN, path: str = GIT) -> str:
    return f"{server.url.replace('//', f'//{user}:{token}@')}{path}"


def git(*arguments: str, cwd: Path, ok: bool = True) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, env=git_environment(), capture_output=True, check=False)
    output = (done.stdout + done.stderr).decode()
    assert (done.returncode == 0) is ok, output
    return output


# The git command --------------------------------------------------------------------------------------------------


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
def test_git_over_http_can_be_switched_off(server: GitLabServer, project: Project, tmp_path: Path, status: Any) -> None:
    project.git_refused = status

    git("ls-remote", address(server), cwd=tmp_path, ok=False)

    assert server.log.git[-1].status == status
    answer = httpx.get(f"{server.url}/api/v4/projects/42", headers={"PRIVATE-TOKEN": TOKEN})
    assert answer.status_code == 200


# dulwich ----------------------------------------------------------------------------------------------------------


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


# What is on the wire ----------------------------------------------------------------------------------------------


def test_a_compressed_request_body_and_protocol_two_are_understood(
    server: GitLabServer, repository: GitRepository
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

    whole = httpx.post(f"{server.url}{GIT}/git-upload-pack", content=body, headers=headers, auth=("x", TOKEN))
    chunked = httpx.post(f"{server.url}{GIT}/git-upload-pack", content=pieces(), headers=headers, auth=("x", TOKEN))

    assert f"{repository.head()} HEAD".encode() in whole.content
    assert chunked.content == whole.content


def test_the_dumb_protocol_serves_nothing(server: GitLabServer) -> None:
    for path in (f"{GIT}/HEAD", f"{GIT}/info/refs", f"{GIT}/objects/info/packs", f"{GIT}/../payments.git/config"):
        assert httpx.get(f"{server.url}{path}", auth=("x", TOKEN)).status_code in (403, 404), path


# Doors ------------------------------------------------------------------------------------------------------------


def test_git_challenges_whoever_comes_without_credentials(server: GitLabServer) -> None:
    for path in (REFS, "/no/such.git/info/refs?service=git-upload-pack"):
        answer = httpx.get(f"{server.url}{path}")
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="GitLab"')


def test_git_hides_what_the_token_does_not_see(server: GitLabServer) -> None:
    server.add_token("glpat-elsewhere", projects=[7])

    assert httpx.get(f"{server.url}{REFS}", auth=("x", "glpat-elsewhere")).status_code == 404
    assert (
        httpx.get(f"{server.url}/no/such.git/info/refs?service=git-upload-pack", auth=("x", TOKEN)).status_code == 404
    )


def test_anybody_may_clone_a_public_project(server: GitLabServer, project: Project, tmp_path: Path) -> None:
    project.visibility = "public"

    git("clone", "--quiet", f"{server.url}{GIT}", "clone", cwd=tmp_path)

    assert [record.credential for record in server.log.git] == [None, None, None]
    # A wrong token is refused even where none is needed.
    assert httpx.get(f"{server.url}{REFS}", auth=("x", "wrong")).status_code == 401


def test_three_hundred_failed_logins_ban_for_a_quarter_of_an_hour(server: GitLabServer) -> None:
    now = 1_700_000_000.0
    server.clock = lambda: now
    with httpx.Client(base_url=server.url) as client:
        statuses = {client.get(REFS, auth=("x", "wrong")).status_code for _ in range(299)}
        client.get(REFS, auth=("x", TOKEN))
        assert server.login_guard.failures == 0
        statuses |= {client.get(REFS, auth=("x", "wrong")).status_code for _ in range(300)}
        banned = client.get(REFS, auth=("x", TOKEN))
        rest = client.get("/api/v4/version", headers={"PRIVATE-TOKEN": TOKEN})
        now += 15 * 60
        later = client.get(REFS, auth=("x", TOKEN))

    assert statuses == {401}
    assert (banned.status_code, banned.text, rest.status_code, later.status_code) == (403, "Forbidden\n", 200, 200)


def test_read_repository_is_git_and_files_only(server: GitLabServer) -> None:
    server.add_token("glpat-narrow", scopes={"read_repository"})
    with httpx.Client(base_url=f"{server.url}/api/v4", headers={"PRIVATE-TOKEN": "glpat-narrow"}) as client:
        refused = [
            client.get(path)
            for path in (
                "/projects/42",
                "/projects/42/repository/tree",
                "/projects/42/repository/compare?from=main&to=main",
                "/projects/42/repository/commits/main",
                "/version",
            )
        ]
        file = client.get("/projects/42/repository/files/README.md?ref=main")

    assert {answer.status_code for answer in refused} == {403}
    assert refused[0].json() == {
        "error": "insufficient_scope",
        "error_description": "The request requires higher privileges than provided by the access token.",
        "scope": "api read_api",
    }
    assert file.status_code == 200
    assert httpx.get(f"{server.url}{REFS}", auth=("x", "glpat-narrow")).status_code == 200


def test_tokens_that_are_dead_or_unknown_say_so(server: GitLabServer) -> None:
    server.add_token("glpat-old", expired=True)
    server.add_token("glpat-gone", revoked=True)
    server.add_token("glpat-profile", scopes={"read_user"})

    def ask(token: str) -> tuple[int, Any]:
        answer = httpx.get(f"{server.url}/api/v4/projects/42", headers={"Authorization": f"Bearer {token}"})
        return answer.status_code, answer.json()

    expired = "Token is expired. You can either do re-authorization or token refresh."
    revoked = "Token was revoked. You have to re-authorize from the user."
    assert ask("glpat-old") == (401, {"error": "invalid_token", "error_description": expired})
    assert ask("glpat-gone") == (401, {"error": "invalid_token", "error_description": revoked})
    assert ask("nonsense") == (401, {"message": "401 Unauthorized"})
    assert ask("glpat-profile")[0] == 403
    for token in ("glpat-old", "glpat-gone", "nonsense", "glpat-profile"):
        assert httpx.get(f"{server.url}{REFS}", auth=("x", token)).status_code == 401


def test_without_a_token_a_public_project_lacks_fields_and_a_private_one_is_not_there(
    server: GitLabServer, project: Project
) -> None:
    private = httpx.get(f"{server.url}/api/v4/projects/42")
    project.visibility = "public"
    public = httpx.get(f"{server.url}/api/v4/projects/42").json()
    known = httpx.get(f"{server.url}/api/v4/projects/42", headers={"PRIVATE-TOKEN": TOKEN}).json()

    assert (private.status_code, private.json()) == (404, {"message": "404 Project Not Found"})
    assert "archived" not in public
    assert "empty_repo" not in public
    assert (known["archived"], known["empty_repo"]) == (False, False)
    assert httpx.get(f"{server.url}/api/v4/version").status_code == 401
    assert httpx.get(f"{server.url}/api/v4/projects/42/repository/tree").status_code == 200


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        ({"PRIVATE-TOKEN": TOKEN}, "private-token"),
        ({"Authorization": f"Bearer {TOKEN}"}, "bearer"),
        ({"Authorization": "Basic " + base64.b64encode(f"x:{TOKEN}".encode()).decode()}, "basic"),
    ],
)
def test_the_log_tells_which_header_authenticated(
    server: GitLabServer, headers: dict[str, str], credential: str
) -> None:
    answer = httpx.get(f"{server.url}/api/v4/version", headers=headers)

    # Basic authentication is git's: REST does not read it.
    assert answer.status_code == (401 if credential == "basic" else 200)
    assert server.log[0].credential == credential


# By hand ----------------------------------------------------------------------------------------------------------


def test_it_starts_by_hand_and_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-m", "tests.fixtures.gitlab_server", "--files", "20"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        token = process.stdout.readline().removeprefix("token: ").strip()
        words = ""
        while "until Ctrl-C" not in words:
            words += process.stdout.readline()
        headers = {"PRIVATE-TOKEN": token}
        tree = httpx.get(f"{url}/api/v4/projects/platform%2Ftools%2Fmany/repository/tree", headers=headers)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)

    assert tree.json()[0]["path"] == "src"
    assert "curl " in words
    assert "git clone " in words
    assert process.returncode == 0
