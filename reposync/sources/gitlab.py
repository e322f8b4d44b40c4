"""A project of a GitLab instance: REST to find out what changed, git for many contents, REST for few.

| question | requests |
|---|---|
| is the head still the same (project id known) | 1 REST |
| tree of a new head | 1 REST, and 1 git if the listing cannot be proven (see `Listing`; git refused: 1 REST more) |
| up to 20 blobs | 1 REST each (1 git on a first sync, which reads everything anyway) |
| a blob over the limit, by REST | 1 REST more, for its size |
| more | 1 git per 2,000 |

The first use of git costs one request more, for the server's capabilities.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, quote_from_bytes

import gitlab

from reposync.errors import SourceCorrupt, SourceError, SourceUnavailable
from reposync.http_client import HttpRefused, TransientFailure
from reposync.outgoing import RequestObserver
from reposync.sources.gitlab_blobs import GitLabBlobs
from reposync.sources.gitlab_client import PAGE_ROWS, GitLabClient, ProjectClient, Refusal
from reposync.sources.objects import (
    COMMIT,
    MAX_TREE_ENTRIES,
    TREE_MODE,
    UnreadableBlobs,
    hash_name,
    no_tip,
    object_sha,
    tree_sha,
)
from reposync.sources.port import Blob, Commit, Source, Tree, TreeEntry, path_text
from reposync.sources.spec import GitLabProject


class GitLabSource(Source):
    """See the table above, and the port."""

    def __init__(self, spec: GitLabProject, *, observer: RequestObserver | None = None) -> None:
        """Opens no connection. Raises ConfigError if the address, the token or the CA file cannot be right."""
        self._server = GitLabClient(spec, retry=spec.retry, observer=observer)
        self._project = ProjectClient(self._server, spec.project, spec.project_id)
        self._branch = spec.branch
        self._blobs = GitLabBlobs(self._project, is_first_sync=spec.project_id is None)
        self._commit: str | None = None
        self._commit_json: Mapping[str, Any] | None = None

    # Port --------------------------------------------------------------------------------------------------------

    async def project_id(self) -> int:
        return await self._project.number()

    async def head(self) -> Commit:
        number = await self._project.number()
        if self._project.link_path is None:
            await self._project.resolve()
        try:
            found = await self._server.call(
                "api_head", lambda client: _head(client, number, self._branch), doing=self._project.reading("head")
            )
        except HttpRefused as refused:
            raise await self._no_head(refused, number) from refused
        head = _commit(found)
        self._commit, self._commit_json = head.sha, found
        return head

    async def branch(self, *, fresh: bool = False) -> str | None:
        """As the port says: no call for a configured branch; one for the default branch, unless `project_id` or `head`
        had to read the project."""
        if self._branch is not None:
            return self._branch
        if self._project.default_branch is None or fresh:
            await self._project.resolve()
        return self._project.default_branch

    async def tree(self, commit: Commit) -> Tree:
        """As the port says. A listing that cannot be proven is read by git; if git is refused, it is unproven if its
        own hashes agree, and SourceCorrupt if they do not."""
        number = await self._project.number()
        self._commit = commit.sha
        try:
            listing = await self._listing(number, commit.sha)
        except HttpRefused as refused:
            if Refusal.of(refused).is_about("Project") or refused.status != 404:
                raise self._project.explained(refused) from refused
            # "404 Tree Not Found": only a rewritten branch removes a commit that was just its head.
            raise SourceUnavailable(
                f"Commit {commit.sha} of {self._project.name} is no longer on {self._server.url}.",
                remedy="Its branch was rewritten; the next run starts from the new head.",
            ) from refused
        known = self._commit_json if self._commit_json and self._commit_json.get("id") == commit.sha else None
        if await asyncio.to_thread(listing.proves, commit.sha, known):
            return Tree(list(listing.entries.values()), proven=True)
        entries = await self._blobs.tree_by_git(commit.sha)
        if entries is not None:
            return Tree(entries, proven=True)
        if not listing.contradiction:
            # Missing rows of the root leave no other trace in a listing: it is read once more, by itself.
            root = await self._pages(number, {"ref": commit.sha, "pagination": "keyset", "per_page": PAGE_ROWS})
            if root.at_root() != listing.at_root():
                listing.contradiction = "its root folder, read twice, had different rows"
        if listing.contradiction:
            raise SourceCorrupt(
                f"{self._server.url} lists the tree of {self._project.name} wrongly: {listing.contradiction}. "
                f"Git cannot confirm it ({self._blobs.no_git}).",
                remedy="Allow git over HTTP for this token, or check the proxy in between: an answer may have been "
                "changed or cut. A file name that is not UTF-8 has the same effect.",
            )
        return Tree(list(listing.entries.values()), proven=False)

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """As the port says. Raises UnreadableBlobs after the last blob if some are missing on GitLab."""
        await self._project.number()
        unreadable: dict[str, str] = {}
        try:
            commit = self._commit or self._branch or "HEAD"
            reading = self._blobs.read(commit, entries, max_bytes=max_bytes, unreadable=unreadable)
            async with aclosing(reading) as blobs:
                async for blob in blobs:
                    yield blob
        except HttpRefused as refused:
            raise self._project.explained(refused) from refused
        if unreadable:
            where = f"{self._server.url}/{self._project.name}"
            raise UnreadableBlobs.among(
                entries, unreadable, where=where, remedy="Ask an administrator of that GitLab to check the repository."
            )

    def url(self, path: bytes, commit: Commit, start_line: int, end_line: int) -> str | None:
        """The lines on the branch's page (HEAD is the default branch), so that the link of an unchanged file is the
        same for every commit. None before the path of a project given by id is known."""
        if self._project.link_path is None:
            return None
        ref = quote(self._branch, safe="/") if self._branch is not None else "HEAD"
        lines = f"L{start_line}" if start_line == end_line else f"L{start_line}-{end_line}"
        page = f"{self._server.url}/{quote(self._project.link_path, safe='/')}/-/blob/{ref}"
        return f"{page}/{quote_from_bytes(path, safe='/')}#{lines}"

    async def close(self) -> None:
        await self._blobs.close()
        await self._server.close()

    async def _no_head(self, refused: HttpRefused, number: int) -> SourceError:
        """Why there is no head: no project, no commit, or no such branch."""
        if refused.status != 404 or Refusal.of(refused).is_about("Project"):
            return self._project.explained(refused)
        try:
            names = await self._server.call(
                "api_branches", lambda client: _branches(client, number), doing=self._project.reading("branches")
            )
        except HttpRefused as second:
            return self._project.explained(second)
        return no_tip(f"Project {self._project.name} on {self._server.url}", self._branch, names)

    # Tree --------------------------------------------------------------------------------------------------------

    async def _listing(self, number: int, sha: str) -> Listing:
        try:
            return await self._pages(number, {"ref": sha, "recursive": "true", "pagination": "none"})
        except HttpRefused as refused:
            if refused.status != 400:  # a GitLab before 15.0 does not support pagination=none
                raise
        except (SourceUnavailable, SourceCorrupt) as error:
            # The server gave up (a time-out, 5xx, an answer cut short): it may be able to send single pages.
            if not isinstance(error.__cause__, TransientFailure) or not error.__cause__.overloaded:
                raise
        paged = {"ref": sha, "recursive": "true", "pagination": "keyset", "per_page": PAGE_ROWS}
        return await self._pages(number, paged)

    async def _pages(self, number: int, query: Mapping[str, Any]) -> Listing:
        listing, path, doing = Listing(), f"/projects/{number}/repository/tree", self._project.reading("tree")
        async for rows in self._server.pages("api_tree", path, query, doing=doing):
            listing.add(rows)
        return listing


def _head(client: gitlab.Gitlab, number: int, branch: str | None) -> dict[str, Any]:
    project = client.projects.get(number, lazy=True)
    if branch is not None:
        # Not commits/<branch>: there a tag of the same name has precedence.
        commit: dict[str, Any] = project.branches.get(branch).attributes["commit"]
        return commit
    return project.commits.get("HEAD", stats="false").attributes


def _branches(client: gitlab.Gitlab, number: int) -> list[str]:
    project = client.projects.get(number, lazy=True)
    return [branch.name for branch in project.branches.list(per_page=PAGE_ROWS, get_all=False)]


def _commit(found: Mapping[str, Any]) -> Commit:
    try:
        sha, when = str(found["id"]), datetime.fromisoformat(found["committed_date"])
    except (KeyError, TypeError, ValueError) as error:
        raise SourceCorrupt("GitLab's answer about the head is no commit.") from error
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return Commit(sha, when.astimezone(UTC))


# GitLab's tree listing -----------------------------------------------------------------------------------------------

_HEX = frozenset("0123456789abcdef")


@dataclass(slots=True)
class Listing:
    """The rows of one commit's tree, folders included; and the proof that they are complete and correct.

    Git's paths are bytes, JSON's are text. GitLab converts bytes that are not UTF-8 (`EncodingHelper#encode!` guesses
    an encoding, or drops the offending bytes) without a mark: `caf\\xe9.py` may become `café.py` or `caf.py`, and two
    paths may become one. So a listing is accepted if it can be proven: each folder's rows must hash to the id that the
    listing itself gives for the folder, and the root's to the tree inside the commit, which is rebuilt from the
    commit's JSON and must hash to the commit's sha. That also proves that no row is missing.

    Otherwise git is used. If git is refused, there are two cases. Folders whose rows do not hash to their ids are a
    contradiction: the listing is wrong for any commit. Folders that do, below a root that the commit does not confirm,
    prove nothing: the commit may have a signature or unusual headers, which its JSON does not show, or rows of the root
    may be missing.
    """

    entries: dict[bytes, TreeEntry] = field(default_factory=dict)
    folders: dict[bytes, str] = field(default_factory=dict)
    rows: int = 0
    contradiction: str | None = None
    """The first one found: a clause of a message."""

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows of a page. Raises SourceCorrupt if a row cannot be read, SourceError if there are too many."""
        for row in rows:
            path, mode, sha = _checked(row)
            self.rows += 1
            if not path:  # no byte of the name was UTF-8
                self._contradicted("a row has no name")
            elif path in self.entries or path in self.folders:
                self._contradicted(f"{path_text(path)} is listed twice")
            elif mode == TREE_MODE:
                self.folders[path] = sha
            else:
                self.entries[path] = TreeEntry(path, mode, sha)
            if self.rows > MAX_TREE_ENTRIES:
                raise SourceError(f"GitLab lists more than {MAX_TREE_ENTRIES:,} files and folders.")

    def at_root(self) -> set[tuple[bytes, str]]:
        """(name, sha) of what is not in a folder."""
        files = {(path, entry.sha) for path, entry in self.entries.items() if b"/" not in path}
        return files | {(path, sha) for path, sha in self.folders.items() if b"/" not in path}

    def proves(self, sha: str, commit: Mapping[str, Any] | None) -> bool:
        """Whether these are exactly the entries of the commit `sha`; `commit` is GitLab's JSON for it. If not,
        `contradiction` says what cannot be true for any commit, if there is such a thing."""
        if self.contradiction is not None:
            return False
        name = hash_name(sha)
        children: dict[bytes, list[tuple[bytes, int, str]]] = {path: [] for path in self.folders}
        children[b""] = []
        below = [(entry.path, entry.mode, entry.sha) for entry in self.entries.values()]
        below += [(path, TREE_MODE, sha) for path, sha in self.folders.items()]
        for path, mode, oid in below:
            folder, _, leaf = path.rpartition(b"/")
            if folder not in children:
                self._contradicted(f"{path_text(path)} is in a folder that is not listed")
                return False
            children[folder].append((leaf, mode, oid))
        root = tree_sha(children.pop(b""), name)
        for path, oid in self.folders.items():
            if tree_sha(children[path], name) != oid:
                self._contradicted(f"what it lists in {path_text(path)}/ does not hash to that folder's id")
                return False
        return commit is not None and _rebuilds(commit, root, name)

    def _contradicted(self, clause: str) -> None:
        self.contradiction = self.contradiction or clause


