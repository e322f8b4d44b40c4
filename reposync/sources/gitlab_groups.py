"""The projects of a GitLab group: a request for each hundred, whatever state they are in.

The listing is ordered by ascending id, so that a project that is created while the pages are read comes last. One that
is deleted meanwhile may hide the next one.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from reposync.errors import GroupListingFaulty, SourceError
from reposync.http_client import HttpRefused
from reposync.outgoing import printable
from reposync.sources.gitlab_client import PAGE_ROWS, GitLabClient

MAX_PROJECTS = 10_000
MAX_PAGES = MAX_PROJECTS // PAGE_ROWS + 1


@dataclass(frozen=True, slots=True)
class ListedProject:
    """`path` is the full one, `platform/sub/name`. Without a token GitLab does not mark archived or empty projects."""

    id: int
    path: str
    is_archived: bool = False
    is_empty: bool = False
    is_marked_for_deletion: bool = False
    has_repository: bool = True


class GitLabGroup:
    """A group of a GitLab instance; `group` is its full path or numeric id. Closing it closes `server`."""

    def __init__(self, server: GitLabClient, group: str) -> None:
        self._server = server
        self._group = group.strip("/")

    @property
    def has_token(self) -> bool:
        return self._server.token is not None

    async def projects(self, *, archived: bool) -> dict[int, ListedProject]:
        """All projects of the group and its subgroups by id, except those that are only shared with it. `archived`:
        include archived ones. Raises SourceUnavailable, SourceDenied, SourceGone, SourceError: no partial listing."""
        where = f"the projects of group {self._group} on {self._server.url}"
        path = f"/groups/{quote(self._group, safe='')}/projects"
        query: dict[str, Any] = {"include_subgroups": "true", "with_shared": "false", "per_page": PAGE_ROWS}
        query |= {"order_by": "id", "sort": "asc"}
        if not self.has_token and not archived:
            query["archived"] = "false"
        found: dict[int, ListedProject] = {}
        page_count = 0
        try:
            async with aclosing(self._server.pages("api_group", path, query, doing=f"Listing {where}")) as pages:
                async for rows in pages:
                    page_count += 1
                    found |= {project.id: project for project in map(self._listed, rows)}
                    if len(found) > MAX_PROJECTS or page_count > MAX_PAGES:
                        raise SourceError(
                            f"Listing {where} found more than {MAX_PROJECTS:,} projects or {MAX_PAGES} pages.",
                            remedy="List smaller groups instead.",
                        )
        except HttpRefused as refused:
            raise self._server.explain(refused, path=self._group, kind="group") from refused
        return found

    async def close(self) -> None:
        await self._server.close()

    def _listed(self, row: Any) -> ListedProject:
        try:
            number, path = row["id"], row["path_with_namespace"].strip("/")
            if isinstance(number, int) and 0 < number < 2**63 and "/" in path and path.isprintable():
                return ListedProject(
                    id=number,
                    path=path,
                    is_archived=row.get("archived") is True,
                    is_empty=row.get("empty_repo") is True,
                    is_marked_for_deletion=bool(row.get("marked_for_deletion_on") or row.get("marked_for_deletion_at")),
                    has_repository=row.get("repository_access_level") != "disabled",
                )
        except (KeyError, TypeError, AttributeError):
            pass
        shown = printable(repr(row))[:200]
        raise GroupListingFaulty(f"GitLab's listing of group {self._group} contains what is no project: {shown}.")
