"""What there is to say about each repository, in one record: its configuration, its state, its latest run."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from reposync.errors import RepositoryNotFound
from reposync.scheduling.catalog import Catalog
from reposync.store.manifest import Manifests, ManifestTotals
from reposync.store.repositories import Registration, Repositories, Repository
from reposync.store.runs import Run, Runs


@dataclass(frozen=True, slots=True)
class Overview:
    """`schedule` in words, None for what is synced by hand. `id` is None for what was never synced."""

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
    is_active: bool
    last_sync_at: datetime | None
    last_commit: str | None
    epoch: int
    files: int
    skipped: int
    chunks: int
    last_run: str | None
    last_status: str | None
    last_error: str | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def overviews(catalog: Catalog, repositories: Repositories, manifests: Manifests, runs: Runs) -> list[Overview]:
    """Every repository of the configuration and of the database, by name."""
    configured = {target.name: target for target in catalog.configured()}
    rows = {row.name: row for row in await repositories.list()}
    found = []
    for name in sorted(configured.keys() | rows.keys()):
        target, row = configured.get(name), rows.get(name)
        said = target.registration() if target else row
        if said is None:
            continue
        words = target.repository.schedule.words() if target else None
        latest = (await runs.history(repository=name, limit=1))[:1] if row else []
        totals = await manifests.totals(row.id) if row else ManifestTotals(0, 0, 0, 0, 0)
        found.append(_overview(said, row, words, totals, latest[0] if latest else None))
    return found


def named(overviews: Sequence[Overview], name: str) -> Overview:
    """Raises RepositoryNotFound, naming the nearest."""
    for each in overviews:
        if each.name == name:
            return each
    near = difflib.get_close_matches(name, [each.name for each in overviews], n=1)
    raise RepositoryNotFound(
        f"No repository {name!r} is registered.",
        remedy=f"Did you mean {near[0]!r}?" if near else "`reposync repos list` names those that are.",
    )


def _overview(
    said: Registration | Repository, row: Repository | None, words: str | None, totals: ManifestTotals, run: Run | None
) -> Overview:
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
        schedule=words,
        is_active=row.is_active if row else True,
        last_sync_at=row.last_sync_at if row else None,
        last_commit=row.last_commit if row else None,
        epoch=row.epoch if row else 0,
        files=totals.files,
        skipped=totals.skipped,
        chunks=totals.chunks,
        last_run=run.id if run else None,
        last_status=run.status if run else None,
        last_error=run.error_message if run else None,
    )
