"""`reposync history`: the execution log. `reposync runs`: one run of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, current_user, with_database
from reposync.cli.output import Result, field_lines, open_display, reason, short, summary, table, table_console
from reposync.store.status import WAITING, RunStatus, RunTrigger
from reposync.words import duration, escape_unprintable, next_attempt

if TYPE_CHECKING:
    from rich.table import Table

    from reposync.store.database import Database
    from reposync.store.run import Run

FOLLOW_SECONDS = 0.3
DATABASE_OUTAGE_SECONDS = 60.0
"""How long `watch` waits for an unreachable database."""
FAILED_FILE = "failed"
"""The reason of a problem with a file that could not be read or embedded (`Skip.FAILED`)."""

LEAST_WIDTHS = {
    **{"elapsed": 150, "trigger": 130, "asked by": 100, "skipped": 96, "embedded": 106, "reused": 114},
    **{"attempt": 140, "commit": 120},
}
"""Of a terminal that shows the column, in characters."""


@click.command()
@click.option("--repository", metavar="NAME", help="Only runs of this repository.")
@click.option("--status", type=click.Choice([each.value for each in RunStatus]), help="Only runs with this status.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Maximum number of runs.")
@with_database
async def history(database: Database, repository: str | None, status: str | None, limit: int) -> Result:
    """The execution log, newest first."""
    from reposync.api.documents import run_documents
    from reposync.store.history import RunHistory

    log = RunHistory(database)
    found = await log.runs(repository=repository, status=RunStatus(status) if status else None, limit=limit)
    if not found and repository is not None:
        await log.require_known(repository)
    documents = run_documents(log, found)
    if found:
        return Result(documents, _history(found))
    of = "" if repository is None else f" of {escape_unprintable(repository)}"
    start = " `reposync sync .` starts the first one." if repository is None else ""
    return Result([], [f"No run{of} is {status}." if status else f"No run{of} yet.{start}"])


def _row(run: Run) -> dict[str, Any]:
    # The first one, and the number of others: `reposync runs show` lists all of them.
    askers = run.askers
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


def _history(found: list[Run]) -> Iterator[str | Table]:
    width = table_console().width
    rows = map(_row, found)
    yield table([{key: row[key] for key in row if LEAST_WIDTHS.get(key, 0) <= width} for row in rows])
    explained = [run for run in found if run.error_message or run.next_attempt_at]
    if explained:
        yield ""
    for run in explained:
        pause = f"{run.status}, {next_attempt(run.next_attempt_at)}" if run.next_attempt_at else ""
        why = reason(run.error_code, run.error_message)
        yield f"{click.style(run.id[:8], bold=True)} {': '.join(filter(None, (pause, why)))}"


runs = Group("runs")


@runs.command()
@click.argument("run_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(0, 100_000), default=50, show_default=True, help="Maximum number of problems."
)
@with_database
async def show(database: Database, run_id: str, limit: int) -> Result:
    """Everything about the run ID (or a unique prefix), and the files that failed or were skipped, with the reason.
    Failed files are listed first; with --json, all are sorted by path."""
    from reposync.api.documents import run_detail
    from reposync.store.history import RunHistory

    log = RunHistory(database)
    run = await log.get(run_id)
    document = await run_detail(log, run, limit)
    lines = list(field_lines({key: value for key, value in document.items() if not key.startswith("problem")}))
    counts = await log.count_problems(run.id)
    lines += [f"{'failed or ' if FAILED_FILE in counts else ''}skipped:"] if counts else []
    problems = await log.problems(run.id, limit=limit, failed_first=True)
    for each in problems:
        line = f"  {each.reason:<14}{escape_unprintable(each.path)}  {escape_unprintable(each.detail)}"
        lines.append(click.style(line, fg="red" if each.reason == FAILED_FILE else None))
    if (rest := sum(counts.values()) - len(problems)) > 0:
        lines.append(f"  ... and {rest:,} more (--limit)")
    return Result(document, lines)


@runs.command()
@click.argument("run_id", metavar="ID")
@with_database
async def cancel(database: Database, run_id: str) -> Result:
    """Request the run ID to stop. What it stored stays, and the next run continues from there."""
    run, document = await _changed(database, run_id, "cancel")
    return Result(document, [f"{run.id}: {'requested to stop' if run.status == 'running' else run.status}"])


@runs.command()
@click.argument("run_id", metavar="ID")
@with_database
async def retry(database: Database, run_id: str) -> Result:
    """Put the run ID, which failed or was cancelled, back into the queue."""
    return _queued(*await _changed(database, run_id, "retry"))


@runs.command()
@click.argument("run_id", metavar="ID")
@with_database
async def approve(database: Database, run_id: str) -> Result:
    """Approve what the run ID is blocked for (the deletion of most of an index), and queue it again."""
    return _queued(*await _changed(database, run_id, "approve"))


async def _changed(database: Database, run_id: str, action: str) -> tuple[Run, dict[str, Any]]:
    from reposync.api.documents import run_detail
    from reposync.catalog.apply import registry_in_force
    from reposync.store.history import RunHistory
    from reposync.store.run import Ask
    from reposync.store.runs import Runs

    log, runs = RunHistory(database), Runs(database)
    found = await log.get(run_id)
    if action == "cancel":
        run = await runs.cancel(found.id, by=current_user())
    else:
        attempts = (await registry_in_force(database)).daemon.max_attempts
        ask = Ask(RunTrigger.COMMAND, current_user(), max_attempts=attempts)
        run = await (runs.approve if action == "approve" else runs.retry)(found.id, ask)
    return run, await run_detail(log, run)


def _queued(run: Run, document: dict[str, Any]) -> Result:
    hint = "  A running `reposync serve` executes it, or the next `reposync sync`."
    return Result(document, [f"{run.id}: {run.status}"], hint)


@runs.command()
@click.argument("run_id", metavar="ID")
@with_database
async def watch(database: Database, run_id: str) -> Result:
    """Follow the run ID (or a unique prefix) to its end, whichever process executes it.

    The exit code is 0 if it is completed and no file failed, and 1 otherwise. Ctrl-C ends the watching only;
    `reposync runs cancel` stops the run.
    """
    from reposync.api.documents import run_document
    from reposync.errors import StoreUnavailable
    from reposync.runs.reporting import displayed_progress
    from reposync.store.history import RunHistory
    from reposync.store.workers import Workers

    log = RunHistory(database)
    run, read_at = await log.get(run_id), time.monotonic()
    if run.status in WAITING and not await Workers(database).alive():
        hint = "no daemon with workers is running. Start `reposync serve`, or `reposync sync` executes it."
        click.echo(f"{escape_unprintable(run.repository)}: {run.status}; {hint}", err=True)
    try:
        with open_display(run.repository) as display:
            while not run.is_final:
                display(displayed_progress(run))
                await asyncio.sleep(FOLLOW_SECONDS)
                try:
                    run, read_at = await log.get(run.id), time.monotonic()
                except StoreUnavailable:
                    if time.monotonic() - read_at > DATABASE_OUTAGE_SECONDS:
                        raise
    except asyncio.CancelledError:
        click.echo(f"The run continues. `reposync runs cancel {run.id}` stops it.", err=True)
        raise
    failed = run.status != "completed" or run.files_failed > 0
    return Result(run_document(log, run), [summary(run)], failed=failed)
