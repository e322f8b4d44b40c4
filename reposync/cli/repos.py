"""`reposync repos`: the registered repositories."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.completion import repository_names
from reposync.cli.group import Group
from reposync.cli.output import (
    ago,
    duration,
    json_option,
    print_json,
    short,
    table_console,
    until,
    visible,
)
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from reposync.catalog.overview import Overview, RepositoryDetail
    from reposync.store.run import Run

MISSED_TICKS_SHOWN = 5


@click.group(cls=Group, elsewhere={"delete": "repos remove", "rm": "repos remove"})
def repos() -> None:
    """The registered repositories: list, show, add, remove, pause, resume."""


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
@click.argument("name", shell_complete=repository_names)
@json_option
def show(name: str, as_json: bool) -> None:
    """One repository: where it comes from, what is indexed of it, and its latest run."""
    detail = run_async(_detail(name))
    if as_json:
        print_json(detail.as_json())
        return
    for key, value in _lines(detail):
        click.echo(f"{key + ':':<14}{value}")
    for each in detail.missed_ticks[:MISSED_TICKS_SHOWN]:
        late = duration(each.late_seconds)
        click.echo(f"{'missed:':<14}tick of {each.scheduled_for:%Y-%m-%d %H:%M:%S} UTC, noticed {late} late")


@repos.command()
@click.argument("name")
@click.option("--gitlab", metavar="SERVER", help="Name of a GitLab server in the registry file; with --project.")
@click.option("--project", metavar="GROUP/PROJECT", help="Path of the project on that server.")
@click.option("--git", metavar="URL", help="https:// address of a git repository that anybody may read.")
@click.option("--path", metavar="FOLDER", help="A git repository on this machine.")
@click.option("--branch", metavar="BRANCH", help="The default branch where left out.")
@click.option("--schedule", metavar="CRON", help="Crontab, @daily, words such as 'every 6 hours', or never.")
@click.option("--timezone", metavar="ZONE", help="IANA time zone of the schedule.")
@click.option("--collection", metavar="NAME", help="Qdrant collection.")
@click.option("--include", metavar="PATTERN", multiple=True, help="Only files of these gitignore patterns.")
@click.option("--exclude", metavar="PATTERN", multiple=True, help="No files of these gitignore patterns.")
@json_option
def add(name: str, as_json: bool, **said: Any) -> None:
    """Register the repository NAME beside those of the registry file. A running `serve` syncs it within seconds, unless
    its schedule is never: then people, pushes and commands alone sync it."""
    told = {key: list(value) if isinstance(value, tuple) else value for key, value in said.items() if value}
    overview = run_async(_add({"name": name, **told}))
    if as_json:
        print_json(overview.as_json())
    else:
        due = f", next due {until(overview.next_due_at)}" if overview.next_due_at else ""
        click.echo(f"{visible(name)}: registered, {overview.schedule}{due}")


@repos.command()
@click.argument("name", shell_complete=repository_names)
@click.option("--yes", is_flag=True, help="Do not ask. Needed where there is no terminal.")
@json_option
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Remove the repository NAME with everything that is indexed of it. Its history stays."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"There is no terminal to ask on. --yes removes {visible(name)} and its index.")
        click.confirm(f"Remove {visible(name)} and its index?", abort=True, err=True)
    run, document = run_async(_remove(name))
    if as_json:
        print_json(document)
    elif run.status == "completed":
        click.echo(f"{visible(name)}: removed, with {run.files_deleted:,} indexed files")
        if run.error_message:
            click.echo(f"  {visible(run.error_message)}")
    else:
        click.echo(f"{visible(name)}: {run.status}: {visible(run.error_message or '')}")
    if run.status != "completed":
        sys.exit(1)


@repos.command()
@click.argument("name", shell_complete=repository_names)
@click.option("--reason", default="Paused by command.", show_default=True, help="Shown to whoever asks why.")
@json_option
def pause(name: str, reason: str, as_json: bool) -> None:
    """Stop the schedule of the repository NAME. What runs goes on, and `sync` still works."""
    _print_state(run_async(_switch(name, reason)), as_json)


@repos.command()
@click.argument("name", shell_complete=repository_names)
@json_option
def resume(name: str, as_json: bool) -> None:
    """Let the schedule of the repository NAME go on."""
    _print_state(run_async(_switch(name, None)), as_json)


def _print_state(overview: Overview, as_json: bool) -> None:
    if as_json:
        print_json(overview.as_json())
        return
    due = f", next due {until(overview.next_due_at)}" if overview.next_due_at else ""
    click.echo(f"{visible(overview.name)}: {overview.state}{due}")


async def _add(definition: dict[str, Any]) -> RepositoryDetail:
    from reposync.app.application import open_application
    from reposync.catalog.overview import repository_detail
    from reposync.catalog.registration import add_repository

    async with open_application(settings()) as app:
        row = await add_repository(app, definition)
        return (await repository_detail(app, row.name))[0]


async def _remove(name: str) -> tuple[Run, dict[str, Any]]:
    from reposync.api.documents import run_documents
    from reposync.app.application import open_application
    from reposync.catalog.registration import remove_repository
    from reposync.cli.person import person

    async with open_application(settings(), with_engine=True) as app:
        run = await remove_repository(app, name, asked_by=person())
        return run, (await run_documents(app.runs, [run]))[0]


async def _switch(name: str, reason: str | None) -> RepositoryDetail:
    from reposync.app.application import open_application
    from reposync.catalog.overview import repository_detail
    from reposync.catalog.registration import pause_repository, resume_repository
    from reposync.cli.person import person

    async with open_application(settings()) as app:
        row = await (pause_repository(app, name, reason, by=person()) if reason else resume_repository(app, name))
        return (await repository_detail(app, row.name))[0]


async def _detail(name: str) -> RepositoryDetail:
    from reposync.app.application import open_application
    from reposync.catalog.overview import repository_detail

    async with open_application(settings()) as app:
        return (await repository_detail(app, name))[0]


async def _load() -> list[Overview]:
    from reposync.app.application import open_application
    from reposync.catalog.overview import overviews

    async with open_application(settings()) as app:
        return await overviews(app.repositories, app.manifests, app.runs)


def _print_table(overviews: list[Overview]) -> None:
    from rich.table import Table
    from rich.text import Text

    any_failed = any(each.failed for each in overviews)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("name", "source", "state", "schedule", "next due", "last sync", "commit"):
        table.add_column(title, overflow="fold")
    for title in ("files", *(("failed",) if any_failed else ()), "chunks"):
        table.add_column(title, justify="right")
    table.add_column("last run")
    for each in overviews:
        table.add_row(
            Text(visible(each.name)),
            Text(visible(each.location)),
            each.state,
            each.schedule or "by hand",
            until(each.next_due_at),
            ago(each.last_sync_at),
            short(each.last_commit),
            f"{each.files:,}",
            *((Text(f"{each.failed:,}", "bold red" if each.failed else ""),) if any_failed else ()),
            f"{each.chunks:,}",
            each.last_status or "-",
        )
    table_console().print(table)


def _failed(each: Overview) -> str:
    return click.style(f", {each.failed:,} failed: the index is older there", fg="red") if each.failed else ""


def _lines(each: Overview) -> list[tuple[str, Any]]:
    return [
        ("name", visible(each.name)),
        ("source", visible(each.location)),
        ("registered", f"in {visible(each.origin_file)}" if each.origin_file else f"by {each.origin}"),
        ("branch", visible(each.branch) if each.branch else "the default branch"),
        ("collection", each.collection),
        ("schedule", each.schedule or "by hand"),
        ("state", each.state + (f": {visible(each.paused_reason)}" if each.paused_reason else "")),
        ("next due", f"{each.next_due_at:%Y-%m-%d %H:%M:%S} UTC" if each.next_due_at else "-"),
        ("last sync", ago(each.last_sync_at)),
        ("commit", each.last_commit or "-"),
        ("files", f"{each.files:,} indexed, {each.skipped:,} skipped{_failed(each)}"),
        ("chunks", f"{each.chunks:,}"),
        ("last run", each.last_status or "-"),
        *([("why", visible(each.last_error))] if each.last_error else []),
    ]
