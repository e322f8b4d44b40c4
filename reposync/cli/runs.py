"""`reposync history`: the execution log. `reposync runs`: one run of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, current_user, repository_names, with_database
from reposync.cli.output import (
    FAILED_FILE,
    Cell,
    Result,
    field_lines,
    open_display,
    reason,
    short,
    summary_line,
    table,
    table_console,
)
from reposync.store.status import RunStatus
from reposync.words import ago, duration, escape_unprintable

if TYPE_CHECKING:
    from rich.table import Table

    from reposync.store.database import Database
    from reposync.store.notifications import RowWatch
    from reposync.store.run import Run, RunAttempt, RunRequest
    from reposync.store.runs import Runs
    from reposync.store.workers import Workers
    from reposync.sync.progress import Watch

NOTICEABLE_LATENESS_SECONDS = 5.0
UNCLAIMED_SECONDS = 5.0
"""After this time without a worker, `watch` reports whether there are any."""
DATABASE_OUTAGE_SECONDS = 60.0
"""How long `watch` waits for an unreachable database."""
_ASKER_CHARS = 30


@dataclass(frozen=True)
class Column:
    """`from_width`: left out on narrower terminals (characters). `only_if`: left out if it holds for no run."""

    title: str
    cell: Callable[[Run, Sequence[str]], Cell]
    from_width: int = 0
    only_if: Callable[[Run], bool] | None = None


STYLES = {"completed": "green", "failed": "red", "blocked": "yellow", "cancelled": "yellow", "running": "cyan"}
COLUMNS = (
    Column("run", lambda run, _: run.id[:8]),
    Column("repository", lambda run, _: run.repository[:40]),
    Column("status", lambda run, _: (run.status, "red" if run.files_failed else STYLES.get(run.status, ""))),
    Column("trigger", lambda run, _: "removal" if run.removal else run.trigger, from_width=130),
    Column("asked by", lambda run, askers: _shortened(askers), from_width=100),
    Column("queued", lambda run, _: ago(run.queued_at)),
    Column("took", lambda run, _: duration(run.duration_seconds)),
    Column(">stored", lambda run, _: f"{run.files_processed:,}"),
    Column(">deleted", lambda run, _: f"{run.files_deleted:,}"),
    Column(">skipped", lambda run, _: f"{run.files_skipped:,}", from_width=96),
    Column(
        ">failed",
        lambda run, _: (f"{run.files_failed:,}", "bold red" if run.files_failed else ""),
        only_if=lambda run: run.files_failed > 0,
    ),
    Column(">embedded", lambda run, _: f"{run.chunks_embedded:,}", from_width=106),
    Column(">reused", lambda run, _: f"{run.chunks_reused:,}", from_width=114),
    Column(">attempt", lambda run, _: str(run.attempt), from_width=140),
    Column("commit", lambda run, _: short(run.commit_after), from_width=120),
)


@click.command()
@click.option("--repository", metavar="NAME", help="Only runs of this repository.", shell_complete=repository_names)
@click.option("--status", type=click.Choice([each.value for each in RunStatus]), help="Only runs with this status.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Maximum number of runs.")
@with_database
async def history(database: Database, repository: str | None, status: str | None, limit: int) -> Result:
    """The execution log, newest first."""
    from reposync.api.documents import run_documents
    from reposync.store.runs import Runs

    log = Runs(database)
    found = await log.history(repository=repository, status=RunStatus(status) if status else None, limit=limit)
    if not found and repository is not None:
        await log.require_known(repository)
    documents = await run_documents(log, found)
    if found:
        return Result(documents, _history(found, {each["id"]: each["asked_by"] for each in documents}))
    of = "" if repository is None else f" of {escape_unprintable(repository)}"
    start = " `reposync sync .` starts the first one." if repository is None else ""
    return Result([], [f"No run{of} is {status}." if status else f"No run{of} yet.{start}"])


def _shortened(askers: Sequence[str]) -> str:
    """The first one, and the number of others: `reposync runs show` lists all of them."""
    others = f" +{len(askers) - 1}" if len(askers) > 1 else ""
    return escape_unprintable(askers[0])[:_ASKER_CHARS] + others if askers else "-"


def _history(found: list[Run], askers: dict[str, list[str]]) -> Iterator[str | Table]:
    width = table_console().width
    columns = [
        column
        for column in COLUMNS
        if column.from_width <= width and (column.only_if is None or any(map(column.only_if, found)))
    ]
    rows = ([column.cell(run, askers.get(run.id, [])) for column in columns] for run in found)
    yield table([column.title for column in columns], rows)
    explained = [run for run in found if run.error_message]
    if explained:
        yield ""
    for run in explained:
        yield f"{click.style(run.id[:8], bold=True)} {reason(run.error_code, run.error_message)}"


@click.group(cls=Group, aliases=dict.fromkeys(("list", "ls", "log", "logs"), "history"))
def runs() -> None:
    """One run: show it with its problems, watch it, cancel, retry or approve it."""


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
    from reposync.store.runs import Runs

    log = Runs(database)
    run = await log.get(run_id)
    requests, attempts = (await log.requests([run.id])).get(run.id, []), await log.attempts(run.id)
    lines = list(field_lines(_fields(run), 12))
    lines += ["\nrequested by:"] if requests else []
    lines += [f"  {_request_line(request)}" for request in requests]
    if len(attempts) > 1 or any(each.times > 1 for each in attempts):
        lines += ["\nattempts:", *(f"  {_attempt_line(each)}" for each in attempts)]
    lines += [line async for line in _problem_lines(log, run, limit)]
    return Result(await run_detail(log, run, limit), lines)


async def _problem_lines(log: Runs, run: Run, limit: int) -> AsyncIterator[str]:
    counts = await log.count_problems(run.id)
    problems = await log.problems(run.id, limit=limit, reason=FAILED_FILE) if FAILED_FILE in counts else []
    others = await log.problems(run.id, limit=limit)
    problems += [each for each in others if each.reason != FAILED_FILE][: limit - len(problems)]
    if counts:
        yield "\nfailed or skipped:" if FAILED_FILE in counts else "\nskipped:"
    for problem in problems:
        line = f"  {problem.reason:<14}{escape_unprintable(problem.path)}  {escape_unprintable(problem.detail)}"
        yield click.style(line, fg="red" if problem.reason == FAILED_FILE else None)
    if (rest := sum(counts.values()) - len(problems)) > 0:
        yield f"  ... and {rest:,} more (--limit)"


@runs.command()
@click.argument("run_id", metavar="ID")
@with_database
async def cancel(database: Database, run_id: str) -> Result:
    """Request the run ID to stop. What it stored stays, and the next run continues from there."""
    run, document = await _changed(database, run_id, "request_cancel")
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
    from reposync.store.runs import Runs

    log = Runs(database)
    run: Run = await getattr(log, action)((await log.get(run_id)).id, by=current_user())
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
    from reposync.store.notifications import RowWatch
    from reposync.store.runs import Runs
    from reposync.store.workers import Workers

    log = Runs(database)
    run = await log.get(run_id)
    following = RowWatch(log.by_ids)
    try:
        with following.watching(run.id), open_display(run.repository) as display:
            run = await _follow(following, run, display, Workers(database))
    except asyncio.CancelledError:
        click.echo(f"The run continues. `reposync runs cancel {run.id}` stops it.", err=True)
        raise
    finally:
        await following.settle()
    failed = run.status != "completed" or run.files_failed > 0
    return Result(await run_document(log, run), [summary_line(run)], failed=failed)


def _fields(run: Run) -> Iterator[tuple[str, Any]]:
    from reposync.runs.reporting import current_progress, displayed_progress
    from reposync.sync.brake import read_brake

    failed = click.style(f", {run.files_failed:,} failed", fg="red") if run.files_failed else ""
    yield "run", run.id
    yield "repository", escape_unprintable(run.repository)
    yield "status", run.status
    yield "trigger", run.trigger
    yield "queued", f"{run.queued_at:%Y-%m-%d %H:%M:%S} UTC ({ago(run.queued_at)})"
    if run.scheduled_for:
        late = (run.queued_at - run.scheduled_for).total_seconds()
        noticed = f", noticed {duration(late)} late" if late >= NOTICEABLE_LATENESS_SECONDS else ""
        yield "tick", f"{run.scheduled_for:%Y-%m-%d %H:%M:%S} UTC{noticed}"
    yield "took", duration(run.duration_seconds)
    yield "attempt", f"{run.attempt} of {run.max_attempts}"
    yield "worker", run.worker or "-"
    yield "commit", f"{run.commit_before or '-'} -> {run.commit_after or '-'}"
    yield (
        "files",
        f"{run.files_processed:,} stored, {run.files_deleted:,} deleted, {run.files_skipped:,} skipped{failed}",
    )
    yield "chunks", f"{run.chunks_embedded:,} embedded, {run.chunks_reused:,} reused"
    if current_progress(run) is not None:
        yield "now", escape_unprintable(displayed_progress(run).words())
    if run.error_message:
        yield "why" if run.error_code else "notice", reason(run.error_code, run.error_message)
    if brake := read_brake(run.brake):
        yield "brake", f"{brake.in_words()}{'; approved' if run.approved else ''}"


def _request_line(request: RunRequest) -> str:
    wants = [flag for flag in ("full", "repair", "removal") if getattr(request, flag)]
    wants += ["mass deletion allowed"] if request.approval is not None else []
    wants += [f"tick of {request.scheduled_for:%Y-%m-%d %H:%M:%S}"] if request.scheduled_for else []
    line = f"{request.asked_at:%Y-%m-%d %H:%M:%S}  {request.trigger:<9} {escape_unprintable(request.asked_by)}"
    line += f"  ({', '.join(wants)})" if wants else ""
    if request.withdrawn_at is None:
        return line
    return f"{line}  withdrawn {request.withdrawn_at:%H:%M:%S} by {escape_unprintable(request.withdrawn_by or '')}"


def _attempt_line(attempt: RunAttempt) -> str:
    seconds = (attempt.ended_at - attempt.started_at).total_seconds() if attempt.ended_at else None
    why = f"  {reason(attempt.error_code, attempt.error_message)}" if attempt.error_message else ""
    line = f"{attempt.attempt:<3}{attempt.outcome or 'running':<10} {attempt.started_at:%H:%M:%S}"
    if attempt.times > 1:
        line += f"  {attempt.times:,} times, last at {attempt.ended_at:%Y-%m-%d %H:%M:%S}"
        return f"{line}  {escape_unprintable(attempt.worker)}{why}"
    counts = f"{attempt.files_processed:,} files, {attempt.chunks_embedded:,} chunks embedded"
    return f"{line}  {duration(seconds):<9} {escape_unprintable(attempt.worker)}  {counts}{why}"


async def _follow(following: RowWatch[Run], run: Run, display: Watch, workers: Workers) -> Run:
    from reposync.errors import RunNotFound, StoreUnavailable
    from reposync.runs.reporting import displayed_progress
    from reposync.store.status import WAITING

    waiting_since = read_at = time.monotonic()
    hinted = False
    while not run.is_final:
        display(displayed_progress(run))
        if run.status not in WAITING:
            waiting_since = time.monotonic()
        await asyncio.sleep(following.pause_seconds)
        try:
            if not hinted and time.monotonic() - waiting_since > UNCLAIMED_SECONDS:
                hinted = True
                click.echo(
                    f"{escape_unprintable(run.repository)}: {run.status}; {await _who_executes(workers)}", err=True
                )
            seen = await following.look(run.id)
        except StoreUnavailable:
            if time.monotonic() - read_at > DATABASE_OUTAGE_SECONDS:
                raise
            continue
        if seen is None:
            raise RunNotFound(f"Run {run.id} is no longer in the history.")
        run, read_at = seen, time.monotonic()
    return run


async def _who_executes(workers: Workers) -> str:
    number = len(await workers.alive())
    if not number:
        return "no daemon with workers is running. Start `reposync serve`, or `reposync sync` executes it."
    return f"{number} running daemon{'s execute' if number > 1 else ' executes'} it when it is its turn."
