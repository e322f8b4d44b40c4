"""The GitLab test server's REST, asked by an unmodified python-gitlab and, where headers matter, by httpx."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gitlab
import httpx
import pytest
from gitlab.v4.objects import Project as RemoteProject

from tests.fixtures.gitlab_server import Contract, GitLabServer
from tests.fixtures.repositories import Content, Executable, GitRepository, Submodule, Symlink

TOKEN = "glpat-test"
API = "/api/v4/projects/42"
FILES: dict[bytes, Content] = {
    b"README.md": b"# Payments\n",
    b"bin/deploy": Executable(b"#!/bin/sh\n"),
    b"docs/latest": Symlink("../README.md"),
    b"docs/new\nline.md": b"newline\n",
    b"docs/100%2F of it.md": b"percent\n",
    b"src/deep/er/module.py": b"x = 1\n",
    b"vendor/library": Submodule("1" * 40),
}


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    repository = GitRepository.create(tmp_path / "payments.git")
    repository.commit(FILES, message="Start\n\nWith a body.")
    return repository


@pytest.fixture
def server(repository: GitRepository) -> Iterator[GitLabServer]:
    with GitLabServer(contract=Contract.load()) as server:
        server.add_project("platform/payments-api", repository.path, id=42)
        server.add_token(TOKEN)
        yield server
        assert server.contract_errors == []


@pytest.fixture
def project(server: GitLabServer) -> Iterator[RemoteProject]:
    with gitlab.Gitlab(server.url, private_token=TOKEN, timeout=30) as client:
        yield client.projects.get("platform/payments-api")


@pytest.fixture
def get(server: GitLabServer) -> Iterator[Callable[..., httpx.Response]]:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as client:

        def ask(path: str, /, **query: Any) -> httpx.Response:
            return client.get(path, params=query or None)

        yield ask


Get = Callable[..., httpx.Response]


# Trees ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paging", [{"per_page": 2}, {"per_page": 2, "pagination": "keyset"}, {"pagination": "none"}])
def test_every_way_to_page_a_tree_gives_what_git_lists(
    project: RemoteProject, repository: GitRepository, paging: dict[str, Any]
) -> None:
    if paging.get("pagination") == "none":
        rows = list(project.repository_tree(recursive=True, get_all=False, **paging))
    else:
        rows = list(project.repository_tree(recursive=True, iterator=True, **paging))

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
    second = httpx.get(first.links["next"]["url"], headers={"Authorization": f"Bearer {TOKEN}"})

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


# Branches and commits ---------------------------------------------------------------------------------------------


def test_a_branch_with_slashes_is_asked_for_encoded(project: RemoteProject, repository: GitRepository) -> None:
    sha = repository.head()
    assert sha is not None
    repository.force(sha, branch="feature/pay/later")

    assert project.branches.get("feature/pay/later").commit["id"] == sha
    assert project.commits.get("feature/pay/later").id == sha
    assert {branch.name: branch.default for branch in project.branches.list(iterator=True)} == {
        "feature/pay/later": False,
        "main": True,
    }
    assert project.branches.list(search="^feat", get_all=True)[0].name == "feature/pay/later"
    with pytest.raises(gitlab.GitlabGetError, match="404 Branch Not Found"):
        project.branches.get("no/such")


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


def test_since_misses_a_commit_made_earlier_and_pushed_later(project: RemoteProject, repository: GitRepository) -> None:
    repository.commit({"offline.py": b"1"}, when=datetime(2023, 6, 1, tzinfo=UTC))

    assert project.commits.list(since="2023-12-01T00:00:00Z", get_all=True) == []
    assert len(project.commits.list(query_parameters={"path": "offline.py"}, get_all=True)) == 1


def test_a_commits_diff_shows_renames(project: RemoteProject, repository: GitRepository) -> None:
    sha = repository.commit({"README.md": None, "ABOUT.md": b"# Payments\n"})

    (row,) = project.commits.get(sha).diff(get_all=True)

    assert (row["renamed_file"], row["old_path"], row["new_path"]) == (True, "README.md", "ABOUT.md")


# Blobs and files --------------------------------------------------------------------------------------------------


def test_blobs_come_raw_and_as_json(project: RemoteProject, repository: GitRepository) -> None:
    content = bytes(range(256)) * 10
    repository.commit({"logo.bin": content})
    sha = next(row.sha for row in repository.ls_tree() if row.path == b"logo.bin")

    shown = project.repository_blob(sha)

    assert project.repository_raw_blob(sha) == content
    assert isinstance(shown, dict)
    assert (base64.b64decode(shown["content"]), shown["size"], shown["sha"]) == (content, 2560, sha)


def test_what_is_no_blob_is_not_found(get: Get, repository: GitRepository) -> None:
    for name in ("0" * 40, repository.head(), "main", "HEAD:README.md"):
        answer = get(f"{API}/repository/blobs/{name}/raw")
        assert (answer.status_code, answer.json()) == (404, {"message": "404 Blob Not Found"})


def test_a_sixth_large_blob_a_minute_is_refused_as_json_but_not_raw(
    server: GitLabServer, get: Get, repository: GitRepository
) -> None:
    now = 1_700_000_000.0
    server.clock = lambda: now
    repository.commit({"large": bytes(10 * 1024 * 1024 + 1)})
    sha = next(row.sha for row in repository.ls_tree() if row.path == b"large")

    statuses = [get(f"{API}/repository/blobs/{sha}").status_code for _ in range(6)]
    raw = get(f"{API}/repository/blobs/{sha}/raw").status_code
    now += 61
    later = get(f"{API}/repository/blobs/{sha}").status_code

    assert (statuses, raw, later) == ([200] * 5 + [429], 200, 200)


def test_a_files_headers_tell_everything_but_its_content(project: RemoteProject, repository: GitRepository) -> None:
    made = repository.head()
    head = repository.commit({"other": b"1"})
    content = b"#!/bin/sh\n"

    headers = project.files.head("bin/deploy", ref="main")
    raw = project.files.raw("bin/deploy", ref="main")

    shown = {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-gitlab-")}
    assert shown == {
        "x-gitlab-blob-id": next(row.sha for row in repository.ls_tree() if row.path == b"bin/deploy"),
        "x-gitlab-commit-id": head,
        "x-gitlab-content-sha256": hashlib.sha256(content).hexdigest(),
        "x-gitlab-encoding": "base64",
        "x-gitlab-file-name": "deploy",
        "x-gitlab-file-path": "bin/deploy",
        "x-gitlab-last-commit-id": made,
        "x-gitlab-ref": "main",
        "x-gitlab-size": "10",
        "x-gitlab-execute-filemode": "true",
    }
    assert raw == content


@pytest.mark.parametrize("path", ["docs/new\nline.md", "docs/100%2F of it.md", "src/deep/er/module.py"])
def test_a_file_is_found_by_its_encoded_path(project: RemoteProject, path: str) -> None:
    shown = project.files.get(path, ref="main")

    assert (shown.file_path, shown.decode()) == (path, FILES[path.encode()])


def test_a_file_wants_a_ref_and_says_what_is_missing(get: Get) -> None:
    assert get(f"{API}/repository/files/README.md").json() == {"error": "ref is missing"}
    assert get(f"{API}/repository/files/README.md", ref="no").json() == {"message": "404 Commit Not Found"}
    assert get(f"{API}/repository/files/no", ref="main").json() == {"message": "404 File Not Found"}
    assert get(f"{API}/repository/files/vendor%2Flibrary", ref="main").json() == {"message": "404 File Not Found"}


# Compare ----------------------------------------------------------------------------------------------------------


def test_compare_forward_lists_commits_and_files(project: RemoteProject, repository: GitRepository) -> None:
    before = repository.head()
    assert before is not None
    changes = {"README.md": b"# Pay\n", "bin/deploy": None, "docs/latest": b"a file now\n", "n\nl": b"\0\1"}
    after = repository.commit(changes)

    shown = project.repository_compare(before, after)

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


# The answers as such ----------------------------------------------------------------------------------------------


def test_answers_are_compressed_when_asked(server: GitLabServer, get: Get, repository: GitRepository) -> None:
    repository.many(500)

    rows = get(f"{API}/repository/tree", recursive="true", pagination="none").json()
    plain = httpx.get(f"{server.url}{API}", headers={"Accept-Encoding": "identity", "Authorization": f"Bearer {TOKEN}"})

    assert len(rows) > 500
    assert (server.log[0].content_encoding, "content-encoding" in plain.headers) == ("gzip", False)
    assert server.log[0].bytes_out < server.log[0].bytes_out + 1 < 100 * len(rows)


def test_links_lead_to_the_address_that_gitlab_believes_to_have(server: GitLabServer, get: Get) -> None:
    server.external_url = "https://gitlab.example.com"

    link = get(f"{API}/repository/tree", pagination="keyset", per_page=1).links["next"]["url"]

    assert link.startswith("https://gitlab.example.com/api/v4/projects/42/repository/tree?")


def test_the_log_counts_requests_and_keeps_no_secret(server: GitLabServer, project: RemoteProject) -> None:
    project.branches.get("main")
    httpx.get(f"{server.url}/platform/payments-api.git/info/refs?service=git-upload-pack", auth=("x", TOKEN))

    assert [record.service for record in server.log] == ["rest", "rest", "git"]
    assert [record.credential for record in server.log] == ["private-token", "private-token", "basic"]
    assert server.log[0].user_agent.startswith("python-gitlab/")
    assert [record.path for record in server.log.matching("branches/main", method="GET")] == [
        f"{API}/repository/branches/main"
    ]
    assert TOKEN not in repr(list(server.log))
    server.log.forget()
    assert len(server.log) == 0


def test_an_unknown_route_and_method_are_answered_as_grape_does(server: GitLabServer, get: Get) -> None:
    assert get("/api/v4/nonsense").json() == {"error": "404 Not Found"}
    answer = httpx.delete(f"{server.url}{API}", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.json()) == (405, {"error": "405 Not Allowed"})


def test_a_crash_of_the_server_fails_the_test_that_met_it(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="crashed"), GitLabServer() as server:
        server.add_project("a/gone", tmp_path / "nowhere.git", id=1, visibility="public")
        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 500


def test_the_contract_is_at_hand_and_notices_a_wrong_answer() -> None:
    contract = Contract.load()
    if contract is None:
        pytest.skip("GitLab's OpenAPI file is not beside this checkout (../shared/contracts)")
    good: dict[str, Any] = {"id": "1" * 40, "name": "a", "type": "blob", "path": "a", "mode": "100644"}
    tree = "/api/v4/projects/{id}/repository/tree"

    def errors(body: object, *, path: str = tree, status: int = 200, parameters: tuple[str, ...] = ()) -> list[str]:
        contract.errors.clear()
        from tests.fixtures.gitlab_server.answers import json_response

        contract.check("GET", path, parameters, json_response(body, status=status))
        return list(contract.errors)

    assert errors([good]) == []
    assert "123 is not of type 'string'" in errors([good | {"mode": 123}])[0]
    assert "sha" in errors([good | {"sha": "1"}])[0]
    assert "is not of type 'array'" in errors(good)[0]
    assert "unknown parameter" in errors([good], parameters=("recursiv",))[0]
    assert "status 201" in errors([good], status=201)[0]
    assert "not in the contract" in errors([], path="/api/v4/nonsense")[0]
    commits = "/api/v4/projects/{id}/repository/commits"
    assert "date-time" in errors([{"created_at": "yesterday"}], path=commits)[0]
    assert errors([{"created_at": "2024-01-01T00:00:00.000+00:00"}], path=commits) == []


def test_a_wrong_answer_of_the_running_server_is_collected(repository: GitRepository) -> None:
    contract = Contract.load()
    if contract is None:
        pytest.skip("GitLab's OpenAPI file is not beside this checkout (../shared/contracts)")
    with GitLabServer(contract=contract) as server:
        wrong: Any = 5
        server.add_project("a/b", repository.path, id=1, visibility="public", description=wrong)

        assert httpx.get(f"{server.url}/api/v4/projects/1").status_code == 200
        assert re.search(r"description.*5 is not", server.contract_errors[0])
