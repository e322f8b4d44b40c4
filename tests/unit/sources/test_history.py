"""Histories that were made to keep their reader busy."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from dulwich.objects import Blob, Commit, ShaFile, Tree

from reposync.sources.history import read_history


@dataclass
class Objects:
    by_sha: dict[str, ShaFile] = field(default_factory=dict)
    read: int = 0

    def add(self, each: ShaFile) -> bytes:
        self.by_sha[each.id.decode()] = each
        return bytes(each.id)

    def commit(self, tree: bytes, *parents: bytes) -> bytes:
        commit = Commit()
        commit.tree, commit.parents = tree, list(parents)
        commit.author = commit.committer = b"Mallory <m@example.com>"
        commit.author_time = commit.commit_time = commit.author_timezone = commit.commit_timezone = 0
        commit.encoding, commit.message = b"UTF-8", b"Add some folders"
        return self.add(commit)

    def content(self, sha: str, kind: int) -> bytes | None:
        self.read += 1
        return self.by_sha[sha].as_raw_string() if sha in self.by_sha else None


def folders_in_folders(objects: Objects, levels: int, innermost: Tree) -> bytes:
    sha = objects.add(innermost)
    for _ in range(levels):
        tree = Tree()
        for number in range(10):
            tree.add(b"%d" % number, 0o040000, sha)
        sha = objects.add(tree)
    return sha


def with_a_file(name: bytes) -> Tree:
    tree, blob = Tree(), Blob.from_string(b"1\n")
    tree.add(name, 0o100644, blob.id)
    return tree


@pytest.mark.parametrize("has_files", [False, True])
def test_a_commit_of_folders_without_end_is_one_that_changed_too_much(has_files: bool) -> None:
    objects = Objects()
    first = objects.commit(objects.add(with_a_file(b"a.py")))
    innermost = with_a_file(b"b.py") if has_files else Tree()
    second = objects.commit(folders_in_folders(objects, 30, innermost), first)

    newest, oldest = read_history(objects, second.decode(), 10, threading.Event())

    assert newest.has_more
    assert oldest.changes is None


def test_a_folder_of_very_many_files_shortens_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Objects()
    blob, commits = Blob.from_string(b"1\n"), list[bytes]()
    for number in range(20):
        tree = with_a_file(b"file_%d.py" % number)
        for name in range(1_000):
            tree.add(b"%d.py" % name, 0o100644, blob.id)
        commits.append(objects.commit(objects.add(tree), *commits[-1:]))
    monkeypatch.setattr("reposync.sources.history._MOST_ROWS_COMPARED", 10_000)

    assert 5 <= len(read_history(objects, commits[-1].decode(), 100, threading.Event())) <= 6
