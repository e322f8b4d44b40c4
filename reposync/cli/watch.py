"""`reposync runs watch`: one run as it goes on, wherever it is executed."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.output import json_option, print_json, visible
from reposync.cli.startup import run_async

if TYPE_CHECKING:
    from reposync.store.row_watch import RowWatch
    from reposync.store.runs import Run
    from reposync.store.workers import Workers
    from reposync.sync.progress import Watch

UNCLAIMED_SECONDS = 5.0
"""A run that nobody has taken after so long may wait for a daemon that is not there."""
PATIENCE_SECONDS = 60.0
"""How long the database may be away."""


@click.command()
@click.argument("run_id", metavar="ID")
@json_option
def watch(run_id: str, as_json: bool) -> None:
    """Follow the run ID (a unique beginning will do) to its end, whoever executes it.

    The exit code is 0 if it is completed and no file failed, and 1 otherwise. Ctrl-C ends the watching alone;
    `reposync runs cancel` ends the run.
    """
    run, document = run_async(_watch(run_id))
    if as_json:
        print_json(document)
    else:
        from reposync.cli.sync import summary, summary_colour

        click.secho(summary(run), fg=summary_colour(run))
    if run.status != "completed" or run.files_failed:
        sys.exit(1)


async def _watch(run_id: str) -> tuple[Run, dict[str, Any]]:
    """The run as it ended, and what `--json` prints of it."""
    from functools import partial

    from reposync.api.documents import run_documents
    from reposync.cli.progress_display import open_display
    from reposync.cli.state import open_state
    from reposync.store.following import runs_by_id
    from reposync.store.row_watch import RowWatch
    from reposync.store.runs import Runs
    from reposync.store.workers import Workers

    async with open_state() as database:
        runs = Runs(database)
        run = await runs.get(run_id)
        following = RowWatch(partial(runs_by_id, database))
        try:
            with following.watching(run.id), open_display(run.repository) as show:
                run = await _follow(following, run, show, Workers(database))
        except asyncio.CancelledError:
            click.echo(f"The run goes on. `reposync runs cancel {run.id}` ends it.", err=True)
            raise
        finally:
            await following.settle()
        (document,) = await run_documents(runs, [run])
        return run, document


async def _follow(following: RowWatch[Run], run: Run, show: Watch, workers: Workers) -> Run:
    from reposync.errors import RunNotFound, StoreUnavailable
    from reposync.runs.progress_reports import displayed_progress
    from reposync.store.status import WAITING

    waiting_since = heard_at = time.monotonic()
    hinted = False
    while not run.is_final:
        show(displayed_progress(run))
        if run.status not in WAITING:
            waiting_since = time.monotonic()
        await asyncio.sleep(following.pause_seconds)
        try:
            if not hinted and time.monotonic() - waiting_since > UNCLAIMED_SECONDS:
                hinted = True
                click.echo(f"{visible(run.repository)}: {run.status}; {await _who_executes(workers)}", err=True)
            seen = await following.look(run.id)
        except StoreUnavailable:
            if time.monotonic() - heard_at > PATIENCE_SECONDS:
                raise
            continue
        if seen is None:
            raise RunNotFound(f"Run {run.id} is no longer in the history.")
        run, heard_at = seen, time.monotonic()
    return run


async def _who_executes(workers: Workers) -> str:
    number = len(await workers.alive())
    if not number:
        return "no daemon with workers was heard of. Start `reposync serve`, or `reposync sync` executes it."
    return f"{number} running daemon{'s execute' if number > 1 else ' executes'} it when it is its turn."
