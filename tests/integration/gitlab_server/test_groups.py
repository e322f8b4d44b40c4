"""A group's projects."""

from __future__ import annotations

from typing import Any

import gitlab
import httpx
import pytest

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.repositories import GitRepository
from tests.integration.gitlab_server.conftest import API, TOKEN


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
