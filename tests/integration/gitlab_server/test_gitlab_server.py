"""A smoke test of the GitLab of the tests with an unmodified client. Details that the product relies on are proven by
the product's own tests in tests/integration/sources."""

from __future__ import annotations

from pathlib import Path

import gitlab
import httpx
import pytest

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.repositories import Executable, GitRepository, Submodule, Symlink

TOKEN = "glpat-test"


def test_python_gitlab_reads_what_the_repository_holds(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "payments.git")
    repository.commit({"bin/run": Executable(b"#!/bin/sh\n"), "link": Symlink("/x"), "library": Submodule("1" * 40)})
    with GitLabServer() as server:
        server.add_project("platform/payments-api", repository.path, id=42)
        server.add_token(TOKEN, scopes={"api"})
        with gitlab.Gitlab(server.url, private_token=TOKEN, timeout=30) as connection:
            remote = connection.projects.get("platform/payments-api")
            rows = list(remote.repository_tree(recursive=True, iterator=True, per_page=2, pagination="keyset"))
            head = remote.commits.get("HEAD").id
            groups = connection.groups.get("platform", lazy=True).projects.list(get_all=True, include_subgroups=True)

    found = {(row["path"].encode(), row["id"], row["mode"]) for row in rows if row["type"] != "tree"}
    assert found == {(row.path, row.sha, f"{row.mode:06o}") for row in repository.ls_tree()}
    assert head == repository.head()
    assert [each.id for each in groups] == [42]


def test_a_crash_of_the_server_fails_the_test_that_met_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="crashed"), GitLabServer() as server:
        server.add_project("a/gone", tmp_path / "nowhere.git", id=1, visibility="public")
        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 500
