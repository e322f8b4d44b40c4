"""The port of sources: where a repository's files come from."""

from __future__ import annotations

import stat
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

SUBMODULE_MODE = 0o160000
SYMLINK_MODE = 0o120000


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: `sha` is 40 (or 64) lower-case hex digits, `committed_at` the committer's date, aware UTC."""

    sha: str
    committed_at: datetime
    title: str = ""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One path of a commit's tree that is not a directory. Paths are bytes, as git has them; nothing is normalised."""

    path: bytes
    mode: int
    sha: str

    @property
    def is_submodule(self) -> bool:
        return self.mode == SUBMODULE_MODE

    @property
    def is_symlink(self) -> bool:
        return stat.S_IFMT(self.mode) == stat.S_IFLNK


@dataclass(frozen=True, slots=True)
class Tree:
    """A commit's tree: every blob, symlink and submodule, recursively, each path once, in any order.

    `proven`: hashes lead from the commit's sha to each entry, so that nothing is missing. If not, the listing is
    consistent, but may lack files of the commit: nothing may be deleted because of it.
    """

    entries: list[TreeEntry]
    proven: bool


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob's content, verified against its sha. `content` is None if `size_bytes` is over the limit."""

    sha: str
    size_bytes: int
    content: bytes | None


class Source(Protocol):
    """Where a repository's files come from. Implementations never write and never follow symlinks.

    Every method raises SourceUnavailable (try again later), SourceDenied (401, 403: a person must act), SourceGone
    (404), SourceCorrupt (content that does not hash to its sha).
    """

    async def head(self) -> Commit:
        """The commit at the tip of the branch (the default branch if none is configured).

        Also raises BranchNotFound, RepositoryEmpty.
        """
        ...

    async def branch(self, *, fresh: bool = False) -> str | None:
        """The name of the branch that `head` reads: the configured one, else the default branch as the server last
        named it (`fresh` requests it again). None if there is none, as on a detached HEAD."""
        ...

    async def tree(self, commit: Commit) -> Tree:
        """The commit's tree. Raises SourceCorrupt if the listing contradicts itself."""
        ...

    def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """Contents of the distinct blobs of `entries`, each sha once, in any order, in batches bounded in count and
        bytes, so that memory does not grow with the number of entries.

        Raises UnreadableBlobs after the last blob if some are missing or damaged, SourceCorrupt at once if every
        content is wrong."""
        ...

    async def project_id(self) -> int | None:
        """The server's id of the repository, which stays when its path changes; None if there is none."""
        ...

    def url(self, path: bytes, commit: Commit, start_line: int, end_line: int) -> str | None:
        """The web page of these lines, without secrets; None if there is none."""
        ...

    async def close(self) -> None:
        """Release connections, threads and temporary files."""
        ...
