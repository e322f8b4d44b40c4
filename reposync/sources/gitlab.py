"""A project of a GitLab instance: REST to ask what changed, git for many contents, REST for few.

| asked | requests |
|---|---|
| is the head still the same (project id known) | 1 REST |
| tree of a new head | 1 REST, and 1 git where the listing cannot be proven (see `listing`; git refused: 1 REST more) |
| up to 20 blobs | 1 REST each (1 git where the id had to be asked for: a first sync reads everything anyway) |
| a blob over the limit, by REST | 1 REST more, for its size |
| more | 1 git per 2,000 |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_from_bytes

import gitlab
from pydantic import SecretStr

from reposync.errors import BranchNotFound, RepositoryEmpty, SourceCorrupt, SourceError, SourceGone, SourceUnavailable
from reposync.sources.addresses import check_way, header_secret, parse_address
from reposync.sources.branches import branch_not_found
from reposync.sources.gitlab_blobs import GitLabBlobs
from reposync.sources.gitlab_words import Refusal, explain
from reposync.sources.listing import Listing
from reposync.sources.objects import UnreadableBlobs, title_of
from reposync.sources.port import Blob, Commit, Tree, TreeEntry
from reposync.sources.rest import Rest, RestRefused
from reposync.sources.retries import TransientFailure
from reposync.sources.spec import Patience, SourceObserver, Timeouts

PAGE_ROWS = 100  # GitLab's maximum


class GitLabSource:
    """See the table above, and the port. `project` is a full path or a numeric id."""

    def __init__(
        self,
        instance_url: str,
        project: str,
        *,
        token: SecretStr | None,
        branch: str | None = None,
        project_id: int | None = None,
        ca_file: Path | None = None,
        connect_timeout_seconds: float = 10.0,
        read_timeout_seconds: float = 60.0,
        patience: Patience | None = None,
        observer: SourceObserver | None = None,
    ) -> None:
        """Contacts nobody. Raises ConfigError where the address, the token or the CA file cannot be right."""
        address = parse_address(instance_url, what="GitLab's address")
        check_way(address.url, ca_file)
        secret = header_secret(token or address.password, what=f"The token for {address.url}")
        timeouts = Timeouts(connect_timeout_seconds, read_timeout_seconds)
        patience = patience or Patience()
        self._instance = address.url
        self._project = project.strip("/")
        self._branch = branch
        self._id = project_id if project_id is not None else _numeric(self._project)
        # A path that is configured is what links show, also after the project has moved (GitLab redirects them): the
        # links of a file that has not changed must not change either.
        self._link_path = self._project if _numeric(self._project) is None else None
        self._has_token = secret is not None
        self._commit_json: Mapping[str, Any] | None = None
        self._commit: str | None = None
        self._default_branch: str | None = None
        self._rest = Rest(address.url, secret, ca_file=ca_file, timeouts=timeouts, patience=patience, observer=observer)
        self._blobs = GitLabBlobs(
            self._rest,
            instance=address.url,
            project=self._project,
            token=secret,
            path=self._link_path,
            first_contact=project_id is None,
            resolve=self._resolve,
            ca_file=ca_file,
            timeouts=timeouts,
            patience=patience,
            observer=observer,
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
            commit = await self._rest.call("api_head", partial(_head, number, self._branch), doing=self._doing("head"))
        except RestRefused as refused:
            raise await self._no_head(refused, number) from refused
        self._commit_json = commit
        head = _commit(commit)
        self._commit = head.sha
        return head

    async def branch(self, *, fresh: bool = False) -> str | None:
        """As the port says: no call for a configured branch; one for the default branch, unless `project_id` or `head`
        had to ask for the project."""
        if self._branch is not None:
            return self._branch
        if self._default_branch is None or fresh:
            await self._resolve()
        return self._default_branch

    async def tree(self, commit: Commit) -> Tree:
        """As the port says. A listing that cannot be proven is read by git; where git is refused, it is unproven if
        its own hashes agree, and SourceCorrupt if they do not."""
        number = await self.project_id()
        self._commit = commit.sha
        try:
            listing = await self._listing(number, commit.sha)
        except RestRefused as refused:
            if Refusal.of(refused).is_about("Project") or refused.status != 404:
                raise self._explained(refused) from refused
            # "404 Tree Not Found": nothing but a rewritten branch takes a commit away that was just its head.
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
                f"{self._instance} lists the tree of {self._project} wrongly: {contradiction}. Git, which "
                f"would have the last word, gives none ({self._blobs.no_git}).",
                remedy="Allow git over HTTP for this token, or look at the proxy between: an answer may have been "
                "changed or cut. A file name that is not UTF-8 has the same effect.",
            )
        return Tree(list(listing.entries.values()), proven=False)

    async def _root_contradicts(self, number: int, sha: str, listing: Listing) -> str | None:
        """Rows that the root lacks leave no other trace in a listing: it is asked for once more, by itself."""
        query = {"ref": sha, "pagination": "keyset", "per_page": PAGE_ROWS}
        root = await self._pages(number, query, self._doing("root folder"), recursive=False)
        if root.at_root() == listing.at_root():
            return None
        return "its root folder, asked for twice, came with different rows"

    async def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        """As the port says. Raises UnreadableBlobs after the last blob where GitLab lacks some."""
        number = await self.project_id()
        unreadable: dict[str, str] = {}
        try:
            commit = self._commit or self._branch or "HEAD"
            reading = self._blobs.read(number, commit, entries, max_bytes=max_bytes, unreadable=unreadable)
            async with aclosing(reading) as blobs:
                async for blob in blobs:
                    yield blob
        except RestRefused as refused:
            raise self._explained(refused) from refused
        if unreadable:
            where = f"{self._instance}/{self._project}"
            raise UnreadableBlobs.among(
                entries, unreadable, where=where, remedy="Ask an administrator of that GitLab to check the repository."
            )

    def url(self, path: bytes, commit: Commit, start_line: int, end_line: int) -> str | None:
        """The lines on the branch's page (HEAD stands for the default branch), so that the link of a file that does
        not change stays the same from commit to commit. None before the path of a project given by id is known."""
        if self._link_path is None:
            return None
        ref = quote(self._branch, safe="/") if self._branch is not None else "HEAD"
        lines = f"L{start_line}" if start_line == end_line else f"L{start_line}-{end_line}"
        page = f"{self._instance}/{quote(self._link_path, safe='/')}/-/blob/{ref}"
        return f"{page}/{quote_from_bytes(path, safe='/')}#{lines}"

    async def close(self) -> None:
        await self._blobs.close()
        await self._rest.close()

    # Project -----------------------------------------------------------------------------------------------------

    async def _resolve(self) -> str:
        """Ask for the project, by id where that is known; its present path."""
        wanted: int | str = self._id if self._id is not None else self._project
        try:
            found = await self._rest.call("api_project", partial(_project, wanted), doing=self._doing("project"))
        except RestRefused as refused:
            raise self._explained(refused) from refused
        try:
            self._id, path = int(found["id"]), str(found["path_with_namespace"])
        except (KeyError, TypeError, ValueError) as error:
            raise SourceCorrupt(f"{self._instance} describes project {self._project} without id or path.") from error
        self._default_branch = str(found["default_branch"]) if found.get("default_branch") else None
        self._link_path = self._link_path or path
        self._blobs.found_at(path)
        return path

    async def _no_head(self, refused: RestRefused, number: int) -> SourceError:
        """Why there is no head: no project, no commit, or no such branch."""
        if refused.status != 404 or Refusal.of(refused).is_about("Project"):
            return self._explained(refused)
        try:
            names = await self._rest.call("api_branches", partial(_branches, number), doing=self._doing("branches"))
        except RestRefused as second:
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
        doing = self._doing("tree")
        try:
            return await self._pages(number, {"ref": sha, "pagination": "none"}, doing)
        except RestRefused as refused:
            if refused.status != 400:  # a GitLab before 15.0 does not know pagination=none
                raise
        except (SourceUnavailable, SourceCorrupt) as error:
            # It was there and gave up (a time-out, 5xx, an answer cut short): a page at a time may be what it can do.
            if not isinstance(error.__cause__, TransientFailure) or not error.__cause__.overloaded:
                raise
        return await self._pages(number, {"ref": sha, "pagination": "keyset", "per_page": PAGE_ROWS}, doing)

    async def _pages(self, number: int, query: dict[str, Any], doing: str, *, recursive: bool = True) -> Listing:
        listing = Listing()
        url: str | None = f"/projects/{number}/repository/tree"
        parameters: dict[str, Any] | None = query | ({"recursive": "true"} if recursive else {})
        seen: set[str] = set()
        while url is not None:
            if url in seen:
                raise SourceCorrupt(f"{self._instance} links the pages of {self._project}'s tree in a circle.")
            seen.add(url)
            url = await self._rest.call("api_tree", partial(_page, url, parameters, listing), doing=doing)
            parameters = None  # the link holds them all, and its token is opaque
        return listing

    # Words -------------------------------------------------------------------------------------------------------

    def _doing(self, what: str) -> str:
        return f"Reading the {what} of {self._project} on {self._instance}"

    def _explained(self, refused: RestRefused) -> SourceError:
        return explain(refused, project=self._project, instance=self._instance, has_token=self._has_token)


# In a thread: calls of python-gitlab -------------------------------------------------------------------------------


def _project(wanted: int | str, client: gitlab.Gitlab) -> dict[str, Any]:
    return client.projects.get(wanted).attributes


def _head(number: int, branch: str | None, client: gitlab.Gitlab) -> dict[str, Any]:
    project = client.projects.get(number, lazy=True)
    if branch is not None:
        # Not commits/<branch>: there a tag of the same name would win.
        commit: dict[str, Any] = project.branches.get(branch).attributes["commit"]
        return commit
    return project.commits.get("HEAD", stats="false").attributes


def _branches(number: int, client: gitlab.Gitlab) -> list[str]:
    project = client.projects.get(number, lazy=True)
    return [branch.name for branch in project.branches.list(per_page=PAGE_ROWS, get_all=False)]


def _page(url: str, query: dict[str, Any] | None, listing: Listing, client: gitlab.Gitlab) -> str | None:
    """Take in one page; where the next one is. `http_list` of python-gitlab would do all pages in one call, so that a
    rate limit on the last would cost all of them again."""
    answer = client.http_request("get", url, query_data=query)
    rows = answer.json()
    if not isinstance(rows, list):
        raise TransientFailure("the answer is no list", corrupt=True)
    listing.add(rows)
    following = answer.links.get("next", {}).get("url")
    # Links lead to the address that GitLab believes to have; behind a proxy that is not the one it is asked at.
    return following.partition("/api/v4")[2] if following else None


def _commit(found: Mapping[str, Any]) -> Commit:
    try:
        sha, when = str(found["id"]), datetime.fromisoformat(found["committed_date"])
    except (KeyError, TypeError, ValueError) as error:
        raise SourceCorrupt("GitLab's answer about the head is no commit.") from error
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return Commit(sha, when.astimezone(UTC), title_of(str(found.get("title") or "")))


def _numeric(project: str) -> int | None:
    return int(project) if project.isascii() and project.isdigit() else None
