"""The pages of repositories: the first page, with every repository, its state and its next sync; and the page of one,
`/repositories/{name}`: what is registered, its index, runs and files. `?folder=src/web` shows the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from fastapi import Response

from reposync.api.web.figures import hour_chart, run_chart
from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Page, query
from reposync.api.web.runs_page import PAGE_RUNS
from reposync.content.model import REMEDIES
from reposync.errors import RepositoryNotFound
from reposync.operations.core import NOTHING, read_arguments
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.operations.index import repository_index
from reposync.operations.pages import Choice, Choices, all_repositories, repository_facts
from reposync.operations.paths import path_of
from reposync.operations.repositories import get_repository
from reposync.operations.runs import RunFilters, history

SHOWN_RUNS = 10
SLOW_REFRESH_SECONDS = 15
"""While nothing runs: listing a folder reads the rows of all files."""


async def show_repositories(page: Page) -> Response:
    given = page.query
    name, after = given.get("name", "").strip()[:MAX_NAME_CHARS], given.get("after", "")
    choice = given.get("show", "") if given.get("show") in get_args(Choice) else "all"
    asked = read_arguments(Choices, {"name": name, "choice": choice, "cursor": after})
    found = await all_repositories(page.app, page.actor, asked)
    chart = None if found.day is None else hour_chart(found.day.hours, found.day.now)
    return page.show("repositories.html", found=found, name=name, choice=choice, after=after, chart=chart)


async def show_repository(page: Page) -> Response:
    name, app, actor = page.request.path_params["name"], page.app, page.actor
    try:
        found = await get_repository(app, actor, NOTHING, name=name)
    except RepositoryNotFound:
        await history(app, actor, read_arguments(RunFilters, {"repository": name, "limit": 1}))
        # It was removed, but its history is kept.
        return Response(status_code=303, headers={"Location": f"{page.root}/runs{query({'repository': name})}"})
    folder = page.query.get("folder", "").strip("/")
    facts = await repository_facts(app, actor, name=found.name, folder=folder)
    runs = (await history(app, actor, RunFilters(repository=found.name, limit=PAGE_RUNS))).items
    return page.show(
        "repository.html",
        repository=found,
        facts=facts,
        definition=list(_keys(facts.definition)),
        index=await repository_index(app, actor, NOTHING, name=found.name),
        chart=run_chart(runs),
        runs=runs,
        shown_runs=SHOWN_RUNS,
        folder=folder,
        remedies=REMEDIES,
        back=f"{page.root}/repositories/{path_of(found.name)}",
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
