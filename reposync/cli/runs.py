"""`reposync runs`: one run of the execution log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.output import ago, duration, json_option, print_json, run_json, visible
from reposync.cli.startup import run_async

if TYPE_CHECKING:
    from reposync.store.runs import Run, RunProblem


@click.group()
def runs() -> None:
    """Show one run with its problems, or cancel it."""


@runs.command()
@click.argument("run_id", metavar="ID")
@click.option(
    "--limit", type=click.IntRange(0, 100_000), default=50, show_default=True, help="At most so many problems."
)
@json_option
def show(run_id: str, limit: int, as_json: bool) -> None:
    """Everything about the run ID (a unique beginning will do), and the files that it skipped, with the reason."""
    run, problems, counts = run_async(_load(run_id, limit))
    if as_json:
        print_json({**run_json(run), "problems": [asdict(each) for each in problems], "problem_counts": counts})
        return
    for name, value in _lines(run):
        click.echo(f"{name + ':':<12}{value}")
    if counts:
        click.echo("\nskipped:")
    for problem in problems:
        click.echo(f"  {problem.reason:<14}{visible(problem.path)}  {visible(problem.detail)}")
    rest = sum(counts.values()) - len(problems)
    if rest > 0:
        click.echo(f"  ... and {rest:,} more (--limit)")


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
def cancel(run_id: str, as_json: bool) -> None:
    """Ask the run ID to end. What it stored stays, and the next run goes on from there."""
    run = run_async(_cancel(run_id))
    if as_json:
        print_json(run_json(run))
    else:
        waits = run.status == "running"
        click.echo(f"{run.id}: {'asked to end' if waits else run.status}")


def _lines(run: Run) -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = [
        ("run", run.id),
        ("repository", visible(run.repository)),
        ("status", run.status),
        ("trigger", run.trigger),
        ("queued", f"{run.queued_at:%Y-%m-%d %H:%M:%S} UTC ({ago(run.queued_at)})"),
        ("took", duration(run.duration_seconds)),
        ("attempt", f"{run.attempt} of {run.max_attempts}"),
        ("worker", run.worker or "-"),
        ("commit", f"{run.commit_before or '-'} -> {run.commit_after or '-'}"),
        ("files", f"{run.files_processed:,} stored, {run.files_deleted:,} deleted, {run.files_skipped:,} skipped"),
        ("chunks", f"{run.chunks_embedded:,} embedded, {run.chunks_reused:,} reused"),
    ]
    if run.error_code:
        lines.append(("why", f"{run.error_code}: {visible(run.error_message or '')}"))
    return lines


async def _load(run_id: str, limit: int) -> tuple[Run, list[RunProblem], dict[str, int]]:
    from reposync.cli.state import open_state
    from reposync.store.runs import Runs

    async with open_state() as database:
        log = Runs(database)
        run = await log.get(run_id)
        return run, await log.problems(run.id, limit=limit), await log.count_problems(run.id)


async def _cancel(run_id: str) -> Run:
    from reposync.cli.state import open_state
    from reposync.store.runs import Runs

    async with open_state() as database:
        log = Runs(database)
        return await log.request_cancel((await log.get(run_id)).id)
