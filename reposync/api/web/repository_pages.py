"""The pages of repositories: the first page, with every repository, its state and its next sync; and the page of one,
`/repositories/{name}`: what is registered, its index, runs and files. `?folder=src/web` shows the files of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from fastapi import Response

from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Page, query
from reposync.content.model import REMEDIES
from reposync.errors import RepositoryNotFound
from reposync.operations.core import NOTHING, read_arguments
from reposync.operations.evaluation import Newest, PastEvaluations, evaluations
from reposync.operations.fields import MAX_NAME_CHARS
from reposync.operations.index import repository_index
from reposync.operations.pages import Choice, Choices, LanguageCount, all_repositories, repository_facts
from reposync.operations.paths import path_of
from reposync.operations.repositories import get_repository
from reposync.operations.runs import RunFilters, history
from reposync.search.measuring import main_of

SHOWN_ATTENTION = 8
SHOWN_RUNS = 5
SHOWN_EVALUATIONS = 60
SHOWN_LANGUAGES = 7
SLOW_REFRESH_SECONDS = 15
"""While nothing runs: listing a folder reads the rows of all files."""


async def show_repositories(page: Page) -> Response:
    given = page.query
    name, after = given.get("name", "").strip()[:MAX_NAME_CHARS], given.get("after", "")
    choice = given.get("show", "") if given.get("show") in get_args(Choice) else "all"
    asked = read_arguments(Choices, {"name": name, "choice": choice, "cursor": after})
    found = await all_repositories(page.app, page.actor, asked)
    values: dict[str, Any] = {"name": name, "choice": choice, "after": after, "shown_attention": SHOWN_ATTENTION}
    # What all failed ones were asked for is over when nothing waits or runs any more.
    if page.query.get("done") == "retry-failed" and found.day is not None and found.day.is_idle:
        values["done"] = None
    return page.show("repositories.html", found=found, **values)


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
    runs = (await history(app, actor, RunFilters(repository=found.name, limit=SHOWN_RUNS))).items
    return page.show(
        "repository.html",
        repository=found,
        facts=facts,
        languages=language_shares(facts.languages),
        definition=list(_keys(facts.definition)),
        quality=quality_columns(await evaluations(app, actor, Newest(limit=SHOWN_EVALUATIONS), name=found.name)),
        index=await repository_index(app, actor, NOTHING, name=found.name),
        runs=runs,
        folder=folder,
        remedies=REMEDIES,
        back=f"{page.root}/repositories/{path_of(found.name)}",
        refresh_seconds=IDLE_REFRESH_SECONDS if runs and not runs[0].is_final else SLOW_REFRESH_SECONDS,
    )


def quality_columns(found: PastEvaluations) -> list[list[tuple[str, float, str]]]:
    """A bar for each evaluation, the oldest first: NDCG@10 by what people search by. One that was not a replay has the
    color of a warning."""
    columns = []
    for each in reversed(found.items):
        by = main_of(each.figures)
        if (ndcg := each.figures.get(by, {}).get("ndcg")) is None:
            continue
        how = f"{_of_states(each.states)}, by {by}" + (f", {each.model}" if each.model else "")
        title = f"{each.at:%Y-%m-%d %H:%M} UTC: NDCG@10 {ndcg.mean:.3f} [{ndcg.low:.3f}, {ndcg.high:.3f}], "
        title += f"{each.questions:,} questions, {how}, commit {each.commit[:10]}"
        columns.append([("replay" if each.states else "blocked", ndcg.mean, title)])
    return columns


def _of_states(states: int) -> str:
    return f"{states} past states" if states else "the changes in the index"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the bar of languages: `start` and `width` in thousandths of it. `percent`: for people."""

    label: str
    start: int
    width: int
    percent: str
    files: int


def language_shares(languages: Sequence[LanguageCount]) -> list[Share]:
    """The largest languages by bytes, or by files if sizes are unknown, and all others as one. Together they fill the
    bar."""
    by_size = any(each.size_bytes for each in languages)
    counted = [(each.language or "other", each.size_bytes if by_size else each.files, each.files) for each in languages]
    named = [each for each in counted if each[0] != "other"]
    rest = named[SHOWN_LANGUAGES:] + [each for each in counted if each[0] == "other"]
    parts = named[:SHOWN_LANGUAGES]
    if not parts:
        return []  # no language is known
    if rest:
        parts.append(("other", sum(size for _, size, _ in rest), sum(files for *_, files in rest)))
    total, before, shares = sum(size for _, size, _ in parts), 0, list[Share]()
    for label, size, files in parts:
        start, end = 1_000 * before // total, 1_000 * (before + size) // total
        share = size / total
        percent = "< 0.1%" if share < 0.001 else f"{share:.1%}".replace("100.0%", "100%")
        shares.append(Share(label, start, end - start, percent, files))
        before += size
    return shares


def _keys(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Each key of the registry file with its value, defaults too."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{within}{key}.")
        elif isinstance(value, list):
            yield f"{within}{key}", ", ".join(map(str, value)) or "none"
        elif value is not None:
            yield f"{within}{key}", value if isinstance(value, str) else json.dumps(value)
