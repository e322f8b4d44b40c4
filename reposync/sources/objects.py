"""Git's objects: hashing, commits, trees, branches, and the steps in which blobs are read."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from dulwich.objects import Commit as DulwichCommit
from dulwich.objects import parse_tree

from reposync.errors import BranchNotFound, RepositoryEmpty, SourceCorrupt, SourceError
from reposync.ordering import in_order
from reposync.sources.port import SUBMODULE_MODE, Blob, Commit, TreeEntry, first_line, path_text

COMMIT, TREE, BLOB, TAG = 1, 2, 3, 4
KIND_NAMES = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob", TAG: b"tag"}
TREE_MODE = 0o040000
HEADS = b"refs/heads/"

# A tree of a few kilobytes can describe 10^10 paths (a "git bomb": the same subtree ten times, ten levels deep).
MAX_TREE_ENTRIES = 3_000_000
MAX_TREES = 500_000
# Trees and commits are read whole; the largest known real trees have some megabytes.
MAX_TREE_BYTES = 64 * 1024 * 1024
# Deeper paths than this come from no working copy: PATH_MAX on Linux is 4,096 bytes.
MAX_PATH_BYTES = 16_384
# How much one step of a thread reads: long enough to hide the hop (0.1 ms), short enough to cancel at once.
STEP_BLOBS = 256
STEP_BYTES = 4 * 1024 * 1024
STEP_SECONDS = 0.2


class UnreadableBlobs(SourceCorrupt):
    """Some blobs are missing or damaged. Raised at the end of a read, after every other blob has been yielded.
    `reasons` names them all: sha -> what is wrong, a verb first, as in "is missing"."""

    def __init__(self, message: str, *, reasons: Mapping[str, str], remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.reasons = reasons

    @classmethod
    def among(
        cls, entries: Iterable[TreeEntry], reasons: Mapping[str, str], *, where: str, remedy: str
    ) -> UnreadableBlobs:
        """The error for the blobs in `reasons`, naming a path that holds one."""
        first = next(entry for entry in entries if entry.sha in reasons)
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        text = f"{path_text(first.path)}: blob {first.sha} {reasons[first.sha]}{more}"
        return cls(f"In {where}, {text}.", reasons=dict(reasons), remedy=remedy)


def hash_name(sha: str | bytes) -> str:
    """The hash function of a full hexadecimal object name, by its length."""
    return "sha256" if len(sha) == 64 else "sha1"


def object_hash(kind: int, size_bytes: int, name: str) -> hashlib._Hash:
    """A running hash that already includes git's header; feed it the content."""
    return hashlib.new(name, b"%s %d\0" % (KIND_NAMES[kind], size_bytes), usedforsecurity=False)


def object_sha(kind: int, content: bytes, name: str = "sha1") -> str:
    """The name of an object, hexadecimal: the hash over `<kind> <length>\\0` and the content."""
    running = object_hash(kind, len(content), name)
    running.update(content)
    return running.hexdigest()


def parse_commit(sha: str, content: bytes) -> tuple[Commit, str]:
    """A commit object as `Commit` and the sha of its root tree. Raises SourceCorrupt."""
    try:
        parsed = DulwichCommit.from_string(content)
        author = parsed.author.partition(b" <")[0].decode("utf-8", "replace")
        title = first_line(parsed.message.decode("utf-8", "replace"))
        commit = Commit(sha, aware_time(parsed.commit_time), title, first_line(author))
        return commit, parsed.tree.decode("ascii")
    except Exception as error:  # dulwich's parser raises many kinds
        raise SourceCorrupt(f"Commit {sha} cannot be read: {error}") from error


