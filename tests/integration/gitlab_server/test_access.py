"""Who may do what, by REST and by git."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.repositories import git_environment
from tests.integration.gitlab_server.conftest import GIT, REFS, TOKEN


def test_git_challenges_whoever_comes_without_credentials(server: GitLabServer, anonymous: httpx.Client) -> None:
    for path in (REFS, "/no/such.git/info/refs?service=git-upload-pack"):
        answer = anonymous.get(f"{server.url}{path}")
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="GitLab"')


def test_git_hides_what_the_token_does_not_see(server: GitLabServer, anonymous: httpx.Client) -> None:
    server.add_token("glpat-elsewhere", projects=[7])

    assert anonymous.get(f"{server.url}{REFS}", auth=("x", "glpat-elsewhere")).status_code == 404
    assert (
        anonymous.get(f"{server.url}/no/such.git/info/refs?service=git-upload-pack", auth=("x", TOKEN)).status_code
        == 404
    )


def test_anybody_may_clone_a_public_project(
    server: GitLabServer, anonymous: httpx.Client, project: Project, tmp_path: Path
) -> None:
    project.visibility = "public"

    command = ["git", "clone", "--quiet", f"{server.url}{GIT}", "clone"]
    subprocess.run(command, cwd=tmp_path, env=git_environment(), check=True)

    assert [record.credential for record in server.log.git] == [None, None, None]
    # A wrong token is refused even where none is needed.
    assert anonymous.get(f"{server.url}{REFS}", auth=("x", "wrong")).status_code == 401


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


def test_read_repository_is_git_and_files_only(server: GitLabServer, anonymous: httpx.Client) -> None:
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
    assert anonymous.get(f"{server.url}{REFS}", auth=("x", "glpat-narrow")).status_code == 200


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


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        ({"PRIVATE-TOKEN": TOKEN}, "private-token"),
        ({"Authorization": f"Bearer {TOKEN}"}, "bearer"),
        ({"Authorization": "Basic " + base64.b64encode(f"x:{TOKEN}".encode()).decode()}, "basic"),
    ],
)
def test_the_log_tells_which_header_authenticated(
    server: GitLabServer, anonymous: httpx.Client, headers: dict[str, str], credential: str
) -> None:
    answer = anonymous.get(f"{server.url}/api/v4/version", headers=headers)

    # Basic authentication is git's: REST does not read it.
    assert answer.status_code == (401 if credential == "basic" else 200)
    assert server.log[0].credential == credential
