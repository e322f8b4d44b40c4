"""What the last commits of a branch changed, from git's commits and trees alone."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from dulwich.objects import Commit as DulwichCommit
from dulwich.objects import parse_tree

from reposync.errors import SourceCorrupt
from reposync.sources.objects import COMMIT, MAX_PATH_BYTES, TREE, TREE_MODE
from reposync.sources.port import MAX_CHANGES, FileChange, PastCommit, TreeEntry, first_line

MAX_MESSAGE_CHARS = 10_000
# The folders that are compared for one commit; one that changed few files changed few folders.
_MOST_FOLDERS = 1_000
# The rows of trees that are compared for a history, about half a minute; of a repository with a folder of a million
# files, the older commits are left out.
_MOST_ROWS_COMPARED = 50_000_000
# A history reads the same trees again and again: those of the top and of the folders that people work in.
_KEPT_TREES = 4_000
_KEPT_ROWS = 400_000


class Stopped(Exception):
    """The reader of the history is gone."""


class Objects(Protocol):
    """Where commits and trees are read from."""

    def content(self, sha: str, kind: int) -> bytes | None:
        """The object, verified; None if it is missing. Raises SourceCorrupt."""


def read_history(objects: Objects, tip: str, most: int, stop: threading.Event) -> list[PastCommit]:
    """The last `most` commits that `tip` contains, newest first; fewer if the clone is shallow or its folders are very
    large. Empty if it lacks `tip` itself. Blocks on the disk. Raises SourceCorrupt, and Stopped if `stop` is set."""
    reader = _Reader(objects)
    first = reader.commit(tip)
    if first is None:
        return []
    waiting, known, found = [(-first.when, 0, tip)], {tip}, list[PastCommit]()
    while waiting and len(found) < most and reader.compared_rows < _MOST_ROWS_COMPARED:
        if stop.is_set():
            raise Stopped
        _, _, sha = heapq.heappop(waiting)
        commit = reader.commit(sha)
        if commit is None:
            continue
        found.append(reader.compared(sha, commit))
        for parent in commit.parents:
            if parent not in known and (read := reader.commit(parent)) is not None:
                known.add(parent)
                heapq.heappush(waiting, (-read.when, len(known), parent))
    return found


def state_before(commits: Sequence[PastCommit], tip: str, questions: set[str]) -> str | None:
    """The newest commit on the line of first parents from `tip` that contains none of `questions`. None if there is
    none among `commits`."""
    by_sha = {commit.sha: commit for commit in commits}
    line = dict[str, None]()
    following: str | None = tip
    while following is not None and following in by_sha and following not in line:
        line[following] = None
        parents = by_sha[following].parents
        following = parents[0] if parents else None
    seen, state = set[str](), None
    # From the oldest on: what one contains, the newer ones contain too. Beyond what was read there are no questions.
    candidates = [*line, *([following] if following is not None else [])]
    for sha in reversed(candidates):
        below = [sha]
        while below:
            each = below.pop()
            if each not in seen:
                seen.add(each)
                below += by_sha[each].parents if each in by_sha else ()
        if seen & questions:
            return state
        state = sha
    return state


class _Commit(NamedTuple):
    parents: tuple[str, ...]
    tree: str
    when: int
    author: str
    email: str
    message: str


_Rows = Mapping[bytes, tuple[int, str]]


class _Reader:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._commits: dict[str, _Commit | None] = {}
        self._trees: dict[str, _Rows] = {}
        self._rows = 0
        self.compared_rows = 0

    def commit(self, sha: str) -> _Commit | None:
        if sha not in self._commits:
            content = self._objects.content(sha, COMMIT)
            self._commits[sha] = None if content is None else _parsed(sha, content)
        return self._commits[sha]

    def compared(self, sha: str, commit: _Commit) -> PastCommit:
        parent = self.commit(commit.parents[0]) if commit.parents else None
        found, has_more = (None, False) if parent is None else self._changes(parent.tree, commit.tree)
        return PastCommit(
            sha,
            commit.parents,
            first_line(commit.author),
            first_line(commit.email),
            first_line(commit.message),
            commit.message[:MAX_MESSAGE_CHARS],
            None if found is None else tuple(_joined(found)),
            has_more,
        )

    def _changes(self, before: str, after: str) -> tuple[list[FileChange] | None, bool]:
        """The changes between the trees, and whether there are more: these end after MAX_CHANGES of them, and after
        _MOST_FOLDERS, of which a few objects make a billion. None if a tree is missing."""
        found = list[FileChange]()
        waiting, folders = [(b"", before, after)], 0
        while waiting and len(found) <= MAX_CHANGES:
            prefix, old_sha, new_sha = waiting.pop()
            folders += 1
            if folders > _MOST_FOLDERS:
                return found, True
            if len(prefix) > MAX_PATH_BYTES:
                return None, False
            old, new = self._tree(old_sha), self._tree(new_sha)
            if old is None or new is None:
                return None, False
            self.compared_rows += len(old) + len(new)
            for name in sorted(old.keys() | new.keys()):
                was, now = old.get(name), new.get(name)
                if was == now:
                    continue
                was_folder, now_folder = was is not None and _is_tree(was), now is not None and _is_tree(now)
                if was_folder or now_folder:
                    trees = was[1] if was and was_folder else "", now[1] if now and now_folder else ""
                    waiting.append((prefix + name + b"/", *trees))
                path = prefix + name
                file_was = TreeEntry(path, *was) if was and not was_folder else None
                file_now = TreeEntry(path, *now) if now and not now_folder else None
                if file_was or file_now:
                    found.append(FileChange(file_was, file_now))
                    if len(found) > MAX_CHANGES:
                        break
        return found, len(found) > MAX_CHANGES

    def _tree(self, sha: str) -> _Rows | None:
        """An empty sha is a folder that is not there."""
        if not sha:
            return {}
        if sha not in self._trees:
            content = self._objects.content(sha, TREE)
            if content is None:
                return None
            if len(self._trees) >= _KEPT_TREES or self._rows >= _KEPT_ROWS:
                self._trees.clear()
                self._rows = 0
            try:
                rows = parse_tree(content, len(sha) // 2)
                self._trees[sha] = {name: (mode, raw.decode("ascii")) for name, mode, raw in rows}
            except Exception as error:  # the parser's extension raises several kinds
                raise SourceCorrupt(f"Tree {sha} cannot be read: {error}") from error
            self._rows += len(self._trees[sha])
        return self._trees[sha]


def _is_tree(row: tuple[int, str]) -> bool:
    return row[0] & 0o170000 == TREE_MODE


def _joined(found: Sequence[FileChange]) -> list[FileChange]:
    """A file that is gone, and one with the same content that is new, are one that was moved."""
    lost = [each for each in found if each.before is not None and each.after is None]
    gone = {each.before.sha: each for each in lost if each.before is not None}
    joined, moved = list[FileChange](), set[str]()
    for each in found:
        if each.before is None and each.after is not None and each.after.sha in gone and each.after.sha not in moved:
            moved.add(each.after.sha)
            joined.append(FileChange(gone[each.after.sha].before, each.after))
        elif each.after is not None:
            joined.append(each)
    joined += [each for each in lost if each.before is not None and each.before.sha not in moved]
    return sorted(joined, key=lambda each: (each.after or each.before or _NO_FILE).path)


_NO_FILE = TreeEntry(b"", 0, "")


def _parsed(sha: str, content: bytes) -> _Commit:
    try:
        parsed = DulwichCommit.from_string(content)
        author, _, email = parsed.author.decode("utf-8", "replace").partition(" <")
        return _Commit(
            tuple(parent.decode("ascii") for parent in parsed.parents),
            parsed.tree.decode("ascii"),
            parsed.commit_time,
            author,
            email.removesuffix(">"),
            parsed.message[: 4 * MAX_MESSAGE_CHARS].decode("utf-8", "replace"),
        )
    except Exception as error:  # dulwich's parser raises many kinds
        raise SourceCorrupt(f"Commit {sha} cannot be read: {error}") from error
