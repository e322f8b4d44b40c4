"""Waiting until a commit can be searched: until the index holds it or one of its descendants."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from reposync.app.documents import CommitState
from reposync.catalog.targets import Catalog
from reposync.errors import (
    ConfigError,
    RepositoryNotFound,
    SourceElsewhere,
    SourceError,
    SourceUnavailable,
    UsageError,
)
from reposync.runs.reporting import Observer
from reposync.sources.factory import open_source
from reposync.sources.port import Ancestry, SourceSpec
from reposync.store.database import Database
from reposync.store.history import RunHistory
from reposync.store.manifest import Manifests
from reposync.store.notifications import RowWatch
from reposync.store.repositories import Repositories
from reposync.store.repository import Repository
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.store.tables import VersionState
from reposync.store.versions import Versions

ASK_SECONDS = 10.0
"""Timeout of one question to a source."""
ASK_AGAIN_SECONDS = 5.0
MAX_WAITING = 200
_KNOWN_ANSWERS = 2_000

_LEFT = "It left the configuration: only the indexed commit itself is known."
_NOT_HERE = "Its source cannot be read by this process ({}): only the indexed commit itself is known."
_LIMITS = {
    Ancestry.UNKNOWABLE: "Plain git servers cannot compare commits: the indexed commit itself counts, and a run that "
    "began after the request.",
    Ancestry.TOO_FAR: "The two commits lie too far apart to be compared.",
}


class CommitNotFound(UsageError):
    """The repository has no such commit."""

    code = "COMMIT_NOT_FOUND"
    status = 404


class Relation(StrEnum):
    """Relation of the indexed commit to the requested one."""

    SAME = "same"
    DESCENDANT = "descendant"
    LATER = "later"
    """Plain git servers cannot compare commits: a run that began after the request has completed."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """Why a commit cannot be searched: `text` has all of it. `limit`: what cannot be known, or could not be read."""

    text: str
    limit: str | None
    run: Run | None


class CommitParts(Protocol):
    """What is known of repositories and their commits."""

    database: Database
    repositories: Repositories
    catalog: Catalog
    history: RunHistory
    versions: Versions
    manifests: Manifests
    observer: Observer


class SearchableCommits:
    """For one event loop. All waiting clients share one database query, and one question to a source for each pair of
    commits."""

    def __init__(self, app: CommitParts, *, max_waiting: int = MAX_WAITING) -> None:
        self._app = app
        self._rows = RowWatch(self._states, max_watchers=max_waiting)
        self._answers: dict[tuple[str, str, str | None], Ancestry] = {}
        # One question at a time about a repository.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def of(self, app: CommitParts) -> SearchableCommits:
        """The same for a part of the repositories. It shares the queries, the answers and the number of those who
        wait."""
        limited = copy.copy(self)
        limited._app = app
        return limited

    async def _states(self, ids: Collection[str]) -> dict[str, Repository]:
        return {state.id: state for state in await self._app.repositories.states(ids)}

    async def wait(
        self,
        name: str,
        commit: str,
        seconds: float,
        *,
        is_wanted: Callable[[], Awaitable[bool]],
        client: str = "",
    ) -> CommitState:
        """The state as soon as `commit` (7 to 64 lower-case hex digits) can be searched, after `seconds`, or when
        nobody wants it any more. `client`: whose share of the waits it takes; empty: nobody's.

        Raises RepositoryNotFound, CommitNotFound, CommitAmbiguous, TooManyWatchers, StoreUnavailable.
        """
        row = await self._app.repositories.get(name)
        source, limit = self._source(row)
        began = self._app.database.clock.now()
        trouble: str | None = None
        deadline, ask_after = time.monotonic() + seconds, float("-inf")
        try:
            with self._rows.watching(row.id, client):
                while True:
                    indexed = await self._rows.look(row.id)
                    if indexed is None:
                        raise RepositoryNotFound(f"The repository {name!r} was removed meanwhile.")
                    tip = indexed.last_commit
                    relation = Relation.SAME if tip is not None and tip.startswith(commit) else None
                    if source is not None and tip != commit and time.monotonic() >= ask_after:
                        try:
                            # Others may ask about the repository first.
                            async with asyncio.timeout(max(ASK_SECONDS, deadline - time.monotonic())):
                                answer = await self._ancestry(row, source, commit, tip)
                        except TimeoutError:
                            trouble = "The source has not answered yet."
                        except SourceError as error:
                            trouble, ask_after = error.message, time.monotonic() + ASK_AGAIN_SECONDS
                        else:
                            trouble, limit = None, _LIMITS.get(answer)
                            if answer is Ancestry.CONTAINED:
                                relation = relation or Relation.DESCENDANT
                            elif answer is Ancestry.NOT_CONTAINED:
                                relation = None
                            elif answer is Ancestry.UNKNOWABLE:
                                relation = relation or await self._later(indexed, began)
                    left = deadline - time.monotonic()
                    if relation is not None or left <= 0 or not await is_wanted():
                        break
                    await asyncio.sleep(min(self._rows.pause_seconds, left))
        finally:
            await self._rows.settle()
        return CommitState(
            repository=indexed.name,
            commit=commit,
            relation=relation,
            last_commit=tip,
            last_sync_at=indexed.last_sync_at,
            is_active=indexed.is_active,
            paused_reason=indexed.paused_reason,
            tells_descendants=limit is None,
            trouble=trouble,
            limit=limit,
        )

    async def explained(self, name: str, state: CommitState) -> NotYet:
        """Why the commit of `state` cannot be searched. Raises RepositoryNotFound, StoreUnavailable."""
        app, limit = self._app, state.limit
        row = await app.repositories.get(name)
        for version in await app.versions.of(row.id):
            if version.state is VersionState.LIVE and (version.partial_commit or "").startswith(state.commit.lower()):
                unread = (await app.manifests.totals(version.id)).failed
                limit = f"{unread:,} files of this commit could not be read; the next run tries again."
        held = "no commit of it is indexed completely"
        if state.last_commit:
            held = f"the index holds {state.last_commit[:10]}"
        run = next(iter(await app.history.active(row.id) or await app.history.runs(row.name, limit=1)), None)
        latest = "It has never been synced." if run is None else f"Its latest run {run.id} is {run.status}."
        why = limit
        if state.trouble is not None:
            why = f"The source could not say whether it is a descendant of the commit: {state.trouble}"
        text = f"Commit {state.commit} of {state.repository!r} is not searchable yet: {held}. {latest}"
        return NotYet(f"{text} {why or ''}".strip(), limit, run)

    async def _later(self, indexed: Repository, began: datetime) -> Relation | None:
        """LATER if a run that began after `began` has completed. Raises StoreUnavailable."""
        if indexed.last_sync_at is None or indexed.last_sync_at <= began:
            return None
        runs = await self._app.history.runs(indexed.name, RunStatus.COMPLETED, limit=1)
        is_later = any(run.started_at is not None and run.started_at > began for run in runs)
        return Relation.LATER if is_later else None

    async def _ancestry(self, row: Repository, source: SourceSpec, commit: str, tip: str | None) -> Ancestry:
        """Asked once and remembered: the history of a commit never changes. Raises SourceError, CommitNotFound."""
        key = (row.id, commit, tip)
        async with self._turns[row.id]:
            if key in self._answers:
                return self._answers[key]
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    opened = open_source(source, observer=self._app.observer)
                    try:
                        answer = await opened.ancestry(commit, tip)
                    finally:
                        await opened.close()
            except TimeoutError as error:
                raise SourceUnavailable(f"The source did not answer within {ASK_SECONDS:g} s.") from error
            if answer is Ancestry.UNKNOWN_COMMIT:  # it may be pushed later
                raise CommitNotFound(f"{row.name!r} has no commit {commit}.", remedy="Push it before you wait for it.")
            if len(self._answers) >= _KNOWN_ANSWERS:
                self._answers.clear()
            self._answers[key] = answer
            return answer

    def _source(self, row: Repository) -> tuple[SourceSpec | None, str | None]:
        """Or why there is none here: the index can still be searched, and its commit is known."""
        try:
            return self._app.catalog.of_row(row).source(), None
        except RepositoryNotFound:
            return None, _LEFT
        except (ConfigError, SourceElsewhere) as error:
            return None, _NOT_HERE.format(error.message.rstrip("."))
