"""Asks GitLab, as the reader, whose code they may read.

The ability is `read_code`: `Project.repository` is null in GraphQL without it (app/graphql/types/repository_type.rb).
`GET /projects/:id` proves less, and `downloadCode` is a different ability. `adminProject` is in ProjectPermissions
(app/graphql/types/permission_types/project.rb) and needs the role Maintainer.

Membership of a group is proved by `GET /groups/:id/members/all/:user_id`: members of the group, of those above it and
of invited groups, without requests and minimal access (lib/api/helpers/members_helpers.rb). That a group is visible
proves nothing, and `maxAccessLevel` of a group in GraphQL knows its direct members only (`User#
max_member_access_for_group_ids`). That of a project knows all ways to be a member, and neither its visibility nor who
may see its code: it explains a right and gives none.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from reposync.config.gitlab_instance import GitLabInstance
from reposync.errors import ReaderRefused, RightsUnavailable
from reposync.http_client import ErrorKinds, HttpClient, HttpRefused, TransientFailure
from reposync.outgoing import RequestObserver, RetryPolicy, Timeouts, parse_json
from reposync.supervision import together

T = TypeVar("T")

BATCH = 100
"""GitLab's largest page; it cuts a larger `first` silently."""
MAX_REQUESTS = 4
"""At a time, for one reader."""
GUEST = 10
"""The lowest level of a member that counts."""
WITHIN_SECONDS = 15.0
STANDINGS_WITHIN_SECONDS = 10.0
"""The time limit of all requests together: a page waits for them."""
MAX_ANSWER_BYTES = 1_000_000
MAX_USERNAME_CHARS = 255

