"""Branches, commits and what lies between two of them."""

from __future__ import annotations

from datetime import UTC, datetime

import gitlab
import httpx
import pytest
from gitlab.v4.objects import Project as RemoteProject

from tests.fixtures.gitlab_server import GitLabServer
from tests.fixtures.repositories import GitRepository
from tests.integration.gitlab_server.conftest import API, Get


def test_a_branch_with_slashes_is_asked_for_encoded(remote: RemoteProject, repository: GitRepository) -> None:
    sha = repository.head()
    assert sha is not None
    repository.force(sha, branch="feature/pay/later")

    assert remote.branches.get("feature/pay/later").commit["id"] == sha
    assert remote.commits.get("feature/pay/later").id == sha
    assert {branch.name: branch.default for branch in remote.branches.list(iterator=True)} == {
        "feature/pay/later": False,
        "main": True,
    }
    assert remote.branches.list(search="^feat", get_all=True)[0].name == "feature/pay/later"
    with pytest.raises(gitlab.GitlabGetError, match="404 Branch Not Found"):
        remote.branches.get("no/such")


def test_a_branch_can_be_asked_for_without_a_body(client: httpx.Client) -> None:
    answers = [client.head(f"{API}/repository/branches/{name}") for name in ("main", "no-such")]

    assert [answer.status_code for answer in answers] == [204, 404]


def test_a_project_is_given_its_default_branch(server: GitLabServer, get: Get, repository: GitRepository) -> None:
    repository.commit({"x": b"1"}, branch="trunk")

    server.add_project("platform/again", repository.path, id=9, default_branch="trunk")

    assert get("/api/v4/projects/9").json()["default_branch"] == "trunk"
    assert get("/api/v4/projects/9/repository/commits/HEAD").json()["id"] == repository.head("trunk")


def test_head_follows_a_renamed_default_branch(get: Get, repository: GitRepository) -> None:
    repository.rename_branch("main", "trunk")

    assert get(API).json()["default_branch"] == "trunk"
    assert get(f"{API}/repository/commits/HEAD").json()["id"] == repository.head()
    assert get(f"{API}/repository/branches/main").status_code == 404


def test_a_project_without_default_branch_has_no_head(server: GitLabServer, get: Get) -> None:
    server.projects[0].no_default_branch = True

    assert get(API).json()["default_branch"] is None
    assert get(f"{API}/repository/commits/HEAD").json() == {"message": "404 Commit Not Found"}


def test_a_commit_is_found_by_any_name_and_counts_lines_only_when_asked(get: Get, repository: GitRepository) -> None:
    sha = repository.commit({"README.md": b"# Payments\nmore\n", "bin/deploy": None})
    repository.tag("v1", sha, message="One")

    shown = [get(f"{API}/repository/commits/{name}", stats="false").json() for name in ("main", "HEAD", sha[:9], "v1")]

    assert [row["id"] for row in shown] == [sha] * 4
    assert "stats" not in shown[0]
    assert get(f"{API}/repository/commits/{sha}").json()["stats"] == {"additions": 1, "deletions": 1, "total": 2}
    assert get(f"{API}/repository/commits/{'0' * 40}").json() == {"message": "404 Commit Not Found"}


def test_the_commits_list_is_not_counted_and_a_full_last_page_links_onward(get: Get, repository: GitRepository) -> None:
    for number in range(3):
        repository.commit({"n": b"%d" % number})

    last = get(f"{API}/repository/commits", per_page=2, page=2)
    beyond = get(f"{API}/repository/commits", per_page=2, page=3)

    assert "X-Total" not in last.headers
    assert (len(last.json()), last.headers["X-Next-Page"], "next" in last.links) == (2, "3", True)
    assert (beyond.json(), "next" in beyond.links) == ([], False)


def test_since_misses_a_commit_made_earlier_and_pushed_later(remote: RemoteProject, repository: GitRepository) -> None:
    repository.commit({"offline.py": b"1"}, when=datetime(2023, 6, 1, tzinfo=UTC))

    assert remote.commits.list(since="2023-12-01T00:00:00Z", get_all=True) == []
    assert len(remote.commits.list(query_parameters={"path": "offline.py"}, get_all=True)) == 1


