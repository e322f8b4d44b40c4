"""The pages of repositories: the first page, with every repository, its state and its next sync; and the page of one,
`/repositories/{name}`: what is registered, its index, runs and files. `?folder=src/web` shows the files of a folder."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import Response

from reposync.api.documents import cursor_after, key_before
from reposync.api.routing import path_of
from reposync.api.web.charts import first_hour, hour_chart, run_chart
from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Page
from reposync.api.web.runs_page import CHART_RUNS, approve_label, progress_of
from reposync.app.application import Application
from reposync.app.index_overview import collection_changes, index_overview
from reposync.catalog.overview import late_repositories, overviews, repository_detail
from reposync.config.schedule import Schedule, ScheduleError
from reposync.content.model import REMEDIES
from reposync.errors import RepositoryNotFound
from reposync.store.index_queries import commit_page, version_summaries
from reposync.store.manifest import TreeEntry
from reposync.store.repository import MAX_NAME_CHARS, Repository
from reposync.store.status import ACTIVE, RunStatus
from reposync.words import duration, file_address

PAGE_REPOSITORIES = 50
_BAD = frozenset({RunStatus.FAILED, RunStatus.BLOCKED})


class _Known(NamedTuple):
    name: str
    state: str
    latest: RunStatus | str | None
    lacks_files: bool
    lacks_meaning: bool
    is_behind: bool


# Filters, by their value in the query.
_CHOICES: Mapping[str, tuple[str, Callable[[_Known], bool]]] = {
    "": ("all", lambda each: True),
    "active": ("active", lambda each: each.state == "active"),
    "paused": ("paused", lambda each: each.state == "paused"),
    "inactive": ("not in the registry", lambda each: each.state == "inactive"),
    "running": ("running", lambda each: each.latest is RunStatus.RUNNING),
    "behind": ("behind their head", lambda each: each.is_behind),
    "attention": ("need attention", lambda each: each.lacks_files or each.lacks_meaning or each.latest in _BAD),
}


async def show_repositories(page: Page) -> Response:
    app = page.app
    query = page.query
    name = query.get("name", "").strip()[:MAX_NAME_CHARS]
    choice = query.get("show", "") if query.get("show") in _CHOICES else ""
    after = key_before(query["after"]) if query.get("after") else ""
    states = sorted(await app.repositories.states(), key=lambda each: each.name)
    latest = await app.history.latest_statuses(_BAD | ACTIVE)
    versions = await version_summaries(app.database)
    incomplete = {version.repository for version in versions if version.is_live and version.lacks_files}
    by_words = {version.repository for version in versions if version.is_live and version.words_only}
    known = [
        _Known(
            each.name,
            each.state,
            latest.get(each.name),
            each.name in incomplete,
            # Nothing continues its first sync.
            each.name in by_words and latest.get(each.name) not in ACTIVE,
            each.is_active and each.behind_since is not None,
        )
        for each in states
    ]
    matching = [each for each in known if name.casefold() in each.name.casefold()]
    chosen = [each.name for each in matching if _CHOICES[choice][1](each)]
    left = [each for each in chosen if each > after]
    names, seen = left[:PAGE_REPOSITORIES], len(chosen) - len(left)
    found = await overviews(app.repositories, app.manifests, app.history, names) if names else []
    shown = (RunStatus.RUNNING, RunStatus.BLOCKED)
    runs = await app.history.by_ids([each.last_run for each in found if each.last_run and each.last_status in shown])
    late = set(await late_repositories(states, app.history.now()))

    def address(**extra: str) -> str:
        return f"{page.root}/{_query(name=name, show=choice, **extra)}"

    return page.show(
        "repositories.html",
        repositories=found,
        late=late,
        commit_pages={each.repository_id: each.commit_page for each in versions if each.is_live},
        progress=progress_of(runs.values()),
        approvals={each.id: approve_label(each) for each in runs.values() if each.status is RunStatus.BLOCKED},
        changes=[each for each in collection_changes(app, versions) if each.is_under_way],
        # Query, label, count, and whether it is chosen; without empty ones.
        choices=[
            (_query(name=name, show=word), label, number, word == choice)
            for word, (label, is_in) in _CHOICES.items()
            if (number := sum(map(is_in, matching))) or word in ("", choice)
        ],
        choice=choice or None,
        name=name or None,
        is_any=bool(known),
        day=await _last_day(app, states, late) if known else None,
        failed=sum(each.latest is RunStatus.FAILED for each in known),
        back=address(after=query.get("after", "")),
        first_link=address() if after else None,
        next_link=address(after=cursor_after(names[-1])) if len(left) > len(names) else None,
        shown_from=seen + 1,
        shown_to=seen + len(names),
        shown_of=len(chosen),
    )


async def _last_day(app: Application, states: Sequence[Repository], late: Collection[str]) -> dict[str, Any]:
    """The last 24 hours, the queue and the workers."""
    now = app.history.now()
    counts = await app.history.by_hour(first_hour(now))
    ended = sum(each.runs for each in counts if each.is_final)
    completed = sum(each.runs for each in counts if each.kind == "completed")
    queue = await app.history.queue()
    behind = [(each.behind_since, each.name) for each in states if each.is_active and each.behind_since]
    synced = [(each.last_sync_at, each.name) for each in states if each.name in late and each.last_sync_at]
    return {
        "success_rate": f"{100 * completed / ended:.0f}%" if ended else "–",
        "ended": ended,
        "running": queue.counts.get(RunStatus.RUNNING, 0),
        "waiting": sum(queue.counts.get(each, 0) for each in (RunStatus.QUEUED, RunStatus.RETRYING)),
        # In minutes, so that the page does not change at each look.
        "oldest": duration(queue.oldest_seconds // 60 * 60) if queue.oldest_seconds >= 60 else None,
        "blocked": queue.counts.get(RunStatus.BLOCKED, 0),
        "workers": len(await app.workers.alive()),
        "late": len(late),
        "most_late": min(synced, default=None),
        "behind": len(behind),
        "most_behind": min(behind, default=None),
        "chart": hour_chart(counts, now),
    }


def _query(**values: str) -> str:
    kept = {key: value for key, value in values.items() if value}
    return f"?{urlencode(kept)}" if kept else ""


# One repository -------------------------------------------------------------------------------------------------------

PAGE_ENTRIES = 1_000
SHOWN_RUNS = 10
TICKS = 3
SLOW_REFRESH_SECONDS = 15
"""While nothing runs: listing a folder reads the rows of all files."""


async def show_repository(page: Page) -> Response:
    name = page.request.path_params["name"]
    app = page.app
    try:
        found, row = await repository_detail(app.repositories, app.manifests, app.history, name)
    except RepositoryNotFound:
        await app.history.require_known(name)
        # It was removed, but its history is kept.
        return Response(status_code=303, headers={"Location": f"{page.root}/runs?{urlencode({'repository': name})}"})
    version = row.live_version or row.id
    path = page.query.get("folder", "").strip("/")
    entries = await app.manifests.folder(version, path, PAGE_ENTRIES + 1)
    runs = await app.history.runs(repository=row.name, limit=CHART_RUNS)
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
        ticks=_ticks(row, app.history.now()),
        index=await index_overview(app, row.name),
        commit_page=await commit_page(app.database, row.id),
        chart=run_chart(runs),
        runs=runs[:SHOWN_RUNS],
        more_runs=len(runs) > SHOWN_RUNS,
        progress=progress_of(runs[:SHOWN_RUNS]),
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
    """When it is due next, and the ticks of its schedule after that."""
    ticks = [] if row.next_due_at is None else [row.next_due_at]
    # A newer program may have schedules that this one cannot read.
    with contextlib.suppress(ScheduleError):
        if ticks and row.cron_expression is not None:
            schedule = Schedule.parse(row.cron_expression, row.timezone)
            while len(ticks) < TICKS:
                ticks.append(schedule.next_after(max(ticks[-1], now)))
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
