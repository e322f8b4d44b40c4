"""The builder of git repositories that other tests stand on."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tests.fixtures.repositories import Content, Executable, GitRepository, Submodule, Symlink, many_path

AWKWARD = {
    b"plain.txt": b"plain\n",
    b'new\nline "quoted" \\ back.txt': b"1",
    b"caf\xe9.txt": b"2",
    b"-dash": b"3",
    b"100%2F.txt": b"4",
    b"empty": b"",
    b"binary": bytes(range(256)),
}


def test_any_path_and_content_comes_back_as_it_was_committed(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")

    repository.commit(AWKWARD)

    assert {row.path: repository.read(row.sha) for row in repository.ls_tree()} == AWKWARD


def test_links_submodules_and_executables_have_their_modes(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")

    files: dict[str, Content] = {"link": Symlink("target"), "run": Executable(b"#!"), "file": b""}
    repository.commit(files | {"sub": Submodule("1" * 40)})

    modes = {row.path: f"{row.mode:06o}" for row in repository.ls_tree()}
    assert modes == {b"link": "120000", b"run": "100755", b"sub": "160000", b"file": "100644"}


def test_commits_stand_on_each_other_and_none_deletes(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")
    first = repository.commit({"a": b"1", "b": b"2"})

    second = repository.commit({"a": None, "c": b"3"})

    assert [row.path for row in repository.ls_tree()] == [b"b", b"c"]
    assert repository.git("rev-list", "HEAD").decode().split() == [second, first]


def test_a_replacing_commit_keeps_only_what_it_names(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")
    repository.commit({"a": b"1", "b/c": b"2"})

    repository.commit({"d": b"3"}, replace=True)

    assert [row.path for row in repository.ls_tree()] == [b"d"]


def test_parents_make_merges_and_new_roots(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")
    old = repository.commit({"a": b"1"})
    root = repository.commit({"b": b"2"}, parents=[])

    merge = repository.commit({}, parents=[root, old])

    assert repository.git("rev-list", "--parents", "-1", merge).decode().split() == [merge, root, old]
    assert [row.path for row in repository.ls_tree(root)] == [b"b"]


def test_the_same_commits_have_the_same_shas_in_every_run(tmp_path: Path) -> None:
    one, other = (GitRepository.create(tmp_path / name) for name in ("one.git", "other.git"))

    shas = [repository.commit({"a": b"1"}, message="First") for repository in (one, other)]

    assert shas[0] == shas[1]


def test_a_commit_has_the_date_it_was_given(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")

    repository.commit({"a": b"1"}, when=datetime(2020, 2, 29, 12, tzinfo=UTC))

    assert repository.git("log", "-1", "--format=%cI").decode().startswith("2020-02-29T12:00:00")


def test_renaming_the_default_branch_moves_head_with_it(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")
    sha = repository.commit({"a": b"1"})

    repository.rename_branch("main", "trunk")

    assert (repository.head(), repository.head("trunk"), repository.head("main")) == (sha, sha, None)


def test_a_forced_branch_leaves_its_old_head_behind(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")
    first = repository.commit({"a": b"1"})
    repository.commit({"a": b"2"})

    repository.force(first)

    assert repository.head() == first


def test_many_files_are_all_different_and_one_commit(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")

    sha = repository.many(1_000)

    rows = repository.ls_tree(sha)
    assert [row.path for row in rows] == [many_path(number) for number in range(1_000)]
    assert len({row.sha for row in rows}) == 1_000


def test_an_empty_repository_has_no_head_and_a_clone_has_the_files(tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git")
    assert repository.head() is None
    repository.commit({"a": b"1\n"})

    clone = repository.clone(tmp_path / "clone")

    assert (clone / "a").read_bytes() == b"1\n"
    subprocess.run(["git", "-C", str(clone), "fsck", "--strict"], check=True, capture_output=True)