def aware_time(seconds: float) -> datetime:
    """A commit's date as aware UTC; one that no calendar holds becomes the nearest that one does."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else datetime.min.replace(tzinfo=UTC)


def walk_tree(root: str, read_trees: Callable[[Sequence[str]], dict[str, bytes]]) -> list[TreeEntry]:
    """Every blob, symlink and submodule below the tree `root`, each path once (the first wins, as in a checkout).

    `read_trees` returns the raw content of the trees named; it is called once a level, so that it may read them in
    the order that suits it. Names are hostile data (`..`, `/etc/passwd`, `.git/config`): they are joined with `/` and
    nothing else. Raises SourceCorrupt, and SourceError where the tree is beyond any real repository.
    """
    oid_bytes = len(root) // 2
    entries: dict[bytes, TreeEntry] = {}
    level: list[tuple[bytes, str]] = [(b"", root)]
    trees = 0
    while level:
        trees += len(level)
        if trees > MAX_TREES or len(entries) > MAX_TREE_ENTRIES:
            raise _too_large(root)
        contents = read_trees(list(dict.fromkeys(sha for _, sha in level)))
        below: list[tuple[bytes, str]] = []
        for prefix, sha in level:
            try:
                rows = parse_tree(contents[sha], oid_bytes)
                for name, mode, raw in rows:
                    path = prefix + name
                    if mode & 0o170000 == TREE_MODE:
                        if len(path) > MAX_PATH_BYTES:
                            raise _too_large(root)
                        below.append((path + b"/", raw.decode("ascii")))
                    elif path not in entries:
                        entries[path] = TreeEntry(path, mode, raw.decode("ascii"))
            except SourceError:
                raise
            except Exception as error:  # the parser's extension raises several kinds
                where = path_text(prefix) or "/"
                raise SourceCorrupt(f"Tree {sha} (folder {where}) cannot be read: {error}") from error
            if len(entries) > MAX_TREE_ENTRIES or len(below) > MAX_TREES:
                raise _too_large(root)
        level = below
    return list(entries.values())


def tree_sha(rows: Iterable[tuple[bytes, int, str]], name: str = "sha1") -> str:
    """The sha of the tree that holds exactly `rows` (name, mode, sha), in any order."""
    # Git sorts a folder as if its name ended in a slash.
    ordered = in_order(rows, lambda row: row[0] + b"/" if row[1] & 0o170000 == TREE_MODE else row[0])
    content = b"".join(b"%o %s\0%s" % (mode, path, bytes.fromhex(sha)) for path, mode, sha in ordered)
    return object_sha(TREE, content, name)


def first_paths(entries: Iterable[TreeEntry]) -> dict[str, bytes]:
    """The shas of `entries` without submodules, whose shas are commits elsewhere, in order; each with the first path
    that has it. For a thread."""
    found: dict[str, bytes] = {}
    for entry in entries:
        if entry.mode != SUBMODULE_MODE:
            found.setdefault(entry.sha, entry.path)
    return found


def branch_name(ref: bytes) -> str | None:
    """The branch name of `ref`; None for any other ref."""
    return ref.removeprefix(HEADS).decode(errors="replace") if ref.startswith(HEADS) else None


def no_tip(where: str, branch: str | None, names: Sequence[str]) -> SourceError:
    """The error if a repository with the branches `names` has no head of `branch` (None: its default branch)."""
    if not names:
        return RepositoryEmpty(f"{where} has no commit yet.", remedy="Push or commit something there first.")
    listed = f"{', '.join(sorted(names)[:5])}{' and more' if len(names) > 5 else ''}"
    if branch is None:
        return BranchNotFound(f"{where} has no default branch.", remedy=f"Name a branch to sync: {listed}.")
    near = difflib.get_close_matches(branch, names, n=3, cutoff=0.5)
    remedy = f"Did you mean {' or '.join(near)}?" if near else f"Its branches: {listed}."
    return BranchNotFound(f"{where} has no branch {branch!r}.", remedy=remedy)


def _too_large(root: str) -> SourceError:
    return SourceError(
        f"Tree {root} lists more than {MAX_TREE_ENTRIES:,} files or {MAX_TREES:,} folders, or nests too deeply.",
        remedy="No working copy is that large; check whether the repository is malicious.",
    )


def _next_step(blobs: Iterator[Blob]) -> list[Blob]:
    """The next blobs, bounded in count, bytes and time; empty at the end. Blocks on the disk: for a thread."""
    until = time.monotonic() + STEP_SECONDS
    step: list[Blob] = []
    size_bytes = 0
    for blob in islice(blobs, STEP_BLOBS):
        step.append(blob)
        size_bytes += len(blob.content) if blob.content is not None else 0
        if size_bytes >= STEP_BYTES or time.monotonic() >= until:
            break
    return step


async def read_steps(
    blobs: Iterator[Blob], in_thread: Callable[[Callable[[], list[Blob]]], Awaitable[list[Blob]]] = asyncio.to_thread
) -> AsyncGenerator[Blob, None]:
    """The blobs, read in a thread."""
    while step := await in_thread(partial(_next_step, blobs)):
        for blob in step:
            yield blob
