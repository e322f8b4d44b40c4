"""The first page: every repository, how it is and what is due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from reposync.api.access import Role, Visitor
from reposync.api.cursors import cursor_after, key_before
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.api.web.renderer import Renderer
from reposync.app.application import Application
from reposync.app.index_overview import collection_changes
from reposync.catalog.overview import Overview, late_after, overviews, state_words
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.following import incomplete_versions
from reposync.store.repository import MAX_NAME_CHARS
from reposync.store.status import RunStatus

PAGE_REPOSITORIES = 50

Freshness = Literal["fresh", "late", "never", ""]
# What a person may want to see alone, by the word in the address.
_CHOICES = {
    "active": "active",
    "paused": "paused",
    "inactive": "not in the registry",
    "running": "being synced",
    "attention": "need a look",
}

_UNWELL = frozenset({RunStatus.FAILED, RunStatus.BLOCKED})
_TOLD_APART = _UNWELL | {RunStatus.RUNNING}


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    state: str
    latest: RunStatus | str | None
    lacks_files: bool

    def is_in(self, choice: str | None) -> bool:
        match choice:
            case None:
                return True
            case "running":
                return self.latest is RunStatus.RUNNING
            case "attention":
                return self.lacks_files or self.latest in _UNWELL
            case _:
                return self.state == choice


def registered_page(parts: ApiParts, renderer: Renderer) -> APIRouter:
    routes = Router()
    reader = parts.access.page(Role.READ)

    @routes.get("/")
    async def repositories(request: Request, visitor: Visitor = reader) -> Response:
        app = parts.application()
        said = request.query_params
        name = said.get("name", "").strip()[:MAX_NAME_CHARS] or None
        choice = said.get("show") if said.get("show") in _CHOICES else None
        after = key_before(said["after"]) if said.get("after") else None
        known = await _known(app)
        fitting = [each for each in known if name is None or name.casefold() in each.name.casefold()]
        chosen = [each.name for each in fitting if each.is_in(choice)]
        left = [each for each in chosen if after is None or each > after]
        names = left[:PAGE_REPOSITORIES]
        found = await overviews(app.repositories, app.manifests, app.runs, names) if names else []
        now = app.runs.now()
        kept = {key: value for key, value in (("name", name), ("show", choice)) if value}
        return renderer.page(
            request,
            "repositories.html",
            visitor,
            repositories=[(each, freshness(each, now)) for each in found],
            changes=[each for each in await collection_changes(app, count_chunks=False) if each.is_under_way],
            choices=_choices(fitting, choice, name),
            choice=choice,
            name=name,
            is_any=bool(known),
            is_all=not kept,
            back=_address(renderer.root, kept | ({"after": said["after"]} if after else {})),
            first_link=_address(renderer.root, kept) if after else None,
            next_link=_address(renderer.root, kept | {"after": cursor_after(names[-1])})
            if len(left) > len(names)
            else None,
            shown_from=len(chosen) - len(left) + 1,
            shown_to=len(chosen) - len(left) + len(names),
            shown_of=len(chosen),
        )

    return routes


def freshness(each: Overview, now: datetime) -> Freshness:
    """`late`: two ticks of its schedule have passed since it was synced last. Empty where nothing is to be expected."""
    if each.next_due_at is None or each.cron_expression is None:
        return ""
    if each.last_sync_at is None:
        return "never"
    if each.last_sync_at > now + timedelta(seconds=AHEAD_SECONDS):
        return "late"  # a pod of an earlier version wrote it by a clock that was ahead
    return "late" if late_after(each.cron_expression, each.timezone, each.last_sync_at) < now else "fresh"


async def _known(app: Application) -> list[_Known]:
    """By name."""
    states = await state_words(app.repositories)
    latest = await app.runs.latest_statuses(_TOLD_APART)
    incomplete = await incomplete_versions(app.database)
    return [_Known(name, state, latest.get(name), name in incomplete) for name, state in sorted(states.items())]


def _choices(fitting: list[_Known], chosen: str | None, name: str | None) -> list[tuple[str, str, int, bool]]:
    """Query, label, how many, whether it is chosen; those that would be empty are left out."""
    rows = [("", "all", len(fitting), chosen is None)]
    for word, label in _CHOICES.items():
        number = sum(each.is_in(word) for each in fitting)
        if number or word == chosen:
            rows.append((word, label, number, word == chosen))
    return [
        (urlencode({key: value for key, value in (("name", name), ("show", word)) if value}), label, number, is_chosen)
        for word, label, number, is_chosen in rows
    ]


def _address(root: str, query: dict[str, str]) -> str:
    return f"{root}/" + (f"?{urlencode(query)}" if query else "")
