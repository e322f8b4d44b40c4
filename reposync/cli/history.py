"""`reposync history`: the execution log as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import json_option, repository_names
from reposync.cli.output import Cell, print_json, print_table, reason, short, table_console
from reposync.cli.startup import run_with_database
from reposync.store.status import RunStatus
from reposync.words import ago, duration, escape_unprintable

if TYPE_CHECKING:
    from reposync.store.database import Database
    from reposync.store.run import Run


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
_ASKER_CHARS = 30


@click.command()
@click.option("--repository", metavar="NAME", help="Only runs of this repository.", shell_complete=repository_names)
@click.option("--status", type=click.Choice([each.value for each in RunStatus]), help="Only runs with this status.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Maximum number of runs.")
@json_option
def history(repository: str | None, status: str | None, limit: int, as_json: bool) -> None:
    """The execution log, newest first."""

    async def load(database: Database) -> tuple[list[Run], list[dict[str, Any]]]:
        from reposync.api.documents import run_documents
        from reposync.store.runs import Runs

        log = Runs(database)
        runs = await log.history(repository=repository, status=RunStatus(status) if status else None, limit=limit)
        if not runs and repository is not None:
            await log.require_known(repository)
        return runs, await run_documents(log, runs)

    runs, documents = run_with_database(load)
    if as_json:
        print_json(documents)
    elif not runs:
        click.echo(_why_empty(repository, status))
    else:
        _print_table(runs, {each["id"]: each["asked_by"] for each in documents})


def _why_empty(repository: str | None, status: str | None) -> str:
    if repository is None and status is None:
        return "No run yet. `reposync sync .` starts the first one."
    of = "" if repository is None else f" of {escape_unprintable(repository)}"
    return f"No run{of} yet." if status is None else f"No run{of} is {status}."


def _shortened(askers: Sequence[str]) -> str:
    """The first one, and the number of others: `reposync runs show` lists all of them."""
    others = f" +{len(askers) - 1}" if len(askers) > 1 else ""
    return escape_unprintable(askers[0])[:_ASKER_CHARS] + others if askers else "-"


def _print_table(runs: list[Run], askers: dict[str, list[str]]) -> None:
    width = table_console().width
    columns = [
        column
        for column in COLUMNS
        if column.from_width <= width and (column.only_if is None or any(map(column.only_if, runs)))
    ]
    rows = ([column.cell(run, askers.get(run.id, [])) for column in columns] for run in runs)
    print_table([column.title for column in columns], rows)
    for number, run in enumerate(run for run in runs if run.error_message):
        if not number:
            click.echo()
        click.echo(f"{click.style(run.id[:8], bold=True)} {reason(run.error_code, run.error_message)}")
