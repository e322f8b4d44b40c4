"""`reposync runs`: one run of the execution log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.group import Group
from reposync.cli.output import ago, duration, json_option, print_json, told_reason, visible
from reposync.cli.startup import run_async
from reposync.cli.sync import FAILED
from reposync.cli.watch import watch

if TYPE_CHECKING:
    from reposync.store.requests import RunRequest
    from reposync.store.runs import Run, RunAttempt, RunProblem

# A tick that was noticed so many seconds late is worth a word.
LATE = 5.0


@click.group(cls=Group, elsewhere={"list": "history", "ls": "history", "log": "history", "logs": "history"})
def runs() -> None:
    """One run: show it with its problems, watch it, cancel, retry or approve it."""


runs.add_command(watch)


@runs.command()
@click.argument("run_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(0, 100_000), default=50, show_default=True, help="At most so many problems."
)
@json_option
def show(run_id: str, limit: int, as_json: bool) -> None:
    """Everything about the run ID (a unique beginning will do), and the files that failed or were skipped, with the
    reason; those that failed come first, with --json all by path."""
    if as_json:
        print_json(run_async(_document(run_id, limit)))
        return
    run, requests, attempts, problems, counts = run_async(_load(run_id, limit))
    for key, value in _lines(run):
        click.echo(f"{key + ':':<12}{value}")
    if requests:
        click.echo("\nasked for by:")
        for request in requests:
            click.echo(f"  {_request_line(request)}")
    if len(attempts) > 1 or any(each.times > 1 for each in attempts):
        click.echo("\nattempts:")
        for each in attempts:
            click.echo(f"  {_attempt_line(each)}")
    if counts:
        click.echo("\nfailed or skipped:" if FAILED in counts else "\nskipped:")
    for problem in problems:
        told = f"  {problem.reason:<14}{visible(problem.path)}  {visible(problem.detail)}"
        click.secho(told, fg="red" if problem.reason == FAILED else None)
    rest = sum(counts.values()) - len(problems)
    if rest > 0:
        click.echo(f"  ... and {rest:,} more (--limit)")


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
def cancel(run_id: str, as_json: bool) -> None:
    """Ask the run ID to end. What it stored stays, and the next run goes on from there."""
    run, document = run_async(_ask(run_id, "cancel"))
    if as_json:
        print_json(document)
    else:
        waits = run.status == "running"
        click.echo(f"{run.id}: {'asked to end' if waits else run.status}")


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
def retry(run_id: str, as_json: bool) -> None:
    """Send the run ID, which failed or was cancelled, back into the queue."""
    _said(*run_async(_ask(run_id, "retry")), as_json)


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
def approve(run_id: str, as_json: bool) -> None:
    """Allow the blocked run ID what it stopped at (the deletion of most of an index), and queue it again."""
    _said(*run_async(_ask(run_id, "approve")), as_json)


def _said(run: Run, document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    click.echo(f"{run.id}: {run.status}")
    click.echo("  A running `reposync serve` executes it, or the next `reposync sync`.", err=True)


def _request_line(request: RunRequest) -> str:
    wants = [flag for flag in ("full", "repair", "removal") if getattr(request, flag)]
    wants += ["mass deletion allowed"] if request.approval is not None else []
    wants += [f"tick of {request.scheduled_for:%Y-%m-%d %H:%M:%S}"] if request.scheduled_for else []
    told = f"{request.asked_at:%Y-%m-%d %H:%M:%S}  {request.trigger:<9} {visible(request.asked_by)}"
    told += f"  ({', '.join(wants)})" if wants else ""
    if request.withdrawn_at is None:
        return told
    return f"{told}  withdrawn {request.withdrawn_at:%H:%M:%S} by {visible(request.withdrawn_by or '')}"


def _attempt_line(attempt: RunAttempt) -> str:
    ended = (attempt.ended_at - attempt.started_at).total_seconds() if attempt.ended_at else None
    figures = f"{attempt.files_processed:,} files, {attempt.chunks_embedded:,} chunks embedded"
    why = f"  {told_reason(attempt.error_code, attempt.error_message)}" if attempt.error_message else ""
    told = f"{attempt.attempt:<3}{attempt.outcome or 'running':<10} {attempt.started_at:%H:%M:%S}"
    if attempt.times > 1:
        told += f"  {attempt.times:,} times, last at {attempt.ended_at:%Y-%m-%d %H:%M:%S}"
        return f"{told}  {visible(attempt.worker)}{why}"
    return f"{told}  {duration(ended):<9} {visible(attempt.worker)}  {figures}{why}"


def _lines(run: Run) -> list[tuple[str, Any]]:
    from reposync.runs.progress_reports import current_progress, displayed_progress

    lines: list[tuple[str, Any]] = [
        ("run", run.id),
        ("repository", visible(run.repository)),
        ("status", run.status),
        ("trigger", run.trigger),
        ("queued", f"{run.queued_at:%Y-%m-%d %H:%M:%S} UTC ({ago(run.queued_at)})"),
        *([("tick", _tick(run))] if run.scheduled_for else []),
        ("took", duration(run.duration_seconds)),
        ("attempt", f"{run.attempt} of {run.max_attempts}"),
        ("worker", run.worker or "-"),
        ("commit", f"{run.commit_before or '-'} -> {run.commit_after or '-'}"),
        ("files", _files(run)),
        ("chunks", f"{run.chunks_embedded:,} embedded, {run.chunks_reused:,} reused"),
    ]
    if current_progress(run) is not None:
        lines.append(("now", visible(displayed_progress(run).words())))
    if run.error_message:
        lines.append(("why" if run.error_code else "notice", told_reason(run.error_code, run.error_message)))
    if run.brake:
        from reposync.sync.brake import read_brake

        brake = read_brake(run.brake)
        lines += [("brake", f"{brake.in_words()}{'; approved' if run.approved else ''}")] if brake else []
    return lines


def _files(run: Run) -> str:
    told = f"{run.files_processed:,} stored, {run.files_deleted:,} deleted, {run.files_skipped:,} skipped"
    return told + (click.style(f", {run.files_failed:,} failed", fg="red") if run.files_failed else "")


def _tick(run: Run) -> str:
    assert run.scheduled_for is not None  # noqa: S101 - the caller looked
    late = (run.queued_at - run.scheduled_for).total_seconds()
    return f"{run.scheduled_for:%Y-%m-%d %H:%M:%S} UTC" + (f", noticed {duration(late)} late" if late >= LATE else "")


async def _load(
    run_id: str, limit: int
) -> tuple[Run, list[RunRequest], list[RunAttempt], list[RunProblem], dict[str, int]]:
    from reposync.cli.state import open_state
    from reposync.store.runs import Runs

    async with open_state() as database:
        log = Runs(database)
        run = await log.get(run_id)
        counts = await log.count_problems(run.id)
        problems = await log.problems(run.id, limit=limit, reason=FAILED) if FAILED in counts else []
        others = await log.problems(run.id, limit=limit)
        problems += [each for each in others if each.reason != FAILED][: limit - len(problems)]
        requests = (await log.requests([run.id])).get(run.id, [])
        return run, requests, await log.attempts(run.id), problems, counts


async def _document(run_id: str, limit: int) -> dict[str, Any]:
    from reposync.api.documents import run_detail
    from reposync.cli.state import open_state
    from reposync.store.runs import Runs

    async with open_state() as database:
        log = Runs(database)
        return await run_detail(log, await log.get(run_id), limit)


async def _ask(run_id: str, what: str) -> tuple[Run, dict[str, Any]]:
    from reposync.api.documents import run_detail
    from reposync.cli.person import person
    from reposync.cli.state import open_state
    from reposync.store.runs import Runs

    async with open_state() as database:
        log = Runs(database)
        asked: dict[str, Callable[..., Awaitable[Run]]] = {
            "cancel": log.request_cancel,
            "retry": log.retry,
            "approve": log.approve,
        }
        run = await asked[what]((await log.get(run_id)).id, by=person())
        return run, await run_detail(log, run)
