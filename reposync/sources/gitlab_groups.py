"""The projects of a GitLab group: a request for each hundred, whatever state they are in.

The listing is ordered by ascending id, so that a project that is created while the pages are read comes last. One that
is deleted meanwhile may hide the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from reposync.errors import SourceError
from reposync.http_client import HttpRefused
from reposync.outgoing import printable
from reposync.sources.gitlab_client import PAGE_ROWS, GitLabClient

MAX_PROJECTS = 10_000
MAX_PAGES = MAX_PROJECTS // PAGE_ROWS + 1
_FAULTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ListedProject:
    """`path` is the full one, `platform/sub/name`. Without a token GitLab does not mark archived or empty projects."""

    id: int
    path: str
    is_archived: bool = False
    is_empty: bool = False
    is_marked_for_deletion: bool = False
    has_repository: bool = True


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`faults` describes rows that are no projects, or missing: projects may be missing from the listing then."""

    projects: tuple[ListedProject, ...]
    faults: tuple[str, ...] = ()

    def joined(self, later: GroupListing) -> GroupListing:
        """With what `later` has in addition, and as that describes it."""
        projects = {project.id: project for project in (*self.projects, *later.projects)}
        return GroupListing(tuple(projects[number] for number in sorted(projects)), later.faults)


class GitLabGroup:
    """A group of a GitLab instance; `group` is its full path or numeric id. Closing it closes `server`."""

    def __init__(self, server: GitLabClient, group: str) -> None:
        self._server = server
        self._group = group.strip("/")

    @property
    def has_token(self) -> bool:
        return self._server.token is not None

    async def projects(self, *, archived: bool) -> GroupListing:
        """All projects of the group and its subgroups by id, except those that are only shared with it. `archived`:
        include archived ones. Raises SourceUnavailable, SourceDenied, SourceGone, SourceError: no partial listing."""
        query: dict[str, Any] = {"include_subgroups": "true", "with_shared": "false", "per_page": PAGE_ROWS}
        query |= {"order_by": "id", "sort": "asc"}
        if not self.has_token and not archived:
            query["archived"] = "false"
        try:
            try:
                return await self._pages(query | {"pagination": "keyset"})
            except HttpRefused as refused:
                if refused.status not in (400, 405):  # a server with keyset pages, but not for this list
                    raise
                return await self._pages(query)
        except HttpRefused as refused:
            raise self._server.explain(refused, path=self._group, kind="group") from refused

    async def close(self) -> None:
        await self._server.close()

    async def _pages(self, query: Mapping[str, Any]) -> GroupListing:
        where = f"the projects of group {self._group} on {self._server.url}"
        path = f"/groups/{quote(self._group, safe='')}/projects"
        found: dict[int, ListedProject] = {}
        faults: list[str] = []
        page_count = row_count = 0
        total: int | None = None
        async with aclosing(
            self._server.pages("api_group", path, query, doing=f"Listing {where}", beyond_full=True)
        ) as pages:
            async for page in pages:
                page_count += 1
                row_count += len(page.rows)
                total, known = page.total, len(found)
                for row_number, row in enumerate(page.rows, 1):
                    listed = _listed(row)
                    if isinstance(listed, str):
                        faults.append(f"row {row_number} of page {page_count}: {listed}")
                    else:
                        found[listed.id] = listed
                if len(found) > MAX_PROJECTS or page_count > MAX_PAGES:
                    raise SourceError(
                        f"Listing {where} found more than {MAX_PROJECTS:,} projects or {MAX_PAGES} pages.",
                        remedy="List smaller groups instead.",
                    )
                if len(found) == known and page.link is None:
                    break  # the same page again: the server ignores page numbers
        if total is not None and row_count < total:
            faults.insert(0, f"it has {row_count} of the {total} rows that GitLab counts")
        more = len(faults) - _FAULTS_SHOWN
        shown = (*faults[:_FAULTS_SHOWN], *([f"and {more} more"] if more > 0 else []))
        return GroupListing(tuple(sorted(found.values(), key=lambda each: each.id)), shown)


def _listed(row: Any) -> ListedProject | str:
    """The project, or what is wrong with its row."""
    if not isinstance(row, dict):
        return "it is no object"
    number, path = row.get("id"), row.get("path_with_namespace")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**63:
        return f"its id is {_quoted(number)}"
    if not isinstance(path, str) or not path.strip("/") or "/" not in path or not path.isprintable():
        return f"the path of project {number} is {_quoted(path)}"
    return ListedProject(
        id=number,
        path=path.strip("/"),
        is_archived=row.get("archived") is True,
        is_empty=row.get("empty_repo") is True,
        is_marked_for_deletion=bool(row.get("marked_for_deletion_on") or row.get("marked_for_deletion_at")),
        has_repository=row.get("repository_access_level") != "disabled",
    )


def _quoted(value: Any) -> str:
    return "missing" if value is None else printable(repr(value)[:60])