QUESTION = (
    "query($ids: [ID!]!) { currentUser { id username } projects(ids: $ids, first: 100) "
    "{ nodes { id userPermissions { adminProject } repository { __typename } } } }"
)
STANDINGS_QUESTION = (
    "query($ids: [ID!]!) { currentUser { id } projects(ids: $ids, first: 100) "
    "{ nodes { id visibility maxAccessLevel { integerValue } } } }"
)
VISIBILITIES = ("private", "internal", "public")
_ERRORS = ErrorKinds(RightsUnavailable, RightsUnavailable, RightsUnavailable)
# A wait that GitLab requests of one reader must not hold up the others, who share the client.
_POLICY = RetryPolicy(
    attempts=2,
    first_delay_seconds=0.2,
    max_delay_seconds=0.4,
    longest_wait_seconds=0.5,
    max_wait_seconds=2.0,
    within_seconds=WITHIN_SECONDS,
)
_MOST_CONNECT_SECONDS, _MOST_READ_SECONDS = 5.0, 10.0
_TOKEN = re.compile(r"[!-~]{8,500}")
_USER_ID = re.compile(r"gid://gitlab/User/([0-9]{1,18})")
_PROJECT_ID = re.compile(r"gid://gitlab/Project/([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about the projects that were asked for: whose code the user may read, and which ones they maintain.
    `groups`: those of which they are a member."""

    user_id: int
    username: str
    readable: frozenset[int]
    maintained: frozenset[int]
    groups: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class Standing:
    """Why a project may be visible to a user. `level`: their highest over all ways to be a member, 0 for none."""

    visibility: str
    level: int


class GitLabRights:
    """Methods raise ReaderRefused if GitLab does not accept the token, and RightsUnavailable if it gives no answer:
    that never means that there is no right."""

    def __init__(
        self,
        server: GitLabInstance,
        *,
        retry: RetryPolicy = _POLICY,
        observer: RequestObserver | None = None,
    ) -> None:
        """Opens no connection."""
        self.url = server.url
        self.http = HttpClient(
            server.url,
            _ERRORS,
            ca_file=server.ca_file,
            timeouts=Timeouts(
                min(server.connect_timeout_seconds, _MOST_CONNECT_SECONDS),
                min(server.read_timeout_seconds, _MOST_READ_SECONDS),
            ),
            policy=retry,
            observer=observer,
        )

    async def ask(
        self,
        token: str,
        projects: Collection[int],
        groups: Collection[str] = (),
        *,
        first_within: AbstractAsyncContextManager[None] | None = None,
    ) -> Answer:
        """One request for each hundred projects, and one for each group. The first one alone, in `first_within`: a
        token that GitLab does not accept costs no more."""
        if not _TOKEN.fullmatch(token):
            raise ReaderRefused("This is not a token of GitLab.")
        batches = _batches(sorted(projects))
        async with first_within or nullcontext():
            first = await self._code(token, batches[0])
        limit = asyncio.Semaphore(MAX_REQUESTS)

        async def code(batch: Sequence[int]) -> Answer:
            async with limit:
                return await self._code(token, batch)

        async def membership(group: str) -> str | None:
            async with limit:
                return group if await self._is_member(token, first.user_id, group) else None

        pending: list[Any] = [code(batch) for batch in batches[1:]]
        pending += [membership(group) for group in sorted(groups)]
        results = await together(*pending)
        answers = [first, *(each for each in results if isinstance(each, Answer))]
        if len({(each.user_id, each.username) for each in answers}) > 1:
            raise RightsUnavailable(f"{self.url} answered one question as to several users.")
        return Answer(
            first.user_id,
            first.username,
            _union(each.readable for each in answers),
            _union(each.maintained for each in answers),
            frozenset(each for each in results if isinstance(each, str)),
        )

    async def standings(self, token: str, user_id: int, projects: Collection[int]) -> dict[int, Standing]:
        """The standing of the owner of the token in those of the projects that GitLab shows them: to explain what `ask`
        found, and not to decide anything. One request for each hundred projects."""
        limit = asyncio.Semaphore(MAX_REQUESTS)

        async def batch(numbers: Sequence[int]) -> dict[int, Standing]:
            async with limit:
                document = await self._graphql(token, STANDINGS_QUESTION, "graphql_standings", numbers)
            return self._read_as(_read_standings, document, user_id, frozenset(numbers))

        pending = [batch(numbers) for numbers in _batches(sorted(projects)) if numbers]
        try:
            async with asyncio.timeout(STANDINGS_WITHIN_SECONDS):
                answers = await together(*pending)
        except TimeoutError as error:
            raise RightsUnavailable(f"{self.url} took too long to say why a reader sees a project.") from error
        return {number: standing for answer in answers for number, standing in answer.items()}

    async def close(self) -> None:
        await self.http.close()

    async def _code(self, token: str, batch: Sequence[int]) -> Answer:
        document = await self._graphql(token, QUESTION, "graphql_rights", batch)
        return self._read_as(_read, document, frozenset(batch))

    async def _graphql(self, token: str, question: str, kind: str, batch: Sequence[int]) -> dict[str, Any]:
        ids = [f"gid://gitlab/Project/{number}" for number in batch]
        body = json.dumps({"query": question, "variables": {"ids": ids}}).encode()
        document = await self._asked(token, "POST", "/api/graphql", kind, body)
        if document.get("errors"):
            # Also of a time-out of GitLab, with null for what it did not compute.
            raise RightsUnavailable(f"{self.url} answered with errors when asked what a reader may see.")
        return document

    def _read_as(self, read: Callable[..., T], document: dict[str, Any], *expected: Any) -> T:
        try:
            return read(document, *expected)
        except (ValueError, LookupError, TypeError) as error:
            raise RightsUnavailable(f"{self.url} did not answer as GitLab does: {error}.") from error

    async def _is_member(self, token: str, user_id: int, group: str) -> bool:
        path = f"/api/v4/groups/{quote(group, safe='')}/members/all/{user_id}"
        try:
            member = await self._asked(token, "GET", path, "api_group_member")
        except HttpRefused as refused:
            if refused.status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                return False
            raise self._no_answer(refused) from refused
        level, state = member.get("access_level"), member.get("membership_state", "active")
        if member.get("id") != user_id or not isinstance(level, int) or isinstance(level, bool):
            raise RightsUnavailable(f"{self.url} did not answer as GitLab does about a member of a group.")
        return level >= GUEST and state == "active"

    async def _asked(
        self, token: str, method: str, path: str, kind: str, content: bytes | None = None
    ) -> dict[str, Any]:
        """The JSON object that GitLab answers. Raises HttpRefused only for a GET."""
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = "application/json"

        async def attempt() -> dict[str, Any]:
            # A redirect is not followed, not even on the same server: it leads to a login page.
            exchange = self.http.stream(
                method, f"{self.url}{path}", kind=kind, headers=headers, content=content, follow_redirects=False
            )
            async with exchange as response:
                body = await self.http.read(response, MAX_ANSWER_BYTES)
            document = _json(body)
            if not isinstance(document, dict):
                raise TransientFailure("the answer is no JSON object", corrupt=True)
            return document

        try:
            return await self.http.retry(
                attempt, doing=f"Asking {self.url} what a reader may see", remedy="Try again in a moment."
            )
        except HttpRefused as refused:
            if refused.status == HTTPStatus.UNAUTHORIZED:
                raise ReaderRefused(f"{self.url} does not accept this token.") from refused
            if method == "GET":
                raise
            # Of a deactivated user; a proxy answers with a page.
            if refused.status == HTTPStatus.FORBIDDEN and isinstance(_json(refused.body), dict):
                raise ReaderRefused(f"{self.url} does not let this user in.") from refused
            raise self._no_answer(refused) from refused

    def _no_answer(self, refused: HttpRefused) -> RightsUnavailable:
        return RightsUnavailable(f"{self.url} answered {refused.status} when asked what a reader may see.")


def _read(document: dict[str, Any], asked: frozenset[int]) -> Answer:
    """Raises ValueError, LookupError or TypeError for what GitLab does not answer."""
    user = document["data"]["currentUser"]
    if user is None:
        raise ValueError("it took the reader for an anonymous one; check that a proxy passes Authorization on")
    identity, username = _number(_USER_ID, user["id"]), user["username"]
    if not isinstance(username, str) or not 0 < len(username) <= MAX_USERNAME_CHARS or not username.isprintable():
        raise ValueError("a user without a name")
    readable, maintained = set[int](), set[int]()
    for node in document["data"]["projects"]["nodes"]:
        number, repository = _number(_PROJECT_ID, node["id"]), node["repository"]
        is_admin = node["userPermissions"]["adminProject"]
        if not isinstance(is_admin, bool) or not (repository is None or isinstance(repository["__typename"], str)):
            raise ValueError("a project of another form")
        if number in asked and repository is not None:
            readable.add(number)
            if is_admin:
                maintained.add(number)
    return Answer(identity, username, frozenset(readable), frozenset(maintained))


def _read_standings(document: dict[str, Any], user_id: int, asked: frozenset[int]) -> dict[int, Standing]:
    """Raises as `_read` does."""
    if _number(_USER_ID, document["data"]["currentUser"]["id"]) != user_id:
        raise ValueError("it took the reader for a different user")
    standings = dict[int, Standing]()
    for node in document["data"]["projects"]["nodes"]:
        number, visibility, level = _number(_PROJECT_ID, node["id"]), node["visibility"], node["maxAccessLevel"]
        value = 0 if level is None or level["integerValue"] is None else level["integerValue"]
        if visibility not in VISIBILITIES or not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("a project of another form")
        if number in asked:
            standings[number] = Standing(visibility, value)
    return standings


def _number(pattern: re.Pattern[str], value: Any) -> int:
    match = pattern.fullmatch(value)
    if match is None:
        raise ValueError("an id of another form")
    return int(match[1])


def _json(body: bytes) -> Any:
    try:
        return parse_json(body)
    except ValueError:
        return None


def _batches(numbers: Sequence[int]) -> list[Sequence[int]]:
    """At least one: without projects, it asks who the reader is."""
    return [numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)] or [()]


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
