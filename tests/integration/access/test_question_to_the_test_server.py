"""What the GitLab test server answers about the code of projects: what is known of GitLab, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.repositories import GitRepository

QUESTION = """query($ids: [ID!]!) { currentUser { id username }
  projects(ids: $ids, first: 100) { nodes { id userPermissions { adminProject } repository { __typename } } } }"""


@pytest.fixture
def gitlab(repository: GitRepository) -> Iterator[GitLabServer]:
    with GitLabServer() as gitlab:
        user = gitlab.rights.add_user("ada", id=9)
        gitlab.add_token("glpat-of-ada", user=user)
        gitlab.add_project("group/app", repository.path, id=1).members[9] = 40
        gitlab.add_project("group/hidden", repository.path, id=2)
        gitlab.add_project("group/open", repository.path, id=3, visibility="public").repository_access_level = "private"
        yield gitlab


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    return GitRepository.create(tmp_path / "repository.git")


def ask(gitlab: GitLabServer, token: str | None, *numbers: object, query: str = QUESTION) -> tuple[int, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    body = {"query": query, "variables": {"ids": [f"gid://gitlab/Project/{number}" for number in numbers]}}
    answer = httpx.post(f"{gitlab.url}/api/graphql", json=body, headers=headers)
    return answer.status_code, answer.json()


def test_hidden_projects_have_no_node_and_code_that_may_not_be_read_no_repository(gitlab: GitLabServer) -> None:
    status, answer = ask(gitlab, "glpat-of-ada", 1, 2, 3, 99)

    assert status == 200
    assert answer["data"]["currentUser"] == {"id": "gid://gitlab/User/9", "username": "ada"}
    assert answer["data"]["projects"]["nodes"] == [
        {
            "id": "gid://gitlab/Project/1",
            "userPermissions": {"adminProject": True},
            "repository": {"__typename": "Repository"},
        },
        {"id": "gid://gitlab/Project/3", "userPermissions": {"adminProject": False}, "repository": None},
    ]


def test_bad_tokens_and_questions_get_the_errors_of_gitlab(gitlab: GitLabServer) -> None:
    ada = gitlab.rights.users[9]
    gitlab.add_token("glpat-weak", scopes=("read_user",), user=ada)
    gitlab.add_token("glpat-old", expired=True, user=ada)

    assert ask(gitlab, None, 1)[1]["data"] == {"currentUser": None, "projects": {"nodes": []}}
    assert [ask(gitlab, token, 1)[0] for token in ("glpat-none", "glpat-weak", "glpat-old")] == [401, 401, 401]
    assert ask(gitlab, "glpat-of-ada", "one")[1]["errors"][0]["message"].endswith("is not a valid GitLab ID.")
    assert "errors" in ask(gitlab, "glpat-of-ada", 1, query="query { metadata { version } }")[1]
    assert ask(gitlab, "glpat-of-ada", 1, query=QUESTION + " " * 10_000)[0] == 422
    ada.state = "deactivated"
    assert ask(gitlab, "glpat-of-ada", 1)[0] == 403
    ada.state = "blocked"
    assert ask(gitlab, "glpat-of-ada", 1)[0] == 401
