"""Trees: pages, orders and the two kinds of 404."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gitlab.v4.objects import Project as RemoteProject

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.repositories import GitRepository
from tests.integration.gitlab_server.conftest import API, Get


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


def test_all_folders_come_before_all_files_so_whole_pages_hold_no_file(get: Get) -> None:
    pages = [get(f"{API}/repository/tree", recursive="true", per_page=3, page=page).json() for page in (1, 2, 3, 4)]

    kinds = [[row["type"] for row in page] for page in pages]
    assert kinds == [["tree"] * 3, ["tree"] * 3, ["blob"] * 3, ["blob"] * 3]
    assert [row["type"] for row in get(f"{API}/repository/tree", recursive="true", per_page=3, page=5).json()] == [
        "commit"
    ]


def test_the_first_numbered_page_of_a_tree_always_names_a_second(get: Get) -> None:
    first = get(f"{API}/repository/tree")
    second = get(first.links["next"]["url"])

    assert (first.headers["X-Next-Page"], first.headers["X-Total"]) == ("2", "5")
    assert (second.json(), second.headers["X-Next-Page"]) == ([], "")


def test_a_keyset_page_that_ends_the_tree_has_no_link(get: Get) -> None:
    page = get(f"{API}/repository/tree", recursive="true", per_page=13, pagination="keyset")

    assert (len(page.json()), "Link" in page.headers, "X-Total" in page.headers) == (13, False, False)
    assert get(f"{API}/repository/tree", pagination="keyset", page_token="rubbish").status_code == 400


def test_a_page_holds_at_most_a_hundred_rows(get: Get, repository: GitRepository) -> None:
    repository.commit({f"flat/{number:03}": b"" for number in range(150)})

    assert len(get(f"{API}/repository/tree", path="flat", per_page=1000).json()) == 100


def test_a_whole_tree_in_one_answer_must_be_recursive(get: Get) -> None:
    answer = get(f"{API}/repository/tree", pagination="none")

    assert (answer.status_code, "error" in answer.json()) == (400, True)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"path": "no/such"}, "404 invalid revision or path Not Found"),
        ({"path": "README.md"}, "404 invalid revision or path Not Found"),
        ({"ref": "no-such"}, "404 Tree Not Found"),
        ({"ref": "--all"}, "404 Tree Not Found"),
    ],
)
def test_a_missing_path_and_a_missing_ref_are_different_404s(get: Get, query: dict[str, str], message: str) -> None:
    answer = get(f"{API}/repository/tree", **query)

    assert (answer.status_code, answer.json()) == (404, {"message": message})


def test_an_empty_repository_names_a_branch_that_is_not_there(server: GitLabServer, get: Get, tmp_path: Path) -> None:
    server.add_project("platform/empty", GitRepository.create(tmp_path / "empty.git").path, id=7)

    shown = get("/api/v4/projects/7").json()
    tree = get("/api/v4/projects/7/repository/tree")

    assert (shown["default_branch"], shown["empty_repo"]) == ("main", True)
    assert (tree.status_code, tree.json()) == (404, {"message": "404 Tree Not Found"})
    assert get("/api/v4/projects/7/repository/branches").json() == []
    assert get("/api/v4/projects/7/repository/commits").json() == []
    assert get("/api/v4/projects/7/repository/commits/HEAD").status_code == 404


def test_bytes_of_a_path_that_are_not_utf8_are_dropped(get: Get, repository: GitRepository) -> None:
    repository.commit({b"caf\xe9.py": b"1", b"caf\xe8.py": b"2"}, replace=True)

    assert [row["path"] for row in get(f"{API}/repository/tree").json()] == ["caf.py", "caf.py"]
