"""The first page: every repository, its state and its next sync."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from reposync.api.auth import Principal, Role
from reposync.api.documents import cursor_after, key_before
from reposync.api.routing import ApiParts, Router
from reposync.api.web.last_day import last_day
from reposync.api.web.rendering import Renderer
from reposync.api.web.runs_page import approve_label, progress_of
from reposync.app.application import Application
from reposync.app.index_overview import collection_changes
from reposync.catalog.overview import Overview, late_after, overviews
from reposync.store.database import AHEAD_SECONDS
from reposync.store.index_queries import commit_pages, incomplete_versions
from reposync.store.repository import MAX_NAME_CHARS, RepositoryState
from reposync.store.status import RunStatus

PAGE_REPOSITORIES = 50

Freshness = Literal["fresh", "late", "never", ""]
# Filters, by their value in the query.
_CHOICES = {
    "": "all",
    "active": "active",
    "paused": "paused",
    "inactive": "not in the registry",
    "running": "running",
    "behind": "behind their head",
    "attention": "need attention",
}

_BAD = frozenset({RunStatus.FAILED, RunStatus.BLOCKED})


class _Known(NamedTuple):
    name: str
    state: str
    latest: RunStatus | str | None
    lacks_files: bool
    is_behind: bool

    def is_in(self, choice: str) -> bool:
        match choice:
            case "":
                return True
            case "running":
                return self.latest is RunStatus.RUNNING
            case "behind":
                return self.is_behind
            case "attention":
                return self.lacks_files or self.latest in _BAD
            case _:
                return self.state == choice


def repositories_page(parts: ApiParts, renderer: Renderer) -> APIRouter:
    routes = Router(include_in_schema=False)
    reader = parts.access.page(Role.READ)

    @routes.get("/")
    async def repositories(request: Request, principal: Principal = reader) -> Response:
        app = parts.application()
        query = request.query_params
        name = query.get("name", "").strip()[:MAX_NAME_CHARS]
        choice = query.get("show", "") if query.get("show") in _CHOICES else ""
        after = key_before(query["after"]) if query.get("after") else ""
        states = await app.repositories.states()
        known = await _known(app, states)
        matching = [each for each in known if name.casefold() in each.name.casefold()]
        chosen = [each.name for each in matching if each.is_in(choice)]
        left = [each for each in chosen if each > after]
        names, seen = left[:PAGE_REPOSITORIES], len(chosen) - len(left)
        found = await overviews(app.repositories, app.manifests, app.runs, names) if names else []
        shown = (RunStatus.RUNNING, RunStatus.BLOCKED)
        latest = await app.runs.by_ids([each.last_run for each in found if each.last_run and each.last_status in shown])
        now = app.runs.now()

        def address(**extra: str) -> str:
            return f"{renderer.root}/{_query(name=name, show=choice, **extra)}"

        return renderer.page(
            request,
            "repositories.html",
            principal,
            repositories=[(each, freshness(each, now)) for each in found],
            commit_pages=await commit_pages(app.database, [each.id for each in found]),
            progress=progress_of(latest.values()),
            approvals={each.id: approve_label(each) for each in latest.values() if each.status is RunStatus.BLOCKED},
            changes=[each for each in await collection_changes(app, count_chunks=False) if each.is_under_way],
            # Query, label, count, and whether it is chosen; without empty ones.
            choices=[
                (_query(name=name, show=word), label, number, word == choice)
                for word, label in _CHOICES.items()
                if (number := sum(each.is_in(word) for each in matching)) or word in ("", choice)
            ],
            choice=choice or None,
            name=name or None,
            is_any=bool(known),
            day=await last_day(app, states) if known else None,
            failed=sum(each.latest is RunStatus.FAILED for each in known),
            back=address(after=query.get("after", "")),
            first_link=address() if after else None,
            next_link=address(after=cursor_after(names[-1])) if len(left) > len(names) else None,
            shown_from=seen + 1,
            shown_to=seen + len(names),
            shown_of=len(chosen),
        )

    return routes


def freshness(each: Overview, now: datetime) -> Freshness:
    """`late`: two ticks of its schedule have passed since its last sync. Empty if no sync is expected."""
    if each.next_due_at is None or each.cron_expression is None:
        return ""
    if each.last_sync_at is None:
        return "never"
    if each.last_sync_at > now + timedelta(seconds=AHEAD_SECONDS):
        return "late"  # written by a pod of an earlier version with a clock that was ahead
    return "late" if late_after(each.cron_expression, each.timezone, each.last_sync_at) < now else "fresh"


async def _known(app: Application, states: Sequence[RepositoryState]) -> list[_Known]:
    """By name."""
    latest = await app.runs.latest_statuses(_BAD | {RunStatus.RUNNING})
    incomplete = await incomplete_versions(app.database)
    return [
        _Known(each.name, each.word, latest.get(each.name), each.name in incomplete, each.behind_since is not None)
        for each in sorted(states, key=lambda each: each.name)
    ]


def _query(**values: str) -> str:
    kept = {key: value for key, value in values.items() if value}
    return f"?{urlencode(kept)}" if kept else ""
