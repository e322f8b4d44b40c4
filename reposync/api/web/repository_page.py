"""The page of a repository, `/repositories/{name}`: what is registered, its index, runs and files.

`?folder=src/web` shows the files of a folder."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import Response

from reposync.api.routing import path_of
from reposync.api.web.charts import run_chart
from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Page
from reposync.api.web.runs_page import CHART_RUNS, progress_of
from reposync.app.index_overview import index_overview
from reposync.catalog.overview import repository_detail
from reposync.config.schedule import Schedule, ScheduleError
from reposync.content.model import REMEDIES
from reposync.errors import RepositoryNotFound
from reposync.store.index_queries import commit_pages
from reposync.store.manifest import TreeEntry
from reposync.store.repository import Repository
from reposync.store.ticks import Ticks
from reposync.words import file_address

PAGE_ENTRIES = 1_000
SHOWN_RUNS = 10
TICKS = 3
SLOW_REFRESH_SECONDS = 15
"""While nothing runs: listing a folder reads the rows of all files."""


async def show_repository(page: Page) -> Response:
    name = page.request.path_params["name"]
    app = page.app
    try:
        found, row = await repository_detail(app.repositories, app.manifests, app.runs, Ticks(app.database), name)
    except RepositoryNotFound:
        await app.runs.require_known(name)
        # It was removed, but its history is kept.
        return Response(status_code=303, headers={"Location": f"{page.root}/runs?{urlencode({'repository': name})}"})
    version = row.live_version or row.id
    path = page.query.get("folder", "").strip("/")
    entries = await app.manifests.folder(version, path, PAGE_ENTRIES + 1)
    runs = await app.runs.history(repository=row.name, limit=CHART_RUNS)
    address = f"{page.root}/repositories/{path_of(row.name)}"

    def in_folder(path: str) -> str:
        return f"{address}?{urlencode({'folder': path})}#files"

    def link(entry: TreeEntry) -> str | None:
        """Where a click on the entry leads; None for a file that is not indexed."""
        full = f"{path}/{entry.name}" if path else entry.name
        if entry.files is not None:
            return in_folder(full.rstrip("/"))
        return f"{page.root}{file_address(row.name, full)}" if entry.chunks else None

    # The folders above `path` and itself.
    above = list(itertools.accumulate(path.split("/"), "{}/{}".format)) if path else []
    return page.show(
        "repository.html",
        repository=found,
        registered=row.origin_words,
        definition=list(_keys(row.resolved or row.definition or {})),
        ticks=_ticks(row, app.runs.now()),
        index=await index_overview(app, row.name),
        commit_page=(await commit_pages(app.database, [row.id])).get(row.id),
        chart=run_chart(runs),
        runs=runs[:SHOWN_RUNS],
        more_runs=len(runs) > SHOWN_RUNS,
        progress=progress_of(runs[:SHOWN_RUNS]),
        askers=await app.runs.askers([run.id for run in runs[:SHOWN_RUNS]]),
        folder=path,
        folders=[(each.rpartition("/")[2], in_folder(each)) for each in above],
        entries=[(each, link(each)) for each in entries[:PAGE_ENTRIES]],
        more_entries=len(entries) > PAGE_ENTRIES,
        skipped=await app.manifests.skip_counts(version),
        remedies=REMEDIES,
        back=address,
        refresh_seconds=IDLE_REFRESH_SECONDS if runs and not runs[0].is_final else SLOW_REFRESH_SECONDS,
    )


def _ticks(row: Repository, now: datetime) -> list[datetime]:
    """The next ones of its schedule."""
    ticks: list[datetime] = []
    # A newer program may have schedules that this one cannot read.
    with contextlib.suppress(ScheduleError):
        if row.is_active and row.cron_expression is not None:
            schedule = Schedule.parse(row.cron_expression, row.timezone)
            while len(ticks) < TICKS:
                ticks.append(schedule.next_after(ticks[-1] if ticks else now))
    return ticks


def _keys(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Each key of the registry file with its value, defaults too."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{within}{key}.")
        elif isinstance(value, list):
            yield f"{within}{key}", ", ".join(map(str, value)) or "none"
        elif value is not None:
            yield f"{within}{key}", value if isinstance(value, str) else json.dumps(value)
