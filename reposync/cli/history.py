"""`reposync history`: the execution log as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.completion import repository_names
from reposync.cli.output import (
    ago,
    duration,
    json_option,
    print_json,
    short,
    table_console,
    told_reason,
    visible,
)
from reposync.cli.startup import run_async
from reposync.store.status import RunStatus

if TYPE_CHECKING:
    from reposync.store.runs import Run


@dataclass(frozen=True)
class Column:
    """`from_width`: terminals narrower than this, in characters, do without it. `only_if`: so do tables
    in which this is true of no run."""

    title: str
    cell: Callable[[Run], str]
    number: bool = False
    from_width: int = 0
    only_if: Callable[[Run], bool] | None = None


COLUMNS = (
    Column("run", lambda run: run.id[:8]),
    Column("repository", lambda run: visible(run.repository)[:40]),
    Column("status", lambda run: run.status),
    Column("trigger", lambda run: "removal" if run.removal else run.trigger, from_width=130),
    Column("asked by", lambda run: "", from_width=100),
    Column("queued", lambda run: ago(run.queued_at)),
    Column("took", lambda run: duration(run.duration_seconds)),
    Column("stored", lambda run: f"{run.files_processed:,}", number=True),
    Column("deleted", lambda run: f"{run.files_deleted:,}", number=True),
    Column("skipped", lambda run: f"{run.files_skipped:,}", number=True, from_width=96),
    Column("failed", lambda run: f"{run.files_failed:,}", number=True, only_if=lambda run: run.files_failed > 0),
    Column("embedded", lambda run: f"{run.chunks_embedded:,}", number=True, from_width=106),
    Column("reused", lambda run: f"{run.chunks_reused:,}", number=True, from_width=114),
    Column("attempt", lambda run: str(run.attempt), number=True, from_width=140),
    Column("commit", lambda run: short(run.commit_after), from_width=120),
)
_ASKER_CHARS = 30
STYLES = {"completed": "green", "failed": "red", "blocked": "yellow", "cancelled": "yellow", "running": "cyan"}


@click.command()
@click.option("--repository", metavar="NAME", help="Only runs of this repository.", shell_complete=repository_names)
@click.option(
    "--status", type=click.Choice([each.value for each in RunStatus]), help="Only runs that ended, or are, so."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many runs.")
@json_option
def history(repository: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """The execution log, newest first."""
    runs, documents = run_async(_history(repository, RunStatus(status) if status else None, limit))
    askers = {each["id"]: each["asked_by"] for each in documents}
    if as_json:
        print_json(documents)
    elif not runs:
        click.echo(_why_empty(repository, status))
    else:
        _print_table(runs, askers)


async def _history(
    repository: str | None, status: RunStatus | None, limit: int
) -> tuple[list[Run], list[dict[str, Any]]]:
    """Raises RepositoryNotFound for a name that no repository and no run has: it is mistyped."""
    from reposync.api.documents import run_documents
    from reposync.cli.state import open_state
    from reposync.store.runs import Runs

    async with open_state() as database:
        log = Runs(database)
        runs = await log.history(repository=repository, status=status, limit=limit)
        if not runs and repository is not None:
            await log.require_known(repository)
        return runs, await run_documents(log, runs)


def _why_empty(repository: str | None, status: str | None) -> str:
    if repository is None and status is None:
        return "No run yet. `reposync sync .` makes the first one."
    of = "" if repository is None else f" of {visible(repository)}"
    return f"No run{of} yet." if status is None else f"No run{of} is {status}."


def _shortened(askers: list[str]) -> str:
    """The first one, and how many others there are at least: all of them are in `reposync runs show`."""
    others = f" +{len(askers) - 1}" if len(askers) > 1 else ""
    return visible(askers[0])[:_ASKER_CHARS] + others if askers else "-"


def _print_table(runs: list[Run], askers: dict[str, list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = table_console()
    columns = [
        column
        for column in COLUMNS
        if column.from_width <= console.width and (column.only_if is None or any(map(column.only_if, runs)))
    ]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.number else "left", no_wrap=True)
    for run in runs:
        styles = {"status": STYLES.get(run.status, ""), "failed": ""}
        if run.files_failed:
            styles = {"status": "red", "failed": "bold red"}
        cells = {column.title: column.cell(run) for column in columns}
        if "asked by" in cells:
            cells["asked by"] = _shortened(askers.get(run.id, []))
        table.add_row(*(Text(cell, styles.get(title, "")) for title, cell in cells.items()))
    console.print(table)
    told = [run for run in runs if run.error_message]
    if told:
        console.print()
    for run in told:
        why = Text(f"{run.id[:8]} ", "bold")
        why.append(told_reason(run.error_code, run.error_message), "")
        console.print(why, soft_wrap=True)
