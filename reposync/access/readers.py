"""Readers: people and tokens that GitLab knows, with its latest answer about what they may see."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Protocol

from reposync.access.changes import RightsChange
from reposync.access.gitlab import Answer
from reposync.access.strangers import Strangers
from reposync.clock import Clock, elapsed_seconds
from reposync.errors import ReaderRefused, RightsUnavailable
from reposync.supervision import end

FRESH_SECONDS = 60.0
AWAY_SECONDS = 300.0
MAX_READERS = 1_000
"""In one daemon. The one that asked least recently is forgotten, and asked about again."""
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
"""After a failed question, or as long as GitLab requests: until then the last answer is used without a new one."""


@dataclass(frozen=True, slots=True)
class Reader:
    """What GitLab answered about the owner of a token at `as_of`: projects by their numbers on the server at the
    address `gitlab`, and the paths of groups that they are a member of."""

    gitlab: str
    user_id: int
    username: str
    readable: frozenset[int]
    maintained: frozenset[int]
    groups: frozenset[str]
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a question is about."""

    projects: frozenset[int]
    groups: frozenset[str] = field(default_factory=frozenset)

    def __le__(self, other: Wanted) -> bool:
        return self.projects <= other.projects and self.groups <= other.groups

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted(self.projects | other.projects, self.groups | other.groups)

    def __sub__(self, other: Wanted) -> Wanted:
        return Wanted(self.projects - other.projects, self.groups - other.groups)


class Rights(Protocol):
    """Raises ReaderRefused, and RightsUnavailable if there is no answer."""

    @property
    def url(self) -> str: ...

    async def ask(
        self,
        token: str,
        projects: Collection[int],
        groups: Collection[str] = (),
        *,
        first_within: AbstractAsyncContextManager[None] | None = None,
    ) -> Answer: ...


@dataclass(frozen=True, slots=True)
class _Known:
    """A token that GitLab accepted. `reader`: None if the answer was dropped; of `asked`, at `asked_at`."""

    user_id: int
    reader: Reader | None
    asked: Wanted
    asked_at: float
    paused_until: float = float("-inf")


@dataclass(slots=True, eq=False)
class _Question:
    """One that is being asked; callers with the same token share it. `user_id`: None for an unknown token."""

    wanted: Wanted
    user_id: int | None
    answer: asyncio.Task[Reader] = field(init=False)


