"""The port of sources: where a repository's files come from, what describes it, and the text of git's paths."""

from __future__ import annotations

import stat
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from urllib.parse import quote_from_bytes

from pydantic import SecretStr

from reposync.config.gitlab_instance import GitLabInstance
from reposync.errors import SourceUnavailable, UsageError
from reposync.outgoing import RetryPolicy, Timeouts
from reposync.paths import path_bytes as path_bytes
from reposync.paths import path_text as path_text

SUBMODULE_MODE = 0o160000
SYMLINK_MODE = 0o120000
MAX_TITLE_CHARS = 300
MAX_CHANGES = 50
"""A past commit that changes more files is not compared to its end."""
_READ_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit: `sha` is 40 (or 64) lower-case hex digits, `committed_at` the committer's date, aware UTC. `title`, the
    first line of its message, and `author` are bounded, and empty if the source has not sent them."""

    sha: str
    committed_at: datetime
    title: str = field(default="", compare=False)
    author: str = field(default="", compare=False)


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


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file before and after a commit; None: there was none. The paths differ if it was only moved."""

    before: TreeEntry | None
    after: TreeEntry | None


@dataclass(frozen=True, slots=True)
class PastCommit:
    """`changes`: compared with its first parent; None if there is none to compare with: it is the first commit, or the
    clone does not have it. `has_more`: it changed more than MAX_CHANGES files, and these are some of them."""

    sha: str
    parents: tuple[str, ...]
    author: str
    email: str
    subject: str
    message: str
    changes: tuple[FileChange, ...] | None
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class MergedRequest:
    """`commit`: which brought all of its changes to the branch: the merge, or the squashed commit."""

    number: int
    title: str
    description: str
    author: str
    commit: str


def first_line(text: object) -> str:
    """The first line of a message or a name, which its writer decides: bounded."""
    return text[:_READ_CHARS].strip().partition("\n")[0].strip()[:MAX_TITLE_CHARS] if isinstance(text, str) else ""


class Ancestry(StrEnum):
    CONTAINED = "contained"
    """The commit is the tip, or one of its ancestors."""
    NOT_CONTAINED = "not_contained"
    UNKNOWN_COMMIT = "unknown_commit"
    """The repository has no such commit."""
    UNKNOWABLE = "unknowable"
    """This source cannot compare commits."""
    TOO_FAR = "too_far"
    """There are too many commits between the two."""


class CommitAmbiguous(UsageError):
    """An abbreviated commit is ambiguous."""

    code = "COMMIT_AMBIGUOUS"
    status = 409


class CommitRewritten(SourceUnavailable):
    """A commit is no longer on the server, because its branch was rewritten; its successor is the new head."""


class Source(Protocol):
    """Where a repository's files come from. Implementations never write and never follow symlinks.

    Every method raises SourceUnavailable (try again later), SourceDenied (401, 403: a person must act), SourceGone
    (404), SourceCorrupt (content that does not hash to its sha).
    """

    async def head(self) -> Commit:
        """The commit at the tip of the branch. Also raises BranchNotFound, RepositoryEmpty."""
        ...

    async def branch(self, *, fresh: bool = False) -> str | None:
        """The name of the branch that `head` reads: the configured one, else the default branch as the server last
        named it (`fresh`: as it names it now). None if there is none, as on a detached HEAD."""
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
        return None

    def url(self, path: bytes, commit: Commit, start_line: int, end_line: int) -> str | None:
        """The web page of these lines, without secrets; None if there is none."""
        return None

    async def ancestry(self, commit: str, tip: str | None) -> Ancestry:
        """The relation of `commit` (7 to 64 lower-case hex digits, abbreviated if unique) to `tip` (a full name).
        Without a tip it is NOT_CONTAINED if the commit exists. Also raises CommitAmbiguous."""
        return Ancestry.CONTAINED if tip is not None and tip.startswith(commit) else Ancestry.UNKNOWABLE

    async def history(self, tip: str, most: int, *, contents_too: bool = True) -> list[PastCommit]:
        """The last `most` commits that the commit `tip` contains, newest first; fewer if the server or the clone does
        not have them. Empty if `tip` is not there any more. `contents_too`: read it also from a server that sends the
        contents of all files with it; otherwise empty."""
        ...

    async def merged_requests(self, most: int) -> list[MergedRequest]:
        """The last merge requests that were merged, newest first; empty if this server has none, or hides them."""
        return []

    async def close(self) -> None:
        """Release connections, threads and temporary files."""
        ...


@dataclass(frozen=True, slots=True)
class LocalGit:
    """A repository on this machine: a working copy (committed content only), a linked worktree or a bare repository."""

    path: Path
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteGit:
    """A repository behind an http(s) URL of git, without user and password. `known_commit`, of the last sync: if it is
    the head, `head` fetches nothing."""

    url: str
    branch: str | None = None
    username: str | None = None
    password: SecretStr | None = None
    known_commit: Commit | None = None
    ca_file: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True, slots=True)
class GitLabProject:
    """`project` is its full path (`group/sub/project`) or its numeric id; `project_id`, if known from an earlier run,
    saves the call that resolves the path."""

    server: GitLabInstance
    project: str
    project_id: int | None = None
    branch: str | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)


SourceSpec = LocalGit | RemoteGit | GitLabProject


SAMPLE_PATH = b"p"
"""The link to this file's first line is recorded: if it is unchanged, so are the links of all files."""


def link_to(files: str, path: bytes, start_line: int, end_line: int) -> str:
    """The page of these lines. `files`: the page of a commit's or branch's files, without a slash at its end."""
    lines = f"L{start_line}" if start_line == end_line else f"L{start_line}-{end_line}"
    return f"{files}/{quote_from_bytes(path, safe='/')}#{lines}"


def lines_like(sample: str | None, path: bytes, start_line: int, end_line: int) -> str | None:
    """The link to these lines of a source whose link to SAMPLE_PATH is `sample`."""
    return None if sample is None else link_to(sample.removesuffix("/p#L1"), path, start_line, end_line)