def _checked(row: Mapping[str, Any]) -> tuple[bytes, int, str]:
    try:
        path, mode, sha = row["path"], int(row["mode"], 8), row["id"]
        if len(sha) not in (40, 64) or not _HEX.issuperset(sha):
            raise ValueError("no object name")
        # Half of a surrogate pair is possible in JSON, but not in UTF-8: no folder's hash will confirm these bytes.
        return path.encode("utf-8", "surrogatepass"), mode, sha
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceCorrupt("GitLab's listing of the tree holds a row that cannot be read.") from error


def _rebuilds(commit: Mapping[str, Any], root: str, name: str) -> bool:
    """Whether the commit, rebuilt with `root` as its tree, has the right sha."""
    try:
        head = [f"tree {root}"]
        head += [f"parent {sha}" for sha in commit["parent_ids"]]
        head.append(f"author {_person(commit, 'author_name', 'author_email', 'authored_date')}")
        head.append(f"committer {_person(commit, 'committer_name', 'committer_email', 'committed_date')}")
        text, sha = "\n".join(head), str(commit["id"])
        message = str(commit["message"])
    except (KeyError, TypeError, ValueError):
        return False
    # Some versions return the message without its last line end.
    return any(
        object_sha(COMMIT, f"{text}\n\n{body}".encode("utf-8", "surrogatepass"), name) == sha
        for body in (message, f"{message}\n")
    )


def _person(commit: Mapping[str, Any], name: str, email: str, date: str) -> str:
    when = datetime.fromisoformat(commit[date])
    return f"{commit[name]} <{commit[email]}> {int(when.timestamp())} {when:%z}"
