"""The GitLab of the tests, read by an unmodified client."""

from __future__ import annotations

import gitlab
import httpx
import pytest

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.repositories import Executable, GitRepository, Submodule, Symlink
from tests.integration.sources.conftest import PATH, TOKEN, Site


def test_python_gitlab_reads_what_the_repository_holds(site: Site) -> None:
    site.repository.commit(
        {"bin/run": Executable(b"#!/bin/sh\n"), "link": Symlink("/x"), "library": Submodule("1" * 40)}
    )
    with gitlab.Gitlab(site.server.url, oauth_token=TOKEN, timeout=PATIENCE_SECONDS) as connection:
        project = connection.projects.get(PATH)
        rows = list(project.repository_tree(recursive=True, iterator=True, per_page=2, pagination="keyset"))
        head = project.commits.get("HEAD").id
        group = connection.groups.get("platform", lazy=True)
        projects = group.projects.list(get_all=True, include_subgroups=True)

    found = {(row["path"].encode(), row["id"], row["mode"]) for row in rows if row["type"] != "tree"}
    assert found == {(row.path, row.sha, f"{row.mode:06o}") for row in site.repository.ls_tree()}
    assert head == site.repository.head()
    assert [each.id for each in projects] == [42]


def test_a_crash_of_the_server_fails_the_test_that_met_it(repository: GitRepository) -> None:
    with pytest.raises(AssertionError, match="crashed"), GitLabServer() as server:
        server.add_project("a/gone", repository.path / "nowhere", id=1, visibility="public")
        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 500
