"""The execution history, and the page of one run."""

from __future__ import annotations

import re

from fastapi import Response

from reposync.api.web.rendering import IDLE_REFRESH_SECONDS, Page
from reposync.api.web.run_charts import Bar, summary_of, time_chart
from reposync.api.web.run_filters import CHARTS, PRESETS, TABS, RunsQuery, read_query
from reposync.api.web.run_view import (
    OUTCOMES,
    deletes_only,
    folder_tree,
    losses_in_words,
    steps_of,
    trigger_words,
)
from reposync.errors import RepositoryNotFound
from reposync.operations.core import NOTHING, read_arguments
from reposync.operations.fields import MAX_PAGE_ITEMS
from reposync.operations.run_overview import MAX_POINTS, RunsOverview, facts_of_rows, runs_overview
from reposync.operations.runs import (
    ChangeFilters,
    ChangePage,
    FileChange,
    LogFilters,
    LogPage,
    ProblemFilters,
    RunDetail,
    RunFilters,
    RunPage,
    RunProblem,
    RunStatus,
    changes,
    get_run,
    history,
    is_maintained,
    log_lines,
    problems,
)

PAGE_RUNS = 50
PAGE_PROBLEMS = 200
PAGE_REQUESTS = 50
PAGE_LINES = 200
SHOWN_ERRORS = 3
FAILED = "failed"
"""The reason of problems that need somebody's attention."""
_RUN = re.compile("Run ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""In the message of a run that a different one replaced."""
LIVE_REFRESH_SECONDS = 1
"""Polling interval of a page that cannot receive the events of its run."""


async def show_runs(page: Page) -> Response:
    asked, before = read_query(page.query), page.query.get("before") or None
    now = page.app.now()
    conditions = {**asked.conditions(now), "limit": PAGE_RUNS}
    found, unknown, overview = RunPage(items=[]), None, None
    try:
        found = await history(page.app, page.actor, read_arguments(RunFilters, {**conditions, "cursor": before}))
        if not asked.is_needle:
            overview = await runs_overview(page.app, page.actor, read_arguments(RunFilters, conditions))
    except RepositoryNotFound as error:
        unknown = str(error)
    facts = await facts_of_rows(page.app, page.actor, [run.id for run in found.items])
    points = overview.points if overview is not None and before is None else []
    since = conditions["since"] if len(points) < MAX_POINTS else None  # else the oldest ones are missing
    chart = time_chart(asked.chart, points, since, conditions["until"], now)
    return page.show(
        "runs.html",
        runs=found.items,
        next_cursor=found.next_cursor,
        facts=facts,
        asked=asked,
        overview=overview,
        tabs=_status_tabs(asked, overview),
        presets={name: f"{name[:-1]}\N{NO-BREAK SPACE}{name[-1]}" for name in PRESETS},
        charts=CHARTS,
        chart=chart,
        summary=summary_of(points),
        most_points=MAX_POINTS if len(points) >= MAX_POINTS else None,
        repeated=[each for each in overview.errors if each.runs > 1][:SHOWN_ERRORS] if overview is not None else [],
        bar_address=lambda bar: f"{page.root}/runs{asked.address(**_bounds(bar))}",
        trigger_words=trigger_words,
        now=now,
        unknown=unknown,
        before=before,
        # An older page does not change.
        refresh_seconds=IDLE_REFRESH_SECONDS if before is None else "",
    )


def _bounds(bar: Bar) -> dict[str, str]:
    """Parameters for the runs of a bar."""
    return {"range": "", "since": bar.since.isoformat(), "until": bar.until.isoformat(), "zone": ""}


def _status_tabs(asked: RunsQuery, overview: RunsOverview | None) -> list[tuple[str, int, bool, str]]:
    """Label, number of runs, whether it is chosen, and the address that chooses it or leaves it, of each group of
    statuses."""
    counts = dict(overview.counts) if overview is not None else {}
    if overview is not None and not asked.hides_idle:
        counts["completed"] = counts.get("completed", 0) + overview.idle
    tabs = [("All", sum(counts.values()), not asked.statuses, asked.address(status=[]))]
    for label, statuses in TABS.items():
        number, is_chosen = sum(counts.get(each, 0) for each in statuses), statuses[0] in asked.statuses
        if label != "Cancelled" or number or is_chosen:
            tabs.append((label, number, is_chosen, asked.toggled(statuses)))
    return tabs


async def show_run(page: Page) -> Response:
    run = await get_run(page.app, page.actor, NOTHING, run_id=page.request.path_params["run_id"])
    tabs = _tabs(run)
    tab = next((name for name, _, _ in tabs if name == page.query.get("tab")), _first_tab(run))
    change = next((kind for kind in FileChange if kind == page.query.get("change")), None)
    listed = ChangePage(items=[])
    if tab == "changes" and run.change_counts:
        asked = {"limit": PAGE_PROBLEMS, "change": change, "cursor": page.query.get("after")}
        listed = await changes(page.app, page.actor, read_arguments(ChangeFilters, asked), run_id=run.id)
    logged = LogPage(items=[])
    if tab == "log":
        wanted = read_arguments(LogFilters, {"limit": PAGE_LINES, "cursor": page.query.get("after")})
        logged = await log_lines(page.app, page.actor, wanted, run_id=run.id)
    at_risk = await _at_risk(page, run) if run.status == RunStatus.BLOCKED else []
    return page.show(
        "run.html",
        run=run,
        now=page.app.now(),
        is_maintained=await is_maintained(page.app, page.actor, run_id=run.id),
        other_run=_RUN.search(run.error_message or "") if run.status == "cancelled" else None,
        trigger=trigger_words(run),
        target=_target(run),
        compare=_comparison(run),
        steps=steps_of(run),
        tree=folder_tree(at_risk, run.brake.folders) if run.brake and (at_risk or run.brake.folders) else None,
        listed_paths=len(at_risk),
        losses=losses_in_words(run.brake) if run.brake else [],
        deletes_only=run.brake is not None and deletes_only(run.brake),
        outcomes=OUTCOMES,
        tabs=tabs,
        tab=tab,
        change=change,
        changes=listed.items,
        changes_cursor=listed.next_cursor,
        lines=logged.items,
        lines_cursor=logged.next_cursor,
        requests=run.requests[:PAGE_REQUESTS],
        problems=await _problems(page, run) if tab == "skipped" else [],
        events=f"{page.root}/api/v1/runs/{run.id}/events",
        refresh_seconds=LIVE_REFRESH_SECONDS,
    )


def _tabs(run: RunDetail) -> list[tuple[str, str, int]]:
    """Name, label and number of each part of the page."""
    changed = run.files_added + run.files_changed + run.files_deleted
    problems = sum(run.problem_counts.values())
    return [
        ("changes", "Changes", changed),
        ("skipped", "Failed and skipped" if FAILED in run.problem_counts else "Skipped", problems),
        ("attempts", "Attempts", len(run.attempts)),
        ("requests", "Requests", len(run.requests)),
        ("log", "Log", 0),
    ]


def _first_tab(run: RunDetail) -> str:
    """The one that says most of the run."""
    if not run.attempt:
        return "requests"
    if FAILED in run.problem_counts:
        return "skipped"
    if run.change_counts.keys() - {FileChange.AT_RISK}:
        return "changes"
    return "skipped" if run.problem_counts else "attempts"


def _target(run: RunDetail) -> str | None:
    """The commit that a run without `commit_after` is to bring the index to, as far as it is known."""
    if run.brake is not None and run.status == RunStatus.BLOCKED:
        return run.brake.commit
    commit = (run.progress or {}).get("commit")
    return commit if isinstance(commit, str) else None


def _comparison(run: RunDetail) -> str | None:
    """The page of GitLab that compares the commits before and after."""
    after = run.commit_after or _target(run)
    if run.commit_page is None or not run.commit_before or not after or after == run.commit_before:
        return None
    project, found, _ = run.commit_page.rpartition("/-/commit/")
    return f"{project}/-/compare/{run.commit_before}...{after}" if found else None


async def _at_risk(page: Page, run: RunDetail) -> list[str]:
    """Every listed path that the blocked run would remove."""
    paths: list[str] = []
    cursor = None
    while run.change_counts.get(FileChange.AT_RISK):
        asked = ChangeFilters(change=FileChange.AT_RISK, limit=MAX_PAGE_ITEMS, cursor=cursor)
        found = await changes(page.app, page.actor, asked, run_id=run.id)
        paths += [item.path for item in found.items]
        if (cursor := found.next_cursor) is None:
            break
    return paths


async def _problems(page: Page, run: RunDetail) -> list[RunProblem]:
    """Problems that need attention first, then the others, each by path."""
    if not run.problem_counts:
        return []
    every = (await problems(page.app, page.actor, ProblemFilters(limit=PAGE_PROBLEMS), run_id=run.id)).items
    if FAILED not in run.problem_counts:
        return every
    failed = read_arguments(ProblemFilters, {"reason": FAILED, "limit": PAGE_PROBLEMS})
    first = (await problems(page.app, page.actor, failed, run_id=run.id)).items
    return [*first, *(problem for problem in every if problem.reason != FAILED)][:PAGE_PROBLEMS]
