"""A project of a GitLab instance: REST to find out what changed, git for many contents, REST for few.

| question | requests |
|---|---|
| is the head still the same (project id known) | 1 REST |
| tree of a new head | 1 REST, and 1 git if the listing cannot be proven (see `listing`; git refused: 1 REST more) |
| up to 20 blobs | 1 REST each (1 git on a first sync, which reads everything anyway) |
| a blob over the limit, by REST | 1 REST more, for its size |
| more | 1 git per 2,000 |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import quote, quote_from_bytes

import gitlab

from reposync.errors import BranchNotFound, RepositoryEmpty, SourceCorrupt, SourceError, SourceGone, SourceUnavailable
from reposync.http_client import HttpRefused, TransientFailure
from reposync.outgoing import RequestObserver
from reposync.sources.gitlab_blobs import GitLabBlobs
from reposync.sources.gitlab_client import PAGE_ROWS, GitLabClient, Refusal
from reposync.sources.listing import Listing
from reposync.sources.objects import UnreadableBlobs, branch_not_found
from reposync.sources.port import Blob, Commit, Tree, TreeEntry
from reposync.sources.spec import GitLabProject


class GitLabSource:
    """See the table above, and the port."""

    def __init__(self, spec: GitLabProject, *, observer: RequestObserver | None = None) -> None:
        """Opens no connection. Raises ConfigError if the address, the token or the CA file cannot be right."""
        self._server = GitLabClient(
            spec.url,
            token=spec.token,
            ca_file=spec.ca_file,
            timeouts=spec.timeouts,
            retry=spec.retry,
            observer=observer,
        )
        self._instance = self._server.url
        self._project = spec.project.strip("/")
        self._branch = spec.branch
        number = int(self._project) if self._project.isascii() and self._project.isdigit() else None
        self._id = spec.project_id if spec.project_id is not None else number
        # Links show the configured path, also after the project has moved (GitLab redirects them): the links of a file
        # that has not changed must not change either.
        self._link_path = self._project if number is None else None
        self._commit_json: Mapping[str, Any] | None = None
        self._commit: str | None = None
        self._default_branch: str | None = None
        self._blobs = GitLabBlobs(
            self._server, self._project, self._link_path, self._resolve, is_first_sync=spec.project_id is None
        )

    # Port --------------------------------------------------------------------------------------------------------

    async def project_id(self) -> int:
        """The project's number, which stays when it is renamed or moved: one call, unless it is known already."""
        if self._id is None:
            await self._resolve()
        if self._id is None:
            raise SourceGone(f"Project {self._project} has no id on {self._instance}.")
        return self._id

    async def head(self) -> Commit:
        number = await self.project_id()
        if self._link_path is None:
            await self._resolve()
        try:
            commit = await self._server.call(
                "api_head", partial(_head, number, self._branch), doing=self._reading("head")
            )
        except HttpRefused as refused:
            raise await self._no_head(refused, number) from refused
        self._commit_json = commit
        head = _commit(commit)
        self._commit = head.sha
        return head

    async def branch(self, *, fresh: bool = False) -> str | None:
        """As the port says: no call for a configured branch; one for the default branch, unless `project_id` or `head`
        had to read the project."""
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
                raise self._explained(refused) from refused
            # "404 Tree Not Found": only a rewritten branch removes a commit that was just its head.
            raise SourceUnavailable(
                f"Commit {commit.sha} of {self._project} is no longer on {self._instance}.",
                remedy="Its branch was rewritten; the next run starts from the new head.",
            ) from refused
        known = self._commit_json if self._commit_json and self._commit_json.get("id") == commit.sha else None
        if await asyncio.to_thread(listing.proves, commit.sha, known):
            return Tree(list(listing.entries.values()), proven=True)
        entries = await self._blobs.tree_by_git(commit.sha)
        if entries is not None:
            return Tree(entries, proven=True)
        contradiction = listing.contradiction or await self._root_contradicts(number, commit.sha, listing)
        if contradiction is not None:
            raise SourceCorrupt(
                f"{self._instance} lists the tree of {self._project} wrongly: {contradiction}. Git cannot confirm it "
                f"({self._blobs.no_git}).",
                remedy="Allow git over HTTP for this token, or check the proxy in between: an answer may have been "
                "changed or cut. A file name that is not UTF-8 has the same effect.",
            )
        return Tree(list(listing.entries.values()), proven=False)

    async def _root_contradicts(self, number: int, sha: str, listing: Listing) -> str | None:
        """Missing rows of the root leave no other trace in a listing: it is read once more, by itself."""
        query = {"ref": sha, "pagination": "keyset", "per_page": PAGE_ROWS}
        root = await self._pages(number, query, self._reading("root folder"))
        if root.at_root() == listing.at_root():
            return None
        return "its root folder, read twice, had different rows"

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """As the port says. Raises UnreadableBlobs after the last blob if some are missing on GitLab."""
        number = await self.project_id()
        unreadable: dict[str, str] = {}
        try:
            commit = self._commit or self._branch or "HEAD"
            reading = self._blobs.read(number, commit, entries, max_bytes=max_bytes, unreadable=unreadable)
            async with aclosing(reading) as blobs:
                async for blob in blobs:
                    yield blob
        except HttpRefused as refused:
            raise self._explained(refused) from refused
        if unreadable:
            where = f"{self._instance}/{self._project}"
            raise UnreadableBlobs.among(
                entries, unreadable, where=where, remedy="Ask an administrator of that GitLab to check the repository."
            )

    def url(self, path: bytes, commit: Commit, start_line: int, end_line: int) -> str | None:
        """The lines on the branch's page (HEAD is the default branch), so that the link of an unchanged file is the
        same for every commit. None before the path of a project given by id is known."""
        if self._link_path is None:
            return None
        ref = quote(self._branch, safe="/") if self._branch is not None else "HEAD"
        lines = f"L{start_line}" if start_line == end_line else f"L{start_line}-{end_line}"
        page = f"{self._instance}/{quote(self._link_path, safe='/')}/-/blob/{ref}"
        return f"{page}/{quote_from_bytes(path, safe='/')}#{lines}"

    async def close(self) -> None:
        await self._blobs.close()
        await self._server.close()

    # Project -----------------------------------------------------------------------------------------------------

    async def _resolve(self) -> str:
        """Read the project, by id if that is known; returns its present path."""
        wanted: int | str = self._id if self._id is not None else self._project
        try:
            found = await self._server.call(
                "api_project", lambda client: client.projects.get(wanted).attributes, doing=self._reading("project")
            )
        except HttpRefused as refused:
            raise self._explained(refused) from refused
        try:
            self._id, path = int(found["id"]), str(found["path_with_namespace"])
        except (KeyError, TypeError, ValueError) as error:
            raise SourceCorrupt(f"{self._instance} describes project {self._project} without id or path.") from error
        self._default_branch = str(found["default_branch"]) if found.get("default_branch") else None
        self._link_path = self._link_path or path
        self._blobs.found_at(path)
        return path

    async def _no_head(self, refused: HttpRefused, number: int) -> SourceError:
        """Why there is no head: no project, no commit, or no such branch."""
        if refused.status != 404 or Refusal.of(refused).is_about("Project"):
            return self._explained(refused)
        try:
            names = await self._server.call("api_branches", partial(_branches, number), doing=self._reading("branches"))
        except HttpRefused as second:
            return self._explained(second)
        where = f"Project {self._project} on {self._instance}"
        if not names:
            return RepositoryEmpty(f"{where} has no commit yet.", remedy="Push something there first.")
        if self._branch is not None:
            return branch_not_found(self._branch, names, where)
        return BranchNotFound(
            f"{where} has no default branch.", remedy=f"Name a branch to sync: {', '.join(names[:5])}."
        )

    # Tree --------------------------------------------------------------------------------------------------------

    async def _listing(self, number: int, sha: str) -> Listing:
        doing, recursive = self._reading("tree"), {"ref": sha, "recursive": "true"}
        try:
            return await self._pages(number, recursive | {"pagination": "none"}, doing)
        except HttpRefused as refused:
            if refused.status != 400:  # a GitLab before 15.0 does not support pagination=none
                raise
        except (SourceUnavailable, SourceCorrupt) as error:
            # The server gave up (a time-out, 5xx, an answer cut short): it may be able to send single pages.
            if not isinstance(error.__cause__, TransientFailure) or not error.__cause__.overloaded:
                raise
        return await self._pages(number, recursive | {"pagination": "keyset", "per_page": PAGE_ROWS}, doing)

    async def _pages(self, number: int, query: Mapping[str, Any], doing: str) -> Listing:
        listing = Listing()
        async for rows in self._server.pages("api_tree", f"/projects/{number}/repository/tree", query, doing=doing):
            listing.add(rows)
        return listing

    # Messages ----------------------------------------------------------------------------------------------------

    def _reading(self, what: str) -> str:
        return f"Reading the {what} of {self._project} on {self._instance}"

    def _explained(self, refused: HttpRefused) -> SourceError:
        return self._server.explain(refused, path=self._project)


def _head(number: int, branch: str | None, client: gitlab.Gitlab) -> dict[str, Any]:
    project = client.projects.get(number, lazy=True)
    if branch is not None:
        # Not commits/<branch>: there a tag of the same name has precedence.
        commit: dict[str, Any] = project.branches.get(branch).attributes["commit"]
        return commit
    return project.commits.get("HEAD", stats="false").attributes


def _branches(number: int, client: gitlab.Gitlab) -> list[str]:
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
