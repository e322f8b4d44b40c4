"""`reposync history`: the execution log. `reposync runs`: one run of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from reposync import operations
from reposync.cli.commands import Group
from reposync.cli.completion import repository_names, run_ids
from reposync.cli.descriptions import run_lines
from reposync.cli.moments import Since
from reposync.cli.output import FAILED_FILE, Line, Result, is_json, note, reason, short, summary
from reposync.cli.performing import Performer, performs
from reposync.cli.progress import show_until_interrupted
from reposync.cli.remote import server_option
from reposync.cli.tables import table, wide_option
from reposync.errors import FAILED
from reposync.store.status import RunStatus, RunTrigger
from reposync.words import duration, escape_unprintable, next_attempt

if TYPE_CHECKING:
    from reposync.operations.core import Operation
    from reposync.operations.runs import Run, RunDetail, RunLogLine, RunProblem

IMPORTANT = (
    *("run", "repository", "status", "queued", "took", "failed", "stored", "commit", "deleted", "embedded"),
    *("asked by", "skipped", "reused", "trigger", "elapsed", "attempt"),
)


@click.command()
@click.option("--repository", metavar="NAME", shell_complete=repository_names, help="Only runs of this repository.")
@click.option("--status", type=click.Choice([status.value for status in RunStatus]), help="Only runs with this status.")
@click.option("--trigger", type=click.Choice([trigger.value for trigger in RunTrigger]), help="Only with this trigger.")
@click.option("--since", type=Since(), metavar="AGE|TIME", help="Requested then or later: 30min, 24h, 7d, 2026-11-01.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Maximum number of runs.")
@click.option("--watch", is_flag=True, help="Show it again when it changes, until Ctrl-C. Needs a terminal.")
@wide_option
@server_option
@performs
def history(perform: Performer, /, limit: int, watch: bool, **filters: Any) -> Result:
    """The execution log, newest first."""
    since: datetime | None = filters.pop("since")
    status: str | None = filters.pop("status")
    filters |= {"status": [status] if status else [], "since": since and since.isoformat()}

    def read() -> Result:
        page = perform.all_pages(operations.runs.history, filters, limit=limit)
        is_all = since is None and filters["trigger"] is None
        return Result(page, _history(page.items) if page.items else [_none(filters["repository"], status, is_all)])

    if not watch:
        return read()
    if is_json() or not sys.stdout.isatty():
        raise click.UsageError("--watch shows a table on a terminal: leave it or --json out.")
    show_until_interrupted(lambda: read().text)
    return Result(None, [])


def _none(repository: str | None, status: str | None, is_all: bool) -> str:
    of = "" if repository is None else f" of {escape_unprintable(repository)}"
    if status:
        return f"No run{of} is {status}."
    if not is_all:
        return f"No run{of} matches."
    return f"No run{of} yet." + (" `reposync sync .` starts the first one." if repository is None else "")


def _row(run: Run) -> dict[str, Any]:
    # The first one, and the number of others: `reposync runs show` lists all of them.
    askers = run.asked_by
    asked_by = f"{askers[0][:30]}{f' +{len(askers) - 1}' if askers[1:] else ''}" if askers else None
    return {
        "run": run.id[:8],
        "repository": run.repository,
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
    yield table(list(map(_row, runs)), *IMPORTANT)
    explained = [run for run in runs if run.error_message or run.next_attempt_at]
    if explained:
        yield ""
    for run in explained:
        pause = f"{run.status}, {next_attempt(run.next_attempt_at)}" if run.next_attempt_at else ""
        why = reason(run.error_code, run.error_message)
        yield f"{click.style(run.id[:8], bold=True)} {': '.join(filter(None, (pause, why)))}"


SIGNS = {"added": "+", "changed": "~", "removed": "-", "at_risk": "!"}
"""Before the paths of changed files; `!`: a blocked run would remove it."""
MOST_CHANGES = 1_000
NO_LINE = "No line is kept about this run: it has found nothing to do, or a command executed it, or no worker began it."
MOST_LINES = 500

runs = Group("runs")
_ID = click.argument("run_id", metavar="ID", shell_complete=run_ids)


@runs.command()
@_ID
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Maximum number of problems."
)
@click.option("--changes", is_flag=True, help="Only the files that it added, changed and removed, or would remove.")
@click.option("--log", "log", is_flag=True, help="Only what daemons logged about it.")
@performs
def show(perform: Performer, run_id: str, limit: int, changes: bool, log: bool) -> Result:
    """The run ID (or a unique prefix): what it changed, why it ended, what to do, and the files that failed or were
    skipped. Failed files are listed first; --json has everything, with all files sorted by path."""
    problems = operations.runs.problems
    if changes and log:
        raise click.UsageError("Use either --changes or --log.")
    run = perform(operations.runs.get_run, run_id=run_id)
    if log:
        logged = perform.all_pages(operations.runs.log_lines, limit=MOST_LINES, run_id=run.id)
        return Result(logged, [_line(each) for each in logged.items] or [NO_LINE])
    if changes:
        listed = perform.all_pages(operations.runs.changes, limit=MOST_CHANGES, run_id=run.id)
        lines = [f"{SIGNS.get(each.change, '?')} {escape_unprintable(each.path)}" for each in listed.items]
        return Result(listed, lines or ["This run changed no file of the index."])
    failed: list[RunProblem] = []
    if FAILED_FILE in run.problem_counts:
        failed = perform.all_pages(problems, {"reason": FAILED_FILE}, limit=limit, run_id=run.id).items
    page = perform.all_pages(problems, limit=limit + len(failed), run_id=run.id)
    others = [problem for problem in page.items if problem.reason != FAILED_FILE]
    run = run.model_copy(update={"problems": page.items[:limit], "problems_cursor": page.next_cursor})
    return Result(run, run_lines(run, [*failed, *others][:limit]))


def _line(line: RunLogLine) -> str:
    return f"{line.at:%Y-%m-%d %H:%M:%SZ} {escape_unprintable(line.level):<7} {escape_unprintable(line.text)}"


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
        note(f"{escape_unprintable(run.repository)}: {run.status}; {hint}")
    try:
        run = perform.watch(run)
    except KeyboardInterrupt:
        note(f"The run continues. `reposync runs cancel {run.id}` stops it.")
        raise
    is_complete = run.status == "completed" and not run.files_failed
    return Result(run.summary, [summary(run)], exit_code=0 if is_complete else FAILED)
