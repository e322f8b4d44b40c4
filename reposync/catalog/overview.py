"""One record for each repository: configuration, state and latest run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from reposync.config.schedule import NEVER_WORDS, Schedule, ScheduleError
from reposync.store.columns import known_fields
from reposync.store.history import RunHistory
from reposync.store.manifest import ManifestCounts, Manifests
from reposync.store.repositories import Repositories
from reposync.store.repository import MissedTick, Repository, RepositoryGlance


@dataclass(frozen=True, slots=True)
class Overview:
    """`project_id`: GitLab's number of the project, known after the first sync. `schedule` in words; None if it was
    synced by hand and is not registered. `state`: active, paused (with a reason) or inactive (it left its registry
    file). `next_due_at`: None if it is not scheduled. `head_commit`: the newest head of its source that a run or a push
    reported; `behind_since`: since when the index has not held it completely. `meaning_indexed`: the share (0 to 1) of
    its chunks with dense vectors, if its first sync has not ended and only words are searched; else None.
    `next_attempt_at`: see `Run`."""

    name: str
    id: str
    location: str
    project_id: int | None
    source: str
    origin: str
    origin_file: str | None
    branch: str | None
    collection: str
    cron_expression: str | None
    timezone: str
    schedule: str | None
    state: str
    is_active: bool
    paused_reason: str | None
    next_due_at: datetime | None
    last_sync_at: datetime | None
    last_commit: str | None
    head_commit: str | None
    behind_since: datetime | None
    meaning_indexed: float | None
    epoch: int
    files: int
    skipped: int
    chunks: int
    failed: int
    last_run: str | None
    last_status: str | None
    last_error: str | None
    next_attempt_at: datetime | None


async def late_repositories(states: Sequence[Repository | RepositoryGlance], now: datetime) -> list[str]:
    """Names of repositories that were not synced at the last two ticks of their schedule."""
    late = []
    for number, state in enumerate(states):
        if number % 50 == 0:
            await asyncio.sleep(0)
        if not state.is_active or state.cron_expression is None or state.last_sync_at is None:
            continue
        with contextlib.suppress(ScheduleError):  # of a newer program
            if late_after(state.cron_expression, state.timezone, state.last_sync_at) < now:
                late.append(state.name)
    return late


@functools.lru_cache(maxsize=10_000)
def late_after(crontab: str, timezone: str, last_sync_at: datetime) -> datetime:
    """The second tick after the last sync. Cached, because a tick takes a tenth of a millisecond to compute."""
    schedule = Schedule.parse(crontab, timezone)
    return schedule.next_after(schedule.next_after(last_sync_at))


@dataclass(frozen=True, slots=True)
class RepositoryDetail(Overview):
    """`definition`: registered over HTTP or by command, with the keys of the registry file; null for an entry of that
    file. `missed_ticks`: ticks without a run because they were noticed too late; newest first. `version`: changes with
    what a person can change of it, and not with its syncs."""

    definition: Mapping[str, Any] | None
    missed_ticks: list[MissedTick]
    version: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"missed_ticks": [each.model_dump() for each in self.missed_ticks]}


async def overviews(
    repositories: Repositories, manifests: Manifests, history: RunHistory, names: Collection[str] | None = None
) -> list[Overview]:
    """All repositories, or those with these names, by name."""
    rows = await repositories.list(names)
    return [Overview(**columns) for columns in await _overviews(rows, manifests, history, is_all=names is None)]


async def repository_detail(
    repositories: Repositories, manifests: Manifests, history: RunHistory, name: str, identity: str | None = None
) -> tuple[RepositoryDetail, Repository]:
    """With its row; by its `identity`, if given. Raises RepositoryNotFound, which names the nearest name."""
    row = await repositories.get(name, identity)
    (columns,) = await _overviews([row], manifests, history)
    missed = [MissedTick.model_validate(tick) for tick in row.missed_ticks]
    return RepositoryDetail(**columns, definition=row.definition, missed_ticks=missed, version=row.version), row


async def _overviews(
    rows: Sequence[Repository], manifests: Manifests, history: RunHistory, *, is_all: bool = False
) -> list[dict[str, Any]]:
    """The columns of an overview of each."""
    versions = {row.id: row.live_version or row.id for row in rows}
    latest = await history.latest(None if is_all else list(versions))
    counts = await manifests.counts(None if is_all else list(versions.values()))
    meaning = await manifests.meaning_indexed(list(versions.values()))
    overviews = []
    for row in rows:
        run, version = latest.get(row.id), versions[row.id]
        overviews.append(
            known_fields(Overview, dict(row))
            | known_fields(Overview, asdict(counts.get(version, ManifestCounts())))
            | {
                "behind_since": row.behind_since,
                "meaning_indexed": meaning.get(version),
                "schedule": _schedule(row),
                "state": row.state,
                "last_run": run.id if run else None,
                "last_status": run.status if run else None,
                "last_error": run.error_message if run else None,
                "next_attempt_at": run.next_attempt_at if run else None,
            }
        )
    return overviews


def _schedule(row: Repository) -> str | None:
    """In words. A schedule of a newer version of reposync is shown unchanged."""
    if row.cron_expression is None:
        return None if row.by_hand else NEVER_WORDS
    try:
        return Schedule.parse(row.cron_expression, row.timezone).words()
    except ScheduleError:
        return row.cron_expression
