"""The pages of repositories: the first page, with every repository, its state and its next sync; and the page of one,
`/repositories/{name}`: what is registered, its index, runs and files. `?folder=src/web` shows the files of a folder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args
from urllib.parse import urlencode

from fastapi import Response

from reposync.api.web.charts import hour_chart, run_chart
from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Page
from reposync.api.web.runs_page import PAGE_RUNS, approve_label, progress_of
from reposync.content.model import REMEDIES
from reposync.errors import RepositoryNotFound
from reposync.operations.core import NOTHING, read_arguments
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.operations.index import repository_index
from reposync.operations.pages import (
    Choice,
    Choices,
    Day,
    TreeEntry,
    all_repositories,
    repository_facts,
)
from reposync.operations.paths import path_of
from reposync.operations.repositories import get_repository
from reposync.operations.runs import RunFilters, history
from reposync.words import duration, file_address

_LABELS = {"inactive": "not in the registry", "behind": "behind their head", "attention": "need attention"}
"""Of choices whose name is not their label."""


async def show_repositories(page: Page) -> Response:
    query = page.query
    name = query.get("name", "").strip()[:MAX_NAME_CHARS]
    choice = query.get("show", "") if query.get("show") in get_args(Choice) else "all"
    asked = read_arguments(Choices, {"name": name, "choice": choice, "cursor": query.get("after")})
    found = await all_repositories(page.app, page.actor, asked)

    def link(show: str, **extra: str) -> str:
        return _query(name=name, show="" if show == "all" else show, **extra)

    return page.show(
        "repositories.html",
        found=found,
        progress=progress_of(found.runs.values()),
        approvals={run.id: approve_label(run) for run in found.runs.values() if run.status == "blocked"},
        # Query, label, count, and whether it is chosen; without empty ones.
        choices=[
            (link(word), _LABELS.get(word, word), number, word == choice)
            for word, number in found.counts.items()
            if number or word in ("all", choice)
        ],
        choice=None if choice == "all" else choice,
        name=name or None,
        day=None if found.day is None else _day(found.day),
        back=f"{page.root}/{link(choice, after=query.get('after', ''))}",
        first_link=f"{page.root}/{link(choice)}" if query.get("after") else None,
        next_link=f"{page.root}/{link(choice, after=found.next_cursor)}" if found.next_cursor else None,
        shown_of=found.counts[asked.choice],
    )


def _day(day: Day) -> dict[str, Any]:
    """The last 24 hours, the queue and the workers."""
    ended = sum(count.runs for count in day.hours if count.is_final)
    completed = sum(count.runs for count in day.hours if count.kind == "completed")
    return {
        "success_rate": f"{100 * completed / ended:.0f}%" if ended else "–",
        "ended": ended,
        "running": day.queue.get("running", 0),
        "waiting": sum(day.queue.get(status, 0) for status in ("queued", "retrying")),
        # In minutes, so that the page does not change at each look.
        "oldest": duration(day.oldest_seconds // 60 * 60) if day.oldest_seconds >= 60 else None,
        "blocked": day.queue.get("blocked", 0),
        "workers": day.workers,
        "late": day.late,
        "behind": day.behind,
        "chart": hour_chart(day.hours, day.now),
    }


def _query(**values: str) -> str:
    kept = {key: value for key, value in values.items() if value}
    return f"?{urlencode(kept)}" if kept else ""


# One repository -------------------------------------------------------------------------------------------------------

SHOWN_RUNS = 10
SLOW_REFRESH_SECONDS = 15
"""While nothing runs: listing a folder reads the rows of all files."""


async def show_repository(page: Page) -> Response:
    name, app, actor = page.request.path_params["name"], page.app, page.actor
    try:
        found = await get_repository(app, actor, NOTHING, name=name)
    except RepositoryNotFound:
        await history(app, actor, read_arguments(RunFilters, {"repository": name, "limit": 1}))
        # It was removed, but its history is kept.
        return Response(status_code=303, headers={"Location": f"{page.root}/runs?{urlencode({'repository': name})}"})
    path = page.query.get("folder", "").strip("/")
    facts = await repository_facts(app, actor, name=found.name, folder=path)
    runs = (await history(app, actor, RunFilters(repository=found.name, limit=PAGE_RUNS))).items
    address = f"{page.root}/repositories/{path_of(found.name)}"

    def in_folder(path: str) -> str:
        return f"{address}?{urlencode({'folder': path})}#files"

    def link(entry: TreeEntry) -> str | None:
        """Where a click on the entry leads; None for a file that is not indexed."""
        full = f"{path}/{entry.name}" if path else entry.name
        if entry.files is not None:
            return in_folder(full.rstrip("/"))
        return f"{page.root}{file_address(found.name, full)}" if entry.chunks else None

    # The folders above `path` and itself.
    above = list(itertools.accumulate(path.split("/"), "{}/{}".format)) if path else []
    return page.show(
        "repository.html",
        repository=found,
        facts=facts,
        definition=list(_keys(facts.definition)),
        index=await repository_index(app, actor, NOTHING, name=found.name),
        chart=run_chart(runs),
        runs=runs[:SHOWN_RUNS],
        more_runs=len(runs) > SHOWN_RUNS,
        progress=progress_of(runs[:SHOWN_RUNS]),
        folder=path,
        folders=[(folder.rpartition("/")[2], in_folder(folder)) for folder in above],
        entries=[(entry, link(entry)) for entry in facts.entries],
        remedies=REMEDIES,
        back=address,
        refresh_seconds=IDLE_REFRESH_SECONDS if runs and not runs[0].is_final else SLOW_REFRESH_SECONDS,
    )


def _keys(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Each key of the registry file with its value, defaults too."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{within}{key}.")
        elif isinstance(value, list):
            yield f"{within}{key}", ", ".join(map(str, value)) or "none"
        elif value is not None:
            yield f"{within}{key}", value if isinstance(value, str) else json.dumps(value)
