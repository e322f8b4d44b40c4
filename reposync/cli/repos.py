"""`reposync repos`: the registered repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reposync.cli.output import ago, json_option, print_json, short, visible
from reposync.cli.startup import run_async

if TYPE_CHECKING:
    from reposync.scheduling.overview import Overview


@click.group()
def repos() -> None:
    """List and show the registered repositories."""


@repos.command("list")
@json_option
def list_(as_json: bool) -> None:
    """All repositories: those of the configuration, and those that were synced by path or URL."""
    overviews = run_async(_load())
    if as_json:
        print_json([each.as_json() for each in overviews])
    elif not overviews:
        click.echo("No repository yet. `reposync sync .` adds the one you are in.")
    else:
        _print_table(overviews)


@repos.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """One repository: where it comes from, what is indexed of it, and its latest run."""
    from reposync.scheduling.overview import named

    overview = named(run_async(_load()), name)
    if as_json:
        print_json(overview.as_json())
        return
    for key, value in _lines(overview):
        click.echo(f"{key + ':':<14}{value}")


async def _load() -> list[Overview]:
    from reposync.config.configuration import Configuration
    from reposync.scheduling.application import open_application
    from reposync.scheduling.overview import overviews

    async with open_application(Configuration.load()) as app:
        return await overviews(app.catalog, app.repositories, app.manifests, app.runs)


def _print_table(overviews: list[Overview]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("name", "source", "schedule", "last sync", "commit"):
        table.add_column(title, overflow="fold")
    for title in ("files", "chunks"):
        table.add_column(title, justify="right")
    table.add_column("last run")
    for each in overviews:
        table.add_row(
            Text(visible(each.name)),
            Text(visible(each.location)),
            each.schedule or "by hand",
            ago(each.last_sync_at),
            short(each.last_commit),
            f"{each.files:,}",
            f"{each.chunks:,}",
            each.last_status or "-",
        )
    console = Console()
    console.print(table, width=None if console.is_terminal else 200)


def _lines(each: Overview) -> list[tuple[str, Any]]:
    return [
        ("name", visible(each.name)),
        ("source", visible(each.location)),
        ("branch", visible(each.branch) if each.branch else "the default branch"),
        ("collection", each.collection),
        ("schedule", each.schedule or "by hand"),
        ("last sync", ago(each.last_sync_at)),
        ("commit", each.last_commit or "-"),
        ("files", f"{each.files:,} indexed, {each.skipped:,} skipped"),
        ("chunks", f"{each.chunks:,}"),
        ("last run", each.last_status or "-"),
        *([("why", visible(each.last_error))] if each.last_error else []),
    ]