class Readers:
    """The cache in front of GitLab, of one daemon. An answer counts for `fresh_seconds`, and while GitLab is away for
    `away_seconds`. Tokens are known by a keyed hash, and not kept."""

    def __init__(
        self,
        rights: Rights,
        *,
        fresh_seconds: float = FRESH_SECONDS,
        away_seconds: float = AWAY_SECONDS,
        clock: Clock | None = None,
        elapsed: Callable[[], float] = elapsed_seconds,
    ) -> None:
        self._rights = rights
        self._fresh_seconds = fresh_seconds
        self._away_seconds = max(away_seconds, fresh_seconds)
        self._clock = clock or Clock()
        self._elapsed = elapsed
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._questions: dict[bytes, _Question] = {}
        self._running: set[asyncio.Task[Reader]] = set()
        self._strangers = Strangers(elapsed, refused_seconds=fresh_seconds)

    async def reader(self, token: str, wanted: Wanted, *, address: str | None = None) -> Reader:
        """The owner of the token, with an answer about at least what is `wanted`, unless GitLab is away. `address`: of
        the client, whose unknown tokens are limited; None for a token that GitLab gave us for a sign-in.

        Raises ReaderRefused, TooManyUnknownTokens, and RightsUnavailable."""
        identity = hmac.digest(self._key, token.encode("utf-8", "surrogatepass"), sha256)
        known = self._known.get(identity)
        if known is None:
            if self._strangers.is_refused(identity):
                raise ReaderRefused("GitLab does not accept this token.")
        else:
            self._known.move_to_end(identity)
            if (reader := self._usable(known, wanted)) is not None:
                return reader
        question = self._questions.get(identity)
        if question is None or not wanted <= question.wanted:
            question = _Question(wanted, known.user_id if known is not None else None)
            question.answer = asyncio.ensure_future(self._ask(identity, question, token, address))
            self._questions[identity] = question
            self._running.add(question.answer)
            question.answer.add_done_callback(partial(self._ended, identity, question))
        return await asyncio.shield(question.answer)

    def drop(self, change: RightsChange) -> None:
        """Answers that the change outdates are asked for again when they are needed. A question that is being asked may
        have been answered before the change: its answer is for those who wait already, and is not kept."""
        user_id, project_id = change.user_id, change.project_id
        for identity, question in list(self._questions.items()):
            is_theirs = user_id is None or question.user_id in (None, user_id)
            if is_theirs and (project_id is None or project_id in question.wanted.projects):
                del self._questions[identity]
        for identity, known in self._known.items():
            # Most events are about projects that are not in the catalogue.
            is_theirs = user_id in (None, known.user_id)
            if is_theirs and (project_id is None or project_id in known.asked.projects):
                self._known[identity] = _without(known, project_id)

    async def close(self) -> None:
        await end(*self._running)

    def _usable(self, known: _Known, wanted: Wanted) -> Reader | None:
        """The answer if it needs no question."""
        if known.reader is None:
            return None
        now = self._elapsed()
        age = now - known.asked_at
        if now < known.paused_until:
            return known.reader if age <= self._away_seconds else None
        return known.reader if age < self._fresh_seconds and wanted <= known.asked else None

    async def _ask(self, identity: bytes, question: _Question, token: str, address: str | None) -> Reader:
        known, began, now = self._known.get(identity), self._elapsed(), self._clock.now()
        reader = known.reader if known is not None else None
        # Only what is new, such as a repository that was registered a moment ago. With the other half of the time the
        # rest is still fresh when a slow answer has come.
        is_fresh = known is not None and began - known.asked_at < self._fresh_seconds / 2
        wanted = question.wanted - known.asked if known is not None and is_fresh else question.wanted
        try:
            gate = self._strangers.asking(address) if known is None and address is not None else None
            answer = await self._rights.ask(token, wanted.projects, wanted.groups, first_within=gate)
        except ReaderRefused:
            self._known.pop(identity, None)
            self._strangers.refuse(identity)
            raise
        except RightsUnavailable as error:
            # Read again: it may have been dropped since.
            known = self._known.get(identity)
            if known is None or known.reader is None or self._elapsed() - known.asked_at > self._away_seconds:
                raise
            pause_seconds = min(max(PAUSE_SECONDS, error.retry_after_seconds or 0.0), LONGEST_PAUSE_SECONDS)
            self._known[identity] = replace(known, paused_until=self._elapsed() + pause_seconds)
            return known.reader
        asked, asked_at = wanted, began
        result = Reader(
            self._rights.url, answer.user_id, answer.username, answer.readable, answer.maintained, answer.groups, now
        )
        if known is not None and reader is not None and is_fresh and reader.user_id == result.user_id:
            asked, asked_at = known.asked | wanted, known.asked_at
            result = replace(
                result,
                readable=reader.readable | result.readable,
                maintained=reader.maintained | result.maintained,
                groups=reader.groups | result.groups,
                as_of=reader.as_of,
            )
        self._keep(identity, question, _Known(result.user_id, result, asked, asked_at))
        return result

    def _keep(self, identity: bytes, question: _Question, known: _Known) -> None:
        """Unless a change, or a question about more, came meanwhile. Then it is only kept that the token is good: its
        next question does not wait behind those about unknown tokens."""
        if self._questions.get(identity) is not question:
            known = self._known.get(identity) or _without(known, None)
        self._known[identity] = known
        while len(self._known) > MAX_READERS:
            self._known.popitem(last=False)

    def _ended(self, identity: bytes, question: _Question, task: asyncio.Task[Reader]) -> None:
        self._running.discard(task)
        if self._questions.get(identity) is question:
            del self._questions[identity]
        if not task.cancelled():
            task.exception()  # retrieved, if nobody waits for it any more


def _without(known: _Known, project_id: int | None) -> _Known:
    """Without the answer, or without what it says about one project."""
    reader, nothing = known.reader, Wanted(frozenset())
    if project_id is None or reader is None:
        return replace(known, reader=None, asked=nothing, paused_until=float("-inf"))
    one = frozenset({project_id})
    return replace(
        known,
        reader=replace(reader, readable=reader.readable - one, maintained=reader.maintained - one),
        asked=known.asked - Wanted(one),
        paused_until=float("-inf"),
    )
