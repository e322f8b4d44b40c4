"""What the page of the history shows beside its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reposync.operations.core import Actor, Rule, ruled
from reposync.operations.runs import RunFilters

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.store.run_queries import ErrorGroup as ErrorGroup
    from reposync.store.run_queries import RunPoint as RunPoint


MAX_POINTS = 2_000
"""Runs of which charts are made."""


@dataclass(frozen=True, slots=True)
class RunsOverview:
    """`counts`: runs that match all conditions but the status, by status. `idle`: how many of the completed ones had
    nothing to do; `counts` are without them. `errors`: codes of failed runs, the most frequent first. `points`: of
    the newest runs that match, for charts."""

    counts: Mapping[str, int]
    idle: int
    errors: Sequence[ErrorGroup]
    points: Sequence[RunPoint]


@ruled(Rule.READ)
async def runs_overview(app: Application, actor: Actor, asked: RunFilters) -> RunsOverview:
    from reposync.store.run import RunFilter
    from reposync.store.run_queries import count_by_status, equal_errors, run_points

    wanted = RunFilter(**asked.conditions)
    counts, idle = await count_by_status(app.database, wanted)
    return RunsOverview(
        counts=counts,
        idle=idle,
        errors=await equal_errors(app.database, wanted),
        points=await run_points(app.database, wanted, tuple(asked.status), MAX_POINTS),
    )


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What a page says about its runs, by id."""

    commit_pages: Mapping[str, str]
    """See `RunDetail`."""
    maintained: Set[str]
    """The actor may cancel these, and try them again."""
    idle: Set[str]
    """These had nothing to do."""


@ruled(Rule.READ)
async def facts_of_rows(app: Application, actor: Actor, ids: Collection[str]) -> RowFacts:
    from reposync.store.index_queries import commit_pages

    runs = (await app.history.by_ids(ids)).values()
    pages = await commit_pages(app.database, {run.repository_id for run in runs})
    return RowFacts(
        commit_pages={run.id: pages[run.repository_id] for run in runs if run.repository_id in pages},
        maintained={run.id for run in runs if actor.may(Rule.MAINTAIN) and run.repository_id in actor.maintains},
        idle={run.id for run in runs if run.idle},
    )
