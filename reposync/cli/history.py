"""`reposync history`: the execution log as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from reposync.cli.output import ago, duration, json_option, print_json, run_json, short, visible
from reposync.cli.startup import run_async
from reposync.store.status import RunStatus

if TYPE_CHECKING:
    from reposync.store.runs import Run

STYLES = {"completed": "green", "failed": "red", "blocked": "yellow", "cancelled": "yellow", "running": "cyan"}


@click.command()
@click.option("--repository", metavar="NAME", help="Only runs of this repository.")
@click.option(
    "--status", type=click.Choice([each.value for each in RunStatus]), help="Only runs that ended, or are, so."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many runs.")
@json_option
def history(repository: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """The execution log, newest first."""
    runs = run_async(_history(repository, RunStatus(status) if status else None, limit))
    if as_json:
        print_json([run_json(run) for run in runs])
    elif not runs:
        click.echo("No run yet. `reposync sync .` makes the first one.")
    else:
        _print_table(runs)


async def _history(repository: str | None, status: RunStatus | None, limit: int) -> list[Run]:
    from reposync.cli.state import open_state
    from reposync.store.runs import Runs

    async with open_state() as database:
        return await Runs(database).history(repository=repository, status=status, limit=limit)


def _print_table(runs: list[Run]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("run", "repository", "status", "trigger", "queued", "took"):
        table.add_column(title, no_wrap=title != "repository", overflow="fold")
    for title in ("files", "deleted", "skipped", "embedded", "reused"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("commit", no_wrap=True)
    table.add_column("why", overflow="fold")
    for run in runs:
        table.add_row(
            run.id[:13],
            Text(visible(run.repository)),
            Text(run.status, style=STYLES.get(run.status, "")),
            run.trigger,
            ago(run.queued_at),
            duration(run.duration_seconds),
            *(
                f"{number:,}"
                for number in (
                    run.files_processed,
                    run.files_deleted,
                    run.files_skipped,
                    run.chunks_embedded,
                    run.chunks_reused,
                )
            ),
            short(run.commit_after),
            Text(visible(run.error_message or "")),
        )
    console = Console()
    # A table that is piped somewhere must not be cut at the width of a terminal that is not there.
    console.print(table, width=None if console.is_terminal else 250)
