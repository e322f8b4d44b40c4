"""The projects of a GitLab group: a request for each hundred, whatever state they are in.

GitLab pages the projects of a group by number; a server that knows keyset pages is taken at its word, which costs
nothing: each page's link says where the next one is. Asked for by ascending id, so that a project that is made while
the pages are read comes last; one that is deleted meanwhile may hide another, so who is missing is asked for by number
before anybody draws a conclusion from it (`project`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gitlab
from pydantic import SecretStr

from reposync.errors import SourceCorrupt, SourceError
from reposync.sources.addresses import check_way, header_secret, parse_address
from reposync.sources.git_protocol import printable
from reposync.sources.gitlab_words import Refusal, explain
from reposync.sources.rest import Rest, RestRefused
from reposync.sources.retries import TransientFailure
from reposync.sources.spec import Patience, SourceObserver, Timeouts

PAGE_ROWS = 100  # GitLab's maximum
MAX_PROJECTS = 10_000
MAX_PAGES = MAX_PROJECTS // PAGE_ROWS + 1
_FAULTS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ListedProject:
    """`path` is the full one, `platform/sub/name`. Who asks without a token is not told of archived or empty ones."""

    id: int
    path: str
    is_archived: bool = False
    is_empty: bool = False
    is_marked_for_deletion: bool = False
    has_repository: bool = True


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`faults` says what was wrong with rows that are no projects: others may be missing for all we know."""

    projects: tuple[ListedProject, ...]
    faults: tuple[str, ...] = ()


class GitLabGroup:
    """A group of a GitLab instance; `group` is its full path or numeric id. Close it after use."""

    def __init__(
        self,
        instance_url: str,
        group: str,
        *,
        token: SecretStr | None,
        ca_file: Path | None = None,
        timeouts: Timeouts | None = None,
        patience: Patience | None = None,
        observer: SourceObserver | None = None,
    ) -> None:
        """Contacts nobody. Raises ConfigError where the address, the token or the CA file cannot be right."""
        address = parse_address(instance_url, what="GitLab's address")
        check_way(address.url, ca_file)
        secret = header_secret(token or address.password, what=f"The token for {address.url}")
        self._instance = address.url
        self._group = group.strip("/")
        self.has_token = secret is not None
        self._rest = Rest(
            address.url,
            secret,
            ca_file=ca_file,
            timeouts=timeouts or Timeouts(),
            patience=patience or Patience(),
            observer=observer,
        )

    async def projects(self, *, archived: bool) -> GroupListing:
        """All projects of the group and its subgroups by id, but none that are only shared with it. `archived`: who
        has no token is not told which ones are, so that these are asked for only where they are wanted.

        Raises SourceUnavailable, SourceDenied, SourceGone, SourceCorrupt, SourceError: there is no half listing.
        """
        query: dict[str, Any] = {
            "include_subgroups": "true",
            "with_shared": "false",
            "per_page": PAGE_ROWS,
            "order_by": "id",
            "sort": "asc",
        }
        if not self.has_token and not archived:
            query["archived"] = "false"
        try:
            return await self._pages(query | {"pagination": "keyset"})
        except RestRefused as refused:
            if refused.status not in (400, 405):  # a server that knows keyset pages, but not for this list
                raise self._explained(refused, "group", self._group) from refused
        try:
            return await self._pages(query)
        except RestRefused as refused:
            raise self._explained(refused, "group", self._group) from refused

    async def project(self, number: int) -> ListedProject | None:
        """The project of that number, wherever it is now; None where it is gone or hidden. Raises as `projects`."""
        doing = f"Reading project {number} on {self._instance}"
        try:
            found = await self._rest.call("api_project", partial(_project, number), doing=doing)
        except RestRefused as refused:
            if Refusal.of(refused).is_about("Project"):
                return None
            raise self._explained(refused, "project", str(number)) from refused
        listed = _listed(found)
        if isinstance(listed, str):
            raise SourceCorrupt(f"{self._instance} describes project {number} wrongly: {listed}.")
        return listed

    async def close(self) -> None:
        await self._rest.close()

    async def _pages(self, query: Mapping[str, Any]) -> GroupListing:
        where = f"the projects of group {self._group} on {self._instance}"
        found: dict[int, ListedProject] = {}
        faults: list[str] = []
        url: str | None = f"/groups/{gitlab.utils.EncodedId(self._group)}/projects"
        parameters: Mapping[str, Any] | None = query
        seen: set[str] = set()
        row_number = 0
        while url is not None:
            if url in seen:
                raise SourceCorrupt(f"{self._instance} links the pages of {where} in a circle.")
            seen.add(url)
            page = await self._rest.call("api_group", partial(_page, url, parameters), doing=f"Listing {where}")
            for row in page.rows:
                row_number += 1
                listed = _listed(row)
                if isinstance(listed, str):
                    faults.append(f"row {row_number}: {listed}")
                else:
                    found[listed.id] = listed
            if len(found) > MAX_PROJECTS or len(seen) > MAX_PAGES:
                raise SourceError(
                    f"{where[0].upper()}{where[1:]} are more than {MAX_PROJECTS:,}, or on more than {MAX_PAGES} pages.",
                    remedy="List smaller groups instead.",
                )
            url, parameters = page.following, None  # the link holds them all
        return GroupListing(tuple(sorted(found.values(), key=lambda each: each.id)), _shown(faults))

    def _explained(self, refused: RestRefused, kind: str, path: str) -> SourceError:
        return explain(refused, project=path, instance=self._instance, has_token=self.has_token, kind=kind)


# In a thread: calls of python-gitlab -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Page:
    rows: list[Any]
    following: str | None


def _page(url: str, query: Mapping[str, Any] | None, client: gitlab.Gitlab) -> _Page:
    """One page, and where the next one is."""
    answer = client.http_request("get", url, query_data=dict(query) if query is not None else None)
    rows = answer.json()
    if not isinstance(rows, list):
        raise TransientFailure("the answer is no list", corrupt=True)
    following = answer.links.get("next", {}).get("url")
    # Links lead to the address that GitLab believes to have; behind a proxy that is not the one it is asked at.
    return _Page(rows, following.partition("/api/v4")[2] if following else None)


def _project(number: int, client: gitlab.Gitlab) -> dict[str, Any]:
    return client.projects.get(number).attributes


def _listed(row: Any) -> ListedProject | str:
    """The project, or what is wrong with its row."""
    if not isinstance(row, dict):
        return "it is no object"
    number, path = row.get("id"), row.get("path_with_namespace")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**63:
        return f"its id is {_said(number)}"
    if not isinstance(path, str) or not path.strip("/") or "/" not in path or not path.isprintable():
        return f"the path of project {number} is {_said(path)}"
    return ListedProject(
        id=number,
        path=path.strip("/"),
        is_archived=row.get("archived") is True,
        is_empty=row.get("empty_repo") is True,
        is_marked_for_deletion=bool(row.get("marked_for_deletion_on") or row.get("marked_for_deletion_at")),
        has_repository=row.get("repository_access_level") != "disabled",
    )


def _said(value: Any) -> str:
    return "missing" if value is None else printable(repr(value)[:60].encode("utf-8", "replace"))


def _shown(faults: list[str]) -> tuple[str, ...]:
    more = len(faults) - _FAULTS_SHOWN
    return (*faults[:_FAULTS_SHOWN], f"and {more} more") if more > 0 else tuple(faults)
