"""A project of a GitLab instance: REST to find out what changed, git for many contents, REST for few, and REST alone if
git is refused.

| question | requests |
|---|---|
| is the head still the same (project id known) | 1 REST |
| tree of a new head | 1 REST, and 1 git if the listing cannot be proven (see `Listing`; git refused: 1 REST more) |
| up to 20 blobs | 1 REST each (1 git on a first sync, which reads everything anyway) |
| a blob over the limit, by REST | 1 REST more, for its size |
| more | 1 git per 2,000 |
| what commits say, once a day after a new head | 1 git |

The first use of git costs one request more, for the server's capabilities.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any
from urllib.parse import quote

import gitlab

from reposync.errors import SourceCorrupt, SourceError, SourceGone, SourceUnavailable, UsageError
from reposync.http_client import HttpRefused, TransientFailure
from reposync.outgoing import OtherServer, RequestObserver
from reposync.sources.gitlab_blobs import RestBlobs
from reposync.sources.gitlab_client import PAGE_ROWS, GitLabClient, Refusal
from reposync.sources.gitlab_listing import Listing, commit_of, merged_request
from reposync.sources.object_stores import SpoolFull
from reposync.sources.objects import UnreadableBlobs, first_paths, no_tip
from reposync.sources.port import (
    Ancestry,
    Blob,
    Commit,
    CommitRewritten,
    GitLabProject,
    MergedRequest,
    PastCommit,
    Source,
    Tree,
    TreeEntry,
    link_to,
)
from reposync.sources.smart_http import MAX_MISSING, FetchRefused, UploadPack, received_history

log = logging.getLogger(__name__)

# A git fetch costs the server a process and a walk through its object store, a raw blob one look-up; 20 blobs over 4
# connections take about as long as one fetch (0.3 s at 60 ms a call) and 1% of the 2,000 calls a minute that
# GitLab.com grants. A usual push changes fewer files than this, so it needs no git at all.
FEW_BLOBS = 20

_NO_GIT = (HttpRefused, FetchRefused, SpoolFull, OtherServer)


class GitLabSource(Source):
    """See the table above, and the port."""

    def __init__(self, spec: GitLabProject, *, observer: RequestObserver | None = None) -> None:
        self._server = GitLabClient(spec.server, retry=spec.retry, observer=observer)
        self._name = spec.project.strip("/")
        is_number = self._name.isascii() and self._name.isdigit()
        self._id = int(self._name) if spec.project_id is None and is_number else spec.project_id
        self._path = None if is_number else self._name
        self._is_resolved = False
        # Links show the configured path, also after the project has moved (GitLab redirects them): the links of a file
        # that has not changed must not change either.
        self._link_path = self._path
        self._default_branch: str | None = None
        self._branch = spec.branch
        self._is_first_sync = spec.project_id is None
        self._known_id = spec.project_id
        # Of the project at the configured path, if the recorded one is gone.
        self._successor: int | None = None
        self._commit: str | None = None
        self._commit_json: Mapping[str, Any] | None = None
        self._git: tuple[str, UploadPack] | None = None
        # Why git is no longer used. One refusal is enough: 300 failed logins in a minute ban the address.
        self._git_refused: str | None = None

    async def project_id(self) -> int:
        """Stays when the project is renamed or moved: one call, unless it is known already."""
        if self._id is None:
            await self._resolve()
        return self._id or 0

    async def head(self) -> Commit:
        number = await self.project_id()
        if self._link_path is None:
            await self._resolve()
        reading = self._reading("head")
        try:
            found = await self._server.call("api_head", partial(_head, number, self._branch), doing=reading)
        except HttpRefused as refused:
            raise await self._no_head(refused, number) from refused
        head = commit_of(found)
        self._commit, self._commit_json = head.sha, found
        return head

    async def branch(self, *, fresh: bool = False) -> str | None:
        """No call for a configured branch; one for the default branch, unless the project was read already."""
        if self._branch is not None:
            return self._branch
        if self._default_branch is None or fresh:
            await self._resolve()
        return self._default_branch

    async def tree(self, commit: Commit) -> Tree:
        """As the port says. A listing that cannot be proven is read by git; if git is refused, it is unproven if its
        own hashes agree, and SourceCorrupt if they do not."""
        number = await self.project_id()
        self._commit = commit.sha
        try:
            listing = await self._listing(number, commit.sha)
        except HttpRefused as refused:
            if Refusal.of(refused).is_about("Project") or refused.status != 404:
                raise await self._explained(refused) from refused
            # "404 Tree Not Found": only a rewritten branch removes a commit that was just its head.
            raise CommitRewritten(
                f"Commit {commit.sha} of {self._name} is no longer on {self._server.url}.",
                remedy="Its branch was rewritten; the next run starts from the new head.",
            ) from refused
        known = self._commit_json if self._commit_json and self._commit_json.get("id") == commit.sha else None
        if await asyncio.to_thread(listing.proves, commit.sha, known):
            return Tree(list(listing.entries.values()), proven=True)
        if (entries := await self._tree_by_git(commit.sha)) is not None:
            return Tree(entries, proven=True)
        if not listing.contradiction:
            # Missing rows of the root leave no other trace in a listing: it is read once more, by itself.
            root = await self._pages(number, {"ref": commit.sha, "pagination": "keyset", "per_page": PAGE_ROWS})
            if await asyncio.to_thread(lambda: root.at_root() != listing.at_root()):
                listing.contradiction = "its root folder, read twice, had different rows"
        if listing.contradiction:
            raise SourceCorrupt(
                f"{self._server.url} lists the tree of {self._name} wrongly: {listing.contradiction}. "
                f"Git cannot confirm it ({self._git_refused or 'it would send all contents too'}).",
                remedy="Allow git over HTTP for this token, or check the proxy in between: an answer may have been "
                "changed or cut. A file name that is not UTF-8 has the same effect.",
            )
        return Tree(list(listing.entries.values()), proven=False)

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """As the port says. Raises UnreadableBlobs after the last blob if some are missing on GitLab."""
        await self.project_id()
        left = await asyncio.to_thread(first_paths, entries)
        count, unreadable = len(left), dict[str, str]()
        try:
            async with aclosing(self._by_git(left, max_bytes)) as blobs:
                async for blob in blobs:
                    yield blob
            # The few, and what git did not have: REST decides what is missing.
            rest = RestBlobs(self._server, self._id or 0, self._name, self._commit or self._branch or "HEAD")
            by_rest = rest.read(left, max_bytes, unreadable, any_read=len(left) < count)
            async with aclosing(by_rest) as blobs:
                async for blob in blobs:
                    yield blob
        except HttpRefused as refused:
            raise await self._explained(refused) from refused
        if unreadable:
            remedy = "Check the proxy in between. Without one, GitLab's administrator can check the repository."
            where = f"{self._server.url}/{self._name}"
            raise UnreadableBlobs.among(entries, unreadable, where=where, remedy=remedy)

    def url(self, path: bytes, commit: Commit, start_line: int, end_line: int) -> str | None:
        """The lines on the branch's page (HEAD is the default branch), so that the link of an unchanged file is the
        same for every commit. None before the path of a project given by id is known."""
        if self._link_path is None:
            return None
        ref = quote(self._branch, safe="/") if self._branch is not None else "HEAD"
        page = f"{self._server.url}/{quote(self._link_path, safe='/')}/-/blob"
        return link_to(f"{page}/{ref}", path, start_line, end_line)

    async def ancestry(self, commit: str, tip: str | None) -> Ancestry:
        project = self._id if self._id is not None else self._name
        try:
            return await self._server.ancestry(project, commit, tip, doing=self._reading("history"))
        except HttpRefused as refused:
            raise await self._explained(refused) from refused

    async def history(self, tip: str, most: int, *, contents_too: bool = True) -> list[PastCommit]:
        """One git fetch of commits and trees."""
        await self.project_id()
        while self._git_refused is None:
            try:
                return await received_history(await self._upload_pack(), tip, most, contents_too=contents_too)
            except _NO_GIT as error:
                await self._after_failure(error)
        raise SourceError(
            f"The history of {self._name} is read by git, which {self._server.url} refuses: {self._git_refused}.",
            remedy="Allow git over HTTP for this token; it needs the scope read_repository.",
        )

    async def merged_requests(self, most: int) -> list[MergedRequest]:
        """One call for a hundred."""
        number, found = await self.project_id(), list[MergedRequest]()
        query = {"state": "merged", "order_by": "created_at", "sort": "desc", "per_page": PAGE_ROWS}
        path, doing = f"/projects/{number}/merge_requests", self._reading("merge requests")
        try:
            async with aclosing(self._server.pages("api_merge_requests", path, query, doing=doing)) as pages:
                async for page in pages:
                    found += filter(None, map(merged_request, page.rows))
                    if len(found) >= most:
                        break
        except HttpRefused as refused:
            # The project has none, or this token may not see them: its commits are there all the same.
            if refused.status not in (403, 404):
                raise await self._explained(refused) from refused
        return found[:most]

    async def successor(self) -> int:
        """The number of the project that has taken the path of the recorded one. Raises SourceGone if there is none,
        UsageError if the recorded one exists."""
        try:
            await self._resolve()
        except SourceGone:
            if self._successor in (None, self._known_id):
                raise
            return int(self._successor or 0)
        raise UsageError(f"Project number {self._id} exists, at {self._path}: there is nothing to adopt.")

    async def close(self) -> None:
        await self._close_git()
        await self._server.close()

    # Project -----------------------------------------------------------------------------------------------------

    async def _resolve(self) -> None:
        """Read the project, by id if that is known."""
        wanted: int | str = self._id if self._id is not None else self._name
        try:
            found = await self._server.call(
                "api_project", lambda client: client.projects.get(wanted).attributes, doing=self._reading("project")
            )
        except HttpRefused as refused:
            raise await self._explained(refused) from refused
        try:
            self._id, self._path = int(found["id"]), str(found["path_with_namespace"])
        except (KeyError, TypeError, ValueError) as error:
            raise SourceCorrupt(f"{self._server.url} describes project {self._name} without id or path.") from error
        self._is_resolved = True
        self._link_path = self._link_path or self._path
        self._default_branch = str(found["default_branch"]) if found.get("default_branch") else None

    async def _no_head(self, refused: HttpRefused, number: int) -> SourceError:
        """Why there is no head: no project, no commit, or no such branch."""
        if refused.status != 404 or Refusal.of(refused).is_about("Project"):
            return await self._explained(refused)
        try:
            branches = await self._server.call(
                "api_branches",
                lambda client: client.projects.get(number, lazy=True).branches.list(per_page=PAGE_ROWS, get_all=False),
                doing=self._reading("branches"),
            )
        except HttpRefused as second:
            return await self._explained(second)
        names = [branch.name for branch in branches]
        return no_tip(f"Project {self._name} on {self._server.url}", self._branch, names)

    def _reading(self, what: str) -> str:
        return f"Reading the {what} of {self._name} on {self._server.url}"

    async def _explained(self, refused: HttpRefused) -> SourceError:
        """What the refusal means. If there is no project with the recorded number, its path is looked up once."""
        if self._known_id is None or self._name.isdecimal() or not Refusal.of(refused).is_about("Project"):
            return self._server.explain(refused, path=self._name)
        self._successor = await self._number_at_path()
        if self._successor in (None, self._known_id):
            return self._server.explain(refused, path=f"number {self._known_id} ({self._name})")
        return SourceGone(
            f"Project number {self._known_id} is gone from {self._server.url}, or hidden from this token; "
            f"{self._name} is number {self._successor} now.",
            remedy=f"If it was created again: `reposync repos adopt NAME` syncs number {self._successor}. The index is "
            "kept unchanged.",
        )

    async def _number_at_path(self) -> int | None:
        try:
            found = await self._server.call(
                "api_project", lambda client: client.projects.get(self._name).attributes, doing=self._reading("project")
            )
            return int(found["id"])
        except (HttpRefused, SourceError, KeyError, TypeError, ValueError):
            return None

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
        listing, path, doing = Listing(), f"/projects/{number}/repository/tree", self._reading("tree")
        async for page in self._server.pages("api_tree", path, query, doing=doing):
            await asyncio.to_thread(listing.add, page.rows)  # all of the tree, if it is not paged
        return listing

    # Git -----------------------------------------------------------------------------------------------------------

    async def _tree_by_git(self, sha: str) -> list[TreeEntry] | None:
        """The commit's tree from git's own objects; None if git is refused, or would send all contents too."""
        while self._git_refused is None:
            try:
                server = await self._upload_pack()
                if not (await server.capabilities()).filters:
                    return None
                pack = await server.fetch([sha], depth=1, filter_spec="blob:none")
            except _NO_GIT as error:
                await self._after_failure(error)
                continue
            try:
                return await asyncio.to_thread(pack.tree, sha)
            finally:
                pack.close()
        return None

    async def _by_git(self, left: dict[str, bytes], max_bytes: int) -> AsyncGenerator[Blob, None]:
        """Takes out of `left` (sha -> path) what it yields. A first sync reads everything: by git from the start."""
        while len(left) > (0 if self._is_first_sync else FEW_BLOBS) and self._git_refused is None:
            try:
                server = await self._upload_pack()
                # At a path that is not known to be the project's, the first missing blob is a reason to resolve it.
                most = MAX_MISSING if self._is_resolved else 0
                fetched = server.blobs(list(left), max_bytes=max_bytes, unreadable={}, max_missing=most)
                async with aclosing(fetched) as blobs:
                    async for blob in blobs:
                        left.pop(blob.sha, None)
                        yield blob
                return
            except _NO_GIT as error:
                await self._after_failure(error)

    async def _upload_pack(self) -> UploadPack:
        if self._git is None:
            if self._path is None:
                await self._resolve()
            path = self._path or ""
            self._git = path, self._server.git(path)
        return self._git[1]

    async def _after_failure(self, error: Exception) -> None:
        """Follow a moved project, or give up git."""
        if not self._is_resolved and not isinstance(error, SpoolFull):
            # A different project may be at the old path by now, public or private, and this may be its refusal.
            await self._resolve()
            if has_moved := self._git is not None and self._git[0] != self._path:
                await self._close_git()
            if has_moved or isinstance(error, FetchRefused):
                return
        self._git_refused = str(error)
        log.warning("Git refuses project %s on %s (%s): it is read by REST.", self._name, self._server.url, error)

    async def _close_git(self) -> None:
        if self._git is not None:
            await self._git[1].close()
            self._git = None


def _head(number: int, branch: str | None, client: gitlab.Gitlab) -> dict[str, Any]:
    project = client.projects.get(number, lazy=True)
    if branch is not None:
        # Not commits/<branch>: there a tag of the same name has precedence.
        commit: dict[str, Any] = project.branches.get(branch).attributes["commit"]
        return commit
    return project.commits.get("HEAD", stats="false").attributes
