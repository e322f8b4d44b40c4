"""Trees and commits as data: hostile names, bombs, impossible dates; GitLab's listing and its proof."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.errors import SourceCorrupt, SourceError
from reposync.sources import objects
from reposync.sources.gitlab_listing import Listing
from reposync.sources.objects import COMMIT, TREE, aware_time, object_sha, parse_commit, tree_sha, walk_tree
from reposync.sources.port import Commit, TreeEntry

BLOB_SHA = "ce013625030ba8dba906f756967f9e9ca394464a"

Row = tuple[bytes, int, str]


class Trees:
    """Tree objects by name, as a repository would give them."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.reads = 0

    def add(self, rows: list[Row]) -> str:
        content = b"".join(b"%o %s\0%s" % (mode, name, bytes.fromhex(sha)) for name, mode, sha in rows)
        sha = object_sha(TREE, content)
        self.stored[sha] = content
        return sha

    def read(self, shas: Sequence[str]) -> dict[str, bytes]:
        self.reads += len(shas)
        return {sha: self.stored[sha] for sha in shas}


def test_hostile_names_are_data_and_nothing_else() -> None:
    trees = Trees()
    inner = trees.add([(b"config", 0o100644, BLOB_SHA)])
    names = [b"..", b"/etc/passwd", b"a\nb", b"-rf", b'"', b"\xff\xfe", b"C:\\x", b"%2F"]
    root = trees.add([*((name, 0o100644, BLOB_SHA) for name in names), (b".git", 0o040000, inner)])

    found = walk_tree(root, trees.read)

    assert {entry.path for entry in found} == {*names, b".git/config"}


def test_a_path_that_stands_twice_in_a_tree_is_one_file() -> None:
    trees = Trees()
    other = "1" * 40
    root = trees.add([(b"a", 0o100644, BLOB_SHA), (b"a", 0o100644, other)])

    assert walk_tree(root, trees.read) == [TreeEntry(b"a", 0o100644, BLOB_SHA)]


def test_a_tree_that_would_unfold_to_ten_billion_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_TREES", 20_000)  # the limit in force takes seconds to reach
    trees = Trees()
    sha = trees.add([(b"f%d" % number, 0o100644, BLOB_SHA) for number in range(10)])
    for _ in range(9):
        sha = trees.add([(b"d%d" % number, 0o040000, sha) for number in range(10)])

    with pytest.raises(SourceError, match="lists more than"):
        walk_tree(sha, trees.read)
    assert trees.reads < 100, "a tree that stands in many places is read once a level"


@given(st.binary(min_size=1, max_size=200))
def test_trees_and_commits_of_rubbish_are_corrupt_or_read_but_never_something_else(content: bytes) -> None:
    root = "0" * 40
    with contextlib.suppress(SourceCorrupt):
        walk_tree(root, lambda shas: {sha: content if sha == root else b"" for sha in shas})
    with contextlib.suppress(SourceCorrupt):
        parse_commit(root, content)


@pytest.mark.parametrize("seconds", [10**20, -(10**20), 10**12, -1, 0])
def test_dates_that_no_calendar_holds_become_the_nearest_one(seconds: int) -> None:
    assert aware_time(seconds).tzinfo is UTC


def test_a_commit_has_the_committer_s_date_and_its_root_tree() -> None:
    head = f"tree {BLOB_SHA}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1700000000 +0200\nencoding ISO-8859-1\n\n"
    content = head.encode() + "Größe\n\nmehr".encode("latin-1")

    committed_at = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert parse_commit("1" * 40, content) == (Commit("1" * 40, committed_at), BLOB_SHA)


def listed(rows: list[dict[str, Any]]) -> Listing:
    listing = Listing()
    listing.add(rows)
    return listing


def row(path: str, mode: int, sha: str) -> dict[str, Any]:
    return {"id": sha, "name": path.rpartition("/")[2], "type": "blob", "path": path, "mode": f"{mode:06o}"}


def commit_json(root: str) -> dict[str, Any]:
    person = "Ada Lovelace <ada@example.com> 1700000000 +0530"
    content = f"tree {root}\nauthor {person}\ncommitter {person}\n\nChange\n".encode()
    who = {"{}_name": "Ada Lovelace", "{}_email": "ada@example.com", "{}ed_date": "2023-11-15T03:43:20.000+05:30"}
    people = {key.format(role): value for key, value in who.items() for role in ("author", "committer", "committ")}
    return people | {"id": object_sha(COMMIT, content), "parent_ids": [], "message": "Change\n"}


def proves(listing: Listing, commit: dict[str, Any]) -> bool:
    return listing.proves(commit["id"], commit)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=6)


@given(
    top=st.sets(NAMES, min_size=1, max_size=5), inner=st.sets(NAMES, min_size=1, max_size=5), drop=st.integers(0, 99)
)
def test_a_true_listing_is_proven_and_one_that_lacks_a_row_is_not(top: set[str], inner: set[str], drop: int) -> None:
    folder = "folder"
    inner_sha = tree_sha([(name.encode(), 0o100644, BLOB_SHA) for name in inner])
    files = [row(name, 0o100644, BLOB_SHA) for name in top - {folder}]
    rows = [row(folder, 0o040000, inner_sha), *files, *(row(f"{folder}/{name}", 0o100644, BLOB_SHA) for name in inner)]
    root_rows = [(name.encode(), 0o100644, BLOB_SHA) for name in top - {folder}]
    commit = commit_json(tree_sha([(folder.encode(), 0o040000, inner_sha), *root_rows]))

    assert proves(listed(rows), commit)
    assert proves(listed(list(reversed(rows))), commit)
    assert proves(listed(rows), commit | {"message": "Change"}), "as some versions of GitLab have it"
    dropped = rows.pop(drop % len(rows))
    short = listed(rows)
    assert not proves(short, commit)
    assert (short.contradiction is None) == (dropped["path"] != folder and "/" not in dropped["path"])


def test_nothing_is_proven_of_a_commit_that_cannot_be_written_anew() -> None:
    rows = [row("a", 0o100644, BLOB_SHA)]
    signed = commit_json(tree_sha([(b"a", 0o100644, BLOB_SHA)])) | {"id": "2" * 40}

    for commit in (signed, {"id": "2" * 40}, None):
        listing = listed(rows)
        assert not listing.proves("2" * 40, commit)
        assert listing.contradiction is None
