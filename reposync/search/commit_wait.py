"""Waiting until a commit can be searched: until the index holds it, or a commit that has it in its history."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from reposync.errors import ConfigError, RepositoryNotFound, SourceError, SourceUnavailable, UsageError
from reposync.sources.ancestry import Ancestry, ancestry
from reposync.sources.spec import SourceSpec
from reposync.store.following import IndexedCommit, indexed_commits
from reposync.store.repositories import Repository
from reposync.store.row_watch import Following
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.store.versions import VersionState

if TYPE_CHECKING:
    from reposync.app.application import Application

ASK_SECONDS = 10.0
"""The longest that a source may think about one question."""
ASK_AGAIN_SECONDS = 5.0
_ASKED_AT_ONCE = 4
_KNOWN_ANSWERS = 2_000

_NO_SOURCE = "It left the configuration: only the indexed commit itself is known."
_LIMITS = {
    Ancestry.UNKNOWABLE: "Plain git servers cannot compare commits: the indexed commit itself counts, and a run that "
    "began after the request.",
    Ancestry.TOO_FAR: "The two commits lie too far apart to be compared.",
}

Answer = tuple[str, str, str | None]
"""(repository's id, commit, tip)"""


class CommitNotFound(UsageError):
    """The repository has no such commit."""

    code = "COMMIT_NOT_FOUND"
    status = 404


class Relation(StrEnum):
    """How the indexed commit stands to the one that is waited for."""

    SAME = "same"
    DESCENDANT = "descendant"
    LATER = "later"
    """Plain git servers cannot compare commits: a run that began after the wait has completed."""


@dataclass(frozen=True, slots=True)
class CommitState:
    """`relation`: None as long as the commit cannot be searched. `tells_descendants`: False where of these two commits
    only can be told that they are not the same; `limit` says why. `trouble`: why the source could not be asked, in
    words. `run`: the one that is on its way, or the latest."""

    repository: str
    commit: str
    relation: Relation | None
    last_commit: str | None
    last_sync_at: datetime | None
    is_active: bool
    paused_reason: str | None
    tells_descendants: bool
    trouble: str | None
    limit: str | None = None
    run: Run | None = None


class SearchableCommits:
    """For one event loop. One query for all who wait, and one question to a source for all who wait for the same."""

    def __init__(self, application: Callable[[], Application], *, max_waiting: int) -> None:
        self._application = application
        self._following = Following(self._fetch, max_watchers=max_waiting)
        self._answers: OrderedDict[Answer, Ancestry] = OrderedDict()
        self._asking: weakref.WeakValueDictionary[Answer, asyncio.Lock] = weakref.WeakValueDictionary()
        self._turn = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def wait(
        self, name: str, commit: str, seconds: float, *, is_wanted: Callable[[], Awaitable[bool]]
    ) -> CommitState:
        """The state when `commit` (7 to 64 lower-case hex digits) is searchable, when `seconds` are over, or when
        nobody wants it any more.

        Raises RepositoryNotFound, CommitNotFound, CommitAmbiguous, TooManyWatchers, StoreUnavailable.
        """
        row = await self._application().repositories.get(name)
        waiting = _Waiting(self, row, self._source(row), commit)
        deadline = time.monotonic() + seconds
        try:
            with self._following.watching(row.id):
                while True:
                    state = await waiting.state(await self._following.look(row.id))
                    left = deadline - time.monotonic()
                    if state.relation is not None or left <= 0 or not await is_wanted():
                        return state
                    await asyncio.sleep(min(self._following.pause_seconds, left))
        finally:
            await self._following.settle()

    async def unread_files(self, name: str, commit: str) -> int:
        """How many files of that commit could not be read, if it is the one that the index holds but for these; 0 of
        any other. Raises RepositoryNotFound, StoreUnavailable."""
        app = self._application()
        row = await app.repositories.get(name)
        for version in await app.versions.of(row.id):
            if version.state is VersionState.LIVE and (version.partial_commit or "").startswith(commit):
                return (await app.manifests.totals(version.id)).failed
        return 0

    async def run_of(self, name: str) -> Run | None:
        """The run of the repository that is on its way or comes next, or else the latest. Raises RepositoryNotFound,
        StoreUnavailable."""
        runs = self._application().runs
        row = await self._application().repositories.get(name)
        found = await runs.active(row.id) or await runs.history(row.name, limit=1)
        return found[0] if found else None

    async def has_run_since(self, name: str, moment: datetime) -> bool:
        """Whether a run that began after `moment` has completed. Raises StoreUnavailable."""
        runs = await self._application().runs.history(name, RunStatus.COMPLETED, limit=1)
        return any(run.started_at is not None and run.started_at > moment for run in runs)

    def now(self) -> datetime:
        """By the database's clock."""
        return self._application().database.clock.now()

    async def relation(self, row: Repository, source: SourceSpec, commit: str, tip: str | None) -> Ancestry:
        """Asked once for all, and remembered: the history of a commit never changes. Raises SourceError."""
        key = (row.id, commit, tip)
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
            answer = await self._ask(source, commit, tip)
            if answer is not Ancestry.UNKNOWN_COMMIT:
                self._answers[key] = answer
                while len(self._answers) > _KNOWN_ANSWERS:
                    self._answers.popitem(last=False)
            return answer

    async def _ask(self, source: SourceSpec, commit: str, tip: str | None) -> Ancestry:
        try:
            async with self._turn, asyncio.timeout(ASK_SECONDS):
                return await ancestry(source, commit, tip, observer=self._application().observer)
        except TimeoutError as error:
            raise SourceUnavailable(f"The source did not answer within {ASK_SECONDS:g} s.") from error

    def _source(self, row: Repository) -> SourceSpec | None:
        try:
            return self._application().catalog.of_row(row).source(row)
        except (RepositoryNotFound, ConfigError):
            # It left the configuration; its index is still searched, and its commit is known.
            return None

    async def _fetch(self, ids: Collection[str]) -> dict[str, IndexedCommit]:
        return await indexed_commits(self._application().database, ids)


class _Waiting:
    """One who waits for `commit` of one repository."""

    def __init__(self, commits: SearchableCommits, row: Repository, source: SourceSpec | None, commit: str) -> None:
        self._commits = commits
        self._row = row
        self._source = source
        self._commit = commit
        self._trouble: SourceError | None = None
        self._is_unknowable = False
        self._limit: str | None = None if source is not None else _NO_SOURCE
        self._ask_after = float("-inf")
        self._began = commits.now()

    async def state(self, indexed: IndexedCommit | None) -> CommitState:
        if indexed is None:
            raise RepositoryNotFound(f"The repository {self._row.name!r} was removed meanwhile.")
        relation = await self._relation(indexed.commit)
        synced = indexed.last_sync_at
        if relation is None and self._is_unknowable and synced is not None and synced > self._began:
            relation = Relation.LATER if await self._commits.has_run_since(indexed.name, self._began) else None
        return CommitState(
            repository=indexed.name,
            commit=self._commit,
            relation=relation,
            last_commit=indexed.commit,
            last_sync_at=indexed.last_sync_at,
            is_active=indexed.is_active,
            paused_reason=indexed.paused_reason,
            tells_descendants=self._limit is None,
            trouble=str(self._trouble) if self._trouble is not None else None,
            limit=self._limit,
        )

    async def _relation(self, tip: str | None) -> Relation | None:
        if tip == self._commit:
            return Relation.SAME
        begins_like_it = Relation.SAME if tip is not None and tip.startswith(self._commit) else None
        if self._source is None or time.monotonic() < self._ask_after:
            return begins_like_it
        try:
            answer = await self._commits.relation(self._row, self._source, self._commit, tip)
        except SourceError as error:
            self._trouble, self._ask_after = error, time.monotonic() + ASK_AGAIN_SECONDS
            return begins_like_it
        self._trouble, self._limit = None, _LIMITS.get(answer)
        self._is_unknowable = answer is Ancestry.UNKNOWABLE
        if answer is Ancestry.UNKNOWN_COMMIT:
            raise CommitNotFound(
                f"{self._row.name!r} has no commit {self._commit}.", remedy="Push it before you wait for it."
            )
        if answer is Ancestry.CONTAINED:
            return begins_like_it or Relation.DESCENDANT
        return None if answer.is_known else begins_like_it
