"""`reposync runs`: one run of the execution log."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import click

from reposync.cli.commands import Group, json_option
from reposync.cli.output import FAILED_FILE, print_fields, print_json, reason, summary, summary_colour
from reposync.cli.startup import current_user, run_with_database
from reposync.words import ago, duration, escape_unprintable

if TYPE_CHECKING:
    from reposync.store.database import Database
    from reposync.store.notifications import RowWatch
    from reposync.store.run import Run, RunAttempt, RunProblem, RunRequest
    from reposync.store.workers import Workers
    from reposync.sync.progress import Watch

NOTICEABLE_LATENESS_SECONDS = 5.0
UNCLAIMED_SECONDS = 5.0
"""After this time without a worker, `watch` reports whether there are any."""
DATABASE_OUTAGE_SECONDS = 60.0
"""How long `watch` waits for an unreachable database."""


@click.group(cls=Group, aliases=dict.fromkeys(("list", "ls", "log", "logs"), "history"))
def runs() -> None:
    """One run: show it with its problems, watch it, cancel, retry or approve it."""


@runs.command()
@click.argument("run_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(0, 100_000), default=50, show_default=True, help="Maximum number of problems."
)
@json_option
def show(run_id: str, limit: int, as_json: bool) -> None:
    """Everything about the run ID (or a unique prefix), and the files that failed or were skipped, with the reason.
    Failed files are listed first; with --json, all are sorted by path."""
    if as_json:
        print_json(run_with_database(lambda database: _document(database, run_id, limit)))
        return
    run, requests, attempts, problems, counts = run_with_database(lambda database: _load(database, run_id, limit))
    print_fields(_fields(run), 12)
    if requests:
        click.echo("\nrequested by:")
    for request in requests:
        click.echo(f"  {_request_line(request)}")
    if len(attempts) > 1 or any(each.times > 1 for each in attempts):
        click.echo("\nattempts:")
        for each in attempts:
            click.echo(f"  {_attempt_line(each)}")
    if counts:
        click.echo("\nfailed or skipped:" if FAILED_FILE in counts else "\nskipped:")
    for problem in problems:
        line = f"  {problem.reason:<14}{escape_unprintable(problem.path)}  {escape_unprintable(problem.detail)}"
        click.secho(line, fg="red" if problem.reason == FAILED_FILE else None)
    rest = sum(counts.values()) - len(problems)
    if rest > 0:
        click.echo(f"  ... and {rest:,} more (--limit)")


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
def cancel(run_id: str, as_json: bool) -> None:
    """Request the run ID to stop. What it stored stays, and the next run continues from there."""
    run, document = _act(run_id, "request_cancel")
    if as_json:
        print_json(document)
    else:
        click.echo(f"{run.id}: {'requested to stop' if run.status == 'running' else run.status}")


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
def retry(run_id: str, as_json: bool) -> None:
    """Put the run ID, which failed or was cancelled, back into the queue."""
    _print_queued(*_act(run_id, "retry"), as_json)


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
def approve(run_id: str, as_json: bool) -> None:
    """Approve what the run ID is blocked for (the deletion of most of an index), and queue it again."""
    _print_queued(*_act(run_id, "approve"), as_json)


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
def watch(run_id: str, as_json: bool) -> None:
    """Follow the run ID (or a unique prefix) to its end, whichever process executes it.

    The exit code is 0 if it is completed and no file failed, and 1 otherwise. Ctrl-C ends the watching only;
    `reposync runs cancel` stops the run.
    """
    run, document = run_with_database(lambda database: _watch(database, run_id))
    if as_json:
        print_json(document)
    else:
        click.secho(summary(run), fg=summary_colour(run))
    if run.status != "completed" or run.files_failed:
        sys.exit(1)


def _act(run_id: str, action: Literal["request_cancel", "retry", "approve"]) -> tuple[Run, dict[str, Any]]:
    async def act(database: Database) -> tuple[Run, dict[str, Any]]:
        from reposync.api.documents import run_detail
        from reposync.store.runs import Runs

        log = Runs(database)
        run: Run = await getattr(log, action)((await log.get(run_id)).id, by=current_user())
        return run, await run_detail(log, run)

    return run_with_database(act)


def _print_queued(run: Run, document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    click.echo(f"{run.id}: {run.status}")
    click.echo("  A running `reposync serve` executes it, or the next `reposync sync`.", err=True)


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


async def _load(
    database: Database, run_id: str, limit: int
) -> tuple[Run, list[RunRequest], list[RunAttempt], list[RunProblem], dict[str, int]]:
    from reposync.store.runs import Runs

    log = Runs(database)
    run = await log.get(run_id)
    counts = await log.count_problems(run.id)
    problems = await log.problems(run.id, limit=limit, reason=FAILED_FILE) if FAILED_FILE in counts else []
    others = await log.problems(run.id, limit=limit)
    problems += [each for each in others if each.reason != FAILED_FILE][: limit - len(problems)]
    requests = (await log.requests([run.id])).get(run.id, [])
    return run, requests, await log.attempts(run.id), problems, counts


async def _document(database: Database, run_id: str, limit: int) -> dict[str, Any]:
    from reposync.api.documents import run_detail
    from reposync.store.runs import Runs

    log = Runs(database)
    return await run_detail(log, await log.get(run_id), limit)


async def _watch(database: Database, run_id: str) -> tuple[Run, dict[str, Any]]:
    """The run as it ended, and its JSON document."""
    from reposync.api.documents import run_documents
    from reposync.cli.progress_display import open_display
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
    (document,) = await run_documents(log, [run])
    return run, document


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
