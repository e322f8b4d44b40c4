"""What there is to say about each repository, in one record: its configuration, its state, its latest run."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from reposync.config.schedule import Schedule
from reposync.errors import RepositoryNotFound
from reposync.scheduling.catalog import Catalog
from reposync.store.manifest import ManifestCounts, Manifests
from reposync.store.repositories import Registration, Repositories, Repository
from reposync.store.runs import Run, Runs


@dataclass(frozen=True, slots=True)
class Overview:
    """`schedule` in words, None for what is synced by hand. `id` is None for what was never synced. `state`: active,
    paused (then there is a reason) or inactive (it left the registry). `next_due_at` is None where nothing is due."""

    name: str
    id: str | None
    location: str
    source: str
    origin: str
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
    epoch: int
    files: int
    skipped: int
    chunks: int
    failed: int
    last_run: str | None
    last_status: str | None
    last_error: str | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def state_words(catalog: Catalog, repositories: Repositories) -> dict[str, str]:
    """The word for the state of every repository, by name. What no daemon has seen yet is going to be active."""
    words = dict.fromkeys((target.name for target in catalog.configured()), "active")
    return words | {row.name: row.word for row in await repositories.states()}


async def overviews(
    catalog: Catalog,
    repositories: Repositories,
    manifests: Manifests,
    runs: Runs,
    names: Collection[str] | None = None,
) -> list[Overview]:
    """Every repository of the configuration and of the database, by name; of these alone, where names are given."""
    configured = {target.name: target for target in catalog.configured() if names is None or target.name in names}
    rows = {row.name: row for row in await repositories.list(names)}
    ids = None if names is None else [row.id for row in rows.values()]
    versions = None if names is None else [row.live_version or row.id for row in rows.values()]
    latest, counts = await runs.latest(ids), await manifests.counts(versions)
    now = datetime.now(UTC)
    found = []
    for name in sorted(configured.keys() | rows.keys()):
        target, row = configured.get(name), rows.get(name)
        said = target.registration() if target else row
        if said is None:
            continue
        known, version = (row.id, row.live_version or row.id) if row else ("", "")
        found.append(_overview(said, row, counts.get(version, ManifestCounts()), latest.get(known), now))
    return found


def named(overviews: Sequence[Overview], name: str) -> Overview:
    """Raises RepositoryNotFound, naming the nearest."""
    for each in overviews:
        if each.name == name:
            return each
    raise no_such_repository(name, [each.name for each in overviews])


def no_such_repository(name: str, known: Iterable[str]) -> RepositoryNotFound:
    """Names the nearest of those that there are."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return RepositoryNotFound(
        f"No repository {name!r} is registered.",
        remedy=f"Did you mean {near[0]!r}?" if near else "`reposync repos list` names those that are.",
    )


def _overview(
    said: Registration | Repository, row: Repository | None, counts: ManifestCounts, run: Run | None, now: datetime
) -> Overview:
    cron = said.cron_expression
    schedule = Schedule.parse(cron, said.timezone) if cron else None
    is_active, reason = (row.is_active, row.paused_reason) if row else (True, None)
    return Overview(
        name=said.name,
        id=row.id if row else None,
        location=said.location,
        source=said.source,
        origin=said.origin,
        branch=said.branch,
        collection=said.collection,
        cron_expression=said.cron_expression,
        timezone=said.timezone,
        schedule=schedule.words() if schedule else None,
        state="active" if is_active else "paused" if reason else "inactive",
        is_active=is_active,
        paused_reason=reason,
        next_due_at=schedule.next_after(now) if schedule and is_active else None,
        last_sync_at=row.last_sync_at if row else None,
        last_commit=row.last_commit if row else None,
        epoch=row.epoch if row else 0,
        files=counts.files,
        skipped=counts.skipped,
        chunks=counts.chunks,
        failed=counts.failed,
        last_run=run.id if run else None,
        last_status=run.status if run else None,
        last_error=run.error_message if run else None,
    )