def test_a_commits_diff_shows_renames(remote: RemoteProject, repository: GitRepository) -> None:
    sha = repository.commit({"README.md": None, "ABOUT.md": b"# Payments\n"})

    (row,) = remote.commits.get(sha).diff(get_all=True)

    assert (row["renamed_file"], row["old_path"], row["new_path"]) == (True, "README.md", "ABOUT.md")


def test_compare_forward_lists_commits_and_files(remote: RemoteProject, repository: GitRepository) -> None:
    before = repository.head()
    assert before is not None
    changes = {"README.md": b"# Pay\n", "bin/deploy": None, "docs/latest": b"a file now\n", "n\nl": b"\0\1"}
    after = repository.commit(changes)

    shown = remote.repository_compare(before, after)

    assert isinstance(shown, dict)
    assert ([row["id"] for row in shown["commits"]], shown["commit"]["id"]) == ([after], after)
    rows = {row["new_path"]: row for row in shown["diffs"]}
    assert rows["README.md"]["diff"] == "@@ -1 +1 @@\n-# Payments\n+# Pay\n"
    assert (rows["bin/deploy"]["deleted_file"], rows["bin/deploy"]["b_mode"]) == (True, "0")
    assert (rows["docs/latest"]["a_mode"], rows["docs/latest"]["b_mode"]) == ("120000", "100644")
    assert (rows["n\nl"]["new_file"], rows["n\nl"]["diff"][:12]) == (True, "Binary files")
    assert (shown["compare_timeout"], shown["compare_same_ref"]) == (False, False)


def test_compare_after_the_branch_went_backwards_is_empty_unless_straight(get: Get, repository: GitRepository) -> None:
    older = repository.head()
    newer = repository.commit({"README.md": None})
    query = {"from": newer, "to": older}

    merge_base = get(f"{API}/repository/compare", **query)
    straight = get(f"{API}/repository/compare", **query, straight="true")

    assert (merge_base.status_code, merge_base.json()["diffs"], merge_base.json()["commits"]) == (200, [], [])
    assert [row["new_path"] for row in straight.json()["diffs"]] == ["README.md"]


def test_compare_hides_what_the_other_side_had_on_diverged_history(get: Get, repository: GitRepository) -> None:
    base = repository.head()
    assert base is not None
    ours = repository.commit({"ours.py": b"1"})
    theirs = repository.commit({"theirs.py": b"2"}, parents=[base])
    query = {"from": ours, "to": theirs}

    merge_base = get(f"{API}/repository/compare", **query).json()["diffs"]
    straight = get(f"{API}/repository/compare", **query, straight="true").json()["diffs"]

    assert [row["new_path"] for row in merge_base] == ["theirs.py"]
    assert {row["old_path"]: row["deleted_file"] for row in straight} == {"ours.py": True, "theirs.py": False}


def test_compare_cuts_a_long_list_and_only_a_flag_says_so(get: Get, repository: GitRepository) -> None:
    before = repository.head()
    after = repository.many(1_001)

    shown = get(f"{API}/repository/compare", **{"from": before, "to": after}).json()

    assert (len(shown["diffs"]), shown["compare_timeout"]) == (1_000, True)
    assert [shown["diffs"][at]["collapsed"] for at in (0, 99, 100, 999)] == [False, False, True, True]
    assert shown["diffs"][100]["diff"] == ""


def test_compare_blanks_a_very_large_patch(get: Get, repository: GitRepository) -> None:
    before = repository.head()
    after = repository.commit({"large": b"x" * 300_000})

    (row,) = get(f"{API}/repository/compare", **{"from": before, "to": after}).json()["diffs"]

    assert (row["too_large"], row["diff"]) == (True, "")


def test_compare_with_an_unknown_sha_is_404(get: Get) -> None:
    answer = get(f"{API}/repository/compare", **{"from": "0" * 40, "to": "main"})

    assert (answer.status_code, answer.json()) == (404, {"message": "404 Ref Not Found"})
    assert get(f"{API}/repository/compare", to="main").json() == {"error": "from is missing"}
