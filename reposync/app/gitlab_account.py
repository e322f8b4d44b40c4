"""What a token of a GitLab server is worth: whose it is, its scopes and its last day; and which projects and groups it
sees."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from reposync.config.gitlab_instance import GitLabInstance
from reposync.http_client import HttpRefused, TransientFailure
from reposync.outgoing import RetryPolicy

if TYPE_CHECKING:
    import gitlab

    from reposync.sources.gitlab_client import GitLabClient

NEEDED_SCOPES = ("read_api", "read_repository")
"""`api` includes both."""
SHOWN = 20
"""How many projects and groups one look for a text finds."""
_SHOWN_GROUPS = 8


@dataclass(frozen=True, slots=True)
class Account:
    """What GitLab says about a token. `token`: its name. `scopes`: None if GitLab does not tell them. `last_day`: None
    for a token that does not expire. `server_time`: from the header Date."""

    version: str | None
    user: str | None
    token: str | None
    scopes: frozenset[str] | None
    last_day: date | None
    server_time: datetime | None

    @property
    def missing_scopes(self) -> list[str]:
        if self.scopes is None or "api" in self.scopes:
            return []
        return [scope for scope in NEEDED_SCOPES if scope not in self.scopes]

    def words(self) -> str:
        """`GitLab 18.5.0, as ada, read_api and read_repository, until 2027-03-01`."""
        parts = [f"GitLab {self.version}" if self.version else "GitLab"]
        if self.user or self.token:
            parts.append(f"as {self.user}" if self.user else f"token {self.token}")
        if self.scopes is not None:
            parts.append(" and ".join(sorted(self.scopes)) or "no scope")
            parts.append(f"until {self.last_day}" if self.last_day else "without an end")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Place:
    """A project or a group, by its path."""

    kind: Literal["project", "group"]
    path: str


class GitLabAccount:
    """A server with a token, for a person who waits: requests are not repeated. Methods raise SourceError."""

    def __init__(self, client: GitLabClient) -> None:
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, server: GitLabInstance, *, timeout_seconds: float = 15.0) -> AsyncGenerator[GitLabAccount, None]:
        from reposync.sources.gitlab_client import GitLabClient

        names = ("connect_timeout_seconds", "read_timeout_seconds")
        impatient = server.model_copy(update={name: min(getattr(server, name), timeout_seconds) for name in names})
        client = GitLabClient(impatient, retry=RetryPolicy(attempts=1, max_wait_seconds=0.0))
        try:
            yield cls(client)
        finally:
            await client.close()

    async def look(self) -> Account:
        """Raises SourceDenied if GitLab does not accept the token."""
        await self._client.ping()
        version = await self._get("/version")
        if self._client.token is None:
            return Account(_text(version, "version"), None, None, None, None, None)
        token, user = await self._get("/personal_access_tokens/self"), await self._get("/user")
        scopes, last_day = token.get("scopes"), None
        with contextlib.suppress(TypeError, ValueError):
            last_day = date.fromisoformat(str(token.get("expires_at"))[:10])
        return Account(
            version=_text(version, "version"),
            user=_text(user, "username"),
            token=_text(token, "name"),
            scopes=frozenset(map(str, scopes)) if isinstance(scopes, list) else None,
            last_day=last_day,
            server_time=_time(token.get("Date")),
        )

    async def find(self, words: str) -> tuple[list[Place], bool]:
        """Groups and projects of the token's user whose path or name contains `words`, those with the latest activity
        first; and whether there are more."""
        groups = await self._list("/groups", {"search": words, "min_access_level": 10, "all_available": "false"})
        query = {"search": words, "search_namespaces": "true", "membership": "true", "archived": "false"}
        projects = await self._list("/projects", {**query, "simple": "true", "order_by": "last_activity_at"})
        found = [Place("group", path) for path in _paths(groups, "full_path")][:_SHOWN_GROUPS]
        found += [Place("project", path) for path in _paths(projects, "path_with_namespace")][: SHOWN - len(found)]
        return found, len(found) < len(groups) + len(projects)

    async def get(self, place: Place) -> Place:
        """With the path as GitLab writes it. Raises SourceGone if the token does not see it."""
        query = {"with_projects": "false"} if place.kind == "group" else {}
        shown = await self._get(f"/{place.kind}s/{quote(place.path, safe='')}", query, about=place)
        key = "full_path" if place.kind == "group" else "path_with_namespace"
        return Place(place.kind, _text(shown, key) or place.path)

    async def _list(self, path: str, query: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        asked = {key: value for key, value in query.items() if value} | {"per_page": SHOWN + 1}
        try:
            rows = await self._call(path, asked)
        except HttpRefused as answer:
            raise self._client.explain(answer, path=path.strip("/"), kind="the list of") from answer
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    async def _get(
        self, path: str, query: Mapping[str, Any] | None = None, *, about: Place | None = None
    ) -> Mapping[str, Any]:
        """A document; empty if GitLab does not show it to this token, unless it is `about` something."""
        try:
            document = await self._call(path, query or {})
        except HttpRefused as answer:
            if about is not None:
                raise self._client.explain(answer, path=about.path, kind=about.kind) from answer
            if answer.status not in (401, 403, 404):
                raise self._client.explain(answer, path=path.strip("/"), kind="its") from answer
            return {}
        return document if isinstance(document, dict) else {}

    async def _call(self, path: str, query: Mapping[str, Any]) -> Any:
        """The JSON document, with the header Date among the keys of an object."""

        def work(client: gitlab.Gitlab) -> Any:
            response = client.http_request("get", path, query_data=dict(query))
            try:
                document = response.json()
            except ValueError as error:
                raise TransientFailure("the answer is no JSON", corrupt=True) from error
            return {"Date": response.headers.get("Date"), **document} if isinstance(document, dict) else document

        return await self._client.call("api_account", work, doing=f"Reading {self._client.url}{path}")


def _paths(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return [str(row[key]) for row in rows if row.get(key)]


def _text(document: Mapping[str, Any], key: str) -> str | None:
    return str(document[key]) if document.get(key) else None


def _time(header: object) -> datetime | None:
    with contextlib.suppress(TypeError, ValueError):
        return parsedate_to_datetime(str(header)).astimezone(UTC)
    return None
