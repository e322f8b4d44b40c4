"""`reposync history`: the execution log. `reposync runs`: one run of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from reposync import operations
from reposync.cli.commands import Group
from reposync.cli.output import FAILED_FILE, Line, Result, field_lines, reason, short, summary, table, table_console
from reposync.cli.performing import Performer, performs
from reposync.cli.remote import server_option
from reposync.errors import FAILED
from reposync.store.status import RunStatus
from reposync.words import duration, escape_unprintable, next_attempt

if TYPE_CHECKING:
    from reposync.operations.core import Operation
    from reposync.operations.runs import Run, RunDetail, RunProblem

LEAST_WIDTHS = {
    **{"elapsed": 150, "trigger": 130, "asked by": 100, "skipped": 96, "embedded": 106, "reused": 114},
    **{"attempt": 140, "commit": 120},
}
"""Of a terminal that shows the column, in characters."""


@click.command()
@click.option("--repository", metavar="NAME", help="Only runs of this repository.")
@click.option("--status", type=click.Choice([status.value for status in RunStatus]), help="Only runs with this status.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Maximum number of runs.")
@server_option
@performs
def history(perform: Performer, repository: str | None, status: str | None, limit: int) -> Result:
    """The execution log, newest first."""
    filters = {"repository": repository, "status": [status] if status else []}
    page = perform.all_pages(operations.runs.history, filters, limit=limit)
    if page.items:
        return Result(page, _history(page.items))
    of = "" if repository is None else f" of {escape_unprintable(repository)}"
    start = " `reposync sync .` starts the first one." if repository is None else ""
    return Result(page, [f"No run{of} is {status}." if status else f"No run{of} yet.{start}"])


def _row(run: Run) -> dict[str, Any]:
    # The first one, and the number of others: `reposync runs show` lists all of them.
    askers = run.asked_by
    asked_by = f"{askers[0][:30]}{f' +{len(askers) - 1}' if askers[1:] else ''}" if askers else None
    return {
        "run": run.id[:8],
        "repository": run.repository[:40],
        "status": run.status,
        "trigger": "removal" if run.removal else run.trigger,
        "asked by": asked_by,
        "queued": run.queued_at,
        "took": duration(run.duration_seconds),
        "elapsed": duration(run.elapsed_seconds),
        **{"stored": run.files_processed, "deleted": run.files_deleted, "skipped": run.files_skipped},
        **{"failed": run.files_failed, "embedded": run.chunks_embedded, "reused": run.chunks_reused},
        **{"attempt": run.attempt, "commit": short(run.commit_after)},
    }


def _history(runs: list[Run]) -> Iterator[Line]:
    width = table_console().width
    rows = map(_row, runs)
    yield table([{key: row[key] for key in row if LEAST_WIDTHS.get(key, 0) <= width} for row in rows])
    explained = [run for run in runs if run.error_message or run.next_attempt_at]
    if explained:
        yield ""
    for run in explained:
        pause = f"{run.status}, {next_attempt(run.next_attempt_at)}" if run.next_attempt_at else ""
        why = reason(run.error_code, run.error_message)
        yield f"{click.style(run.id[:8], bold=True)} {': '.join(filter(None, (pause, why)))}"


runs = Group("runs")
_ID = click.argument("run_id", metavar="ID")


@runs.command()
@_ID
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Maximum number of problems."
)
@performs
def show(perform: Performer, run_id: str, limit: int) -> Result:
    """Everything about the run ID (or a unique prefix), and the files that failed or were skipped, with the reason.
    Failed files are listed first; with --json, all are sorted by path."""
    problems = operations.runs.problems
    run = perform(operations.runs.get_run, run_id=run_id)
    failed: list[RunProblem] = []
    if FAILED_FILE in run.problem_counts:
        failed = perform.all_pages(problems, {"reason": FAILED_FILE}, limit=limit, run_id=run.id).items
    page = perform.all_pages(problems, limit=limit + len(failed), run_id=run.id)
    others = [problem for problem in page.items if problem.reason != FAILED_FILE]
    run = run.model_copy(update={"problems": page.items[:limit], "problems_cursor": page.next_cursor})
    return Result(run, _detail_lines(run, [*failed, *others][:limit]))


def _detail_lines(run: RunDetail, problems: list[RunProblem]) -> Iterator[str]:
    yield from field_lines({key: value for key, value in run.model_dump().items() if not key.startswith("problem")})
    if run.problem_counts:
        yield f"{'failed or ' if FAILED_FILE in run.problem_counts else ''}skipped:"
    for problem in problems:
        line = f"  {problem.reason:<14}{escape_unprintable(problem.path)}  {escape_unprintable(problem.detail)}"
        yield click.style(line, fg="red" if problem.reason == FAILED_FILE else None)
    if (rest := sum(run.problem_counts.values()) - len(problems)) > 0:
        yield f"  ... and {rest:,} more (--limit)"


@runs.command()
@_ID
@performs
def cancel(perform: Performer, run_id: str) -> Result:
    """Request the run ID to stop. What it stored stays, and the next run continues from there."""
    run = _changed(perform, operations.runs.cancel, run_id)
    return Result(run, [f"{run.id}: {'requested to stop' if run.status == 'running' else run.status}"])


@runs.command()
@_ID
@performs
def retry(perform: Performer, run_id: str) -> Result:
    """Put the run ID, which failed or was cancelled, back into the queue."""
    return _queued(_changed(perform, operations.runs.retry, run_id))


@runs.command()
@_ID
@performs
def approve(perform: Performer, run_id: str) -> Result:
    """Approve what the run ID is blocked for (the deletion of most of an index), and queue it again."""
    return _queued(_changed(perform, operations.runs.approve, run_id))


def _changed(perform: Performer, operation: Operation[Any, RunDetail], run_id: str) -> RunDetail:
    """`run_id` may be a prefix, which operations that change a run do not take."""
    return perform(operation, run_id=perform(operations.runs.get_run, run_id=run_id).id)


def _queued(run: RunDetail) -> Result:
    hint = "  A running `reposync serve` executes it, or the next `reposync sync`."
    return Result(run, [f"{run.id}: {run.status}"], hint)


@runs.command()
@_ID
@performs
def watch(perform: Performer, run_id: str) -> Result:
    """Follow the run ID (or a unique prefix) to its end, whichever process executes it.

    The exit code is 0 if it is completed and no file failed, and 1 otherwise. Ctrl-C ends the watching only;
    `reposync runs cancel` stops the run.
    """
    run = perform(operations.runs.get_run, run_id=run_id)
    if run.is_waiting and not perform.has_workers():
        hint = "no daemon with workers is running. Start `reposync serve`, or `reposync sync` executes it."
        click.echo(f"{escape_unprintable(run.repository)}: {run.status}; {hint}", err=True)
    try:
        run = perform.watch(run)
    except KeyboardInterrupt:
        click.echo(f"The run continues. `reposync runs cancel {run.id}` stops it.", err=True)
        raise
    is_complete = run.status == "completed" and not run.files_failed
    return Result(run.summary, [summary(run)], exit_code=0 if is_complete else FAILED)
