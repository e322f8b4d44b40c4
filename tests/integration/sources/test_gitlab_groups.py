"""The projects of a group as its client sees them: pages, limits, addresses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from reposync.errors import SourceError
from reposync.sources import gitlab_groups
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.gitlab_groups import GitLabGroup
from tests.fixtures.gitlab_server import GitLabServer, Project
from tests.fixtures.gitlab_server.rest import namespace_id
from tests.integration.sources.conftest import PATH, QUICK, Watched, instance

OpenGroup = Callable[..., GitLabGroup]


@pytest.fixture
async def group(server: GitLabServer, project: Project) -> AsyncGenerator[OpenGroup, None]:
    """Opens the group of the project."""
    opened: list[GitLabGroup] = []

    def open_group(path: str = "platform", **changes: Any) -> GitLabGroup:
        opened.append(GitLabGroup(GitLabClient(instance(server.url), retry=QUICK, **changes), path))
        return opened[-1]

    yield open_group
    for each in opened:
        await each.close()


async def test_a_group_may_be_given_by_number_and_its_requests_are_counted(group: OpenGroup) -> None:
    watched = Watched()

    listing = await group(str(namespace_id("platform")), observer=watched).projects(archived=False)

    assert [each.path for each in listing.projects] == [PATH]
    assert watched.requests == ["api_group"]


async def test_a_listing_beyond_all_reason_is_given_up(
    server: GitLabServer, group: OpenGroup, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(150):
        server.add_project(f"platform/service-{number}", project.repository.path)
    monkeypatch.setattr(gitlab_groups, "MAX_PROJECTS", 120)
    with pytest.raises(SourceError, match=r"group platform on .* more than 120 projects") as raised:
        await group().projects(archived=False)
    assert "List smaller groups" in str(raised.value)


async def test_empty_pages_that_go_on_for_ever_are_given_up(
    server: GitLabServer, group: OpenGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gitlab_groups, "MAX_PAGES", 5)
    for number in range(10):
        link = f'<{server.url}/api/v4/groups/platform/projects?id_after={number}>; rel="next"'
        server.faults.answer(200, "[]", path="/groups/", headers={"Link": link}, media_type="application/json")
    with pytest.raises(SourceError, match="or 5 pages"):
        await group().projects(archived=False)
