"""`reposync repos`: the registered repositories."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, json_option, repository_names
from reposync.cli.output import Cell, print_fields, print_json, print_table, short
from reposync.cli.startup import current_user, run_with_app, run_with_database
from reposync.words import ago, duration, escape_unprintable, until

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.catalog.overview import Overview, RepositoryDetail
    from reposync.store.database import Database
    from reposync.store.run import Run

MISSED_TICKS_SHOWN = 5


@click.group(cls=Group, aliases={"delete": "repos remove", "rm": "repos remove"})
def repos() -> None:
    """The registered repositories: list, show, add, remove, pause, resume."""


@repos.command("list")
@json_option
def list_(as_json: bool) -> None:
    """All repositories: those of registry files and groups, and those that were synced by path or URL."""

    async def load(database: Database) -> list[Overview]:
        from reposync.catalog.overview import overviews
        from reposync.store.manifest import Manifests
        from reposync.store.repositories import Repositories
        from reposync.store.runs import Runs

        return await overviews(Repositories(database), Manifests(database), Runs(database))

    found = run_with_database(load)
    if as_json:
        print_json([each.as_json() for each in found])
    elif not found:
        click.echo("No repository yet. `reposync sync .` adds the one of this folder.")
    else:
        _print_table(found)


@repos.command()
@click.argument("name", shell_complete=repository_names)
@json_option
def show(name: str, as_json: bool) -> None:
    """One repository: its source, what is indexed, and its latest run."""
    detail = run_with_app(lambda app: _detail(app, name))
    if as_json:
        print_json(detail.as_json())
        return
    print_fields(_fields(detail), 14)
    for each in detail.missed_ticks[:MISSED_TICKS_SHOWN]:
        late = duration(each.late_seconds)
        click.echo(f"{'missed:':<14}tick of {each.scheduled_for:%Y-%m-%d %H:%M:%S} UTC, noticed {late} late")


@repos.command()
@click.argument("name")
@click.option("--gitlab", metavar="SERVER", help="Name of a GitLab server in the registry file; with --project.")
@click.option("--project", metavar="GROUP/PROJECT", help="Path of the project on that server.")
@click.option("--git", metavar="URL", help="https:// address of a public git repository.")
@click.option("--path", metavar="FOLDER", help="A git repository on this machine.")
@click.option("--branch", metavar="BRANCH", help="Default: the default branch.")
@click.option("--schedule", metavar="CRON", help="Crontab, @daily, words such as 'every 6 hours', or never.")
@click.option("--timezone", metavar="ZONE", help="IANA time zone of the schedule.")
@click.option("--collection", metavar="NAME", help="Qdrant collection.")
@click.option("--include", metavar="PATTERN", multiple=True, help="Only files that match these gitignore patterns.")
@click.option("--exclude", metavar="PATTERN", multiple=True, help="No files that match these gitignore patterns.")
@json_option
def add(name: str, as_json: bool, **options: Any) -> None:
    """Register the repository NAME in addition to those of registry files. A running `serve` syncs it within seconds,
    unless its schedule is never: then it is synced on request only."""
    given = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items() if value}

    async def act(app: Application) -> RepositoryDetail:
        from reposync.catalog.targets import add_repository

        return await _detail(app, (await add_repository(app.catalog, {"name": name, **given})).name)

    overview = run_with_app(act)
    if as_json:
        print_json(overview.as_json())
    else:
        click.echo(f"{escape_unprintable(name)}: registered, {overview.schedule}{_next_due(overview)}")


@repos.command()
@click.argument("name", shell_complete=repository_names)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
@json_option
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Remove the repository NAME and its index. Its history stays."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"There is no terminal for the question. --yes removes {escape_unprintable(name)} and its index."
            )
        click.confirm(f"Remove {escape_unprintable(name)} and its index?", abort=True, err=True)

    async def act(app: Application) -> tuple[Run, dict[str, Any]]:
        from reposync.api.documents import run_documents
        from reposync.app.command_runs import remove_repository

        run = await remove_repository(app, name, asked_by=current_user())
        return run, (await run_documents(app.runs, [run]))[0]

    run, document = run_with_app(act, with_engine=True)
    if as_json:
        print_json(document)
    elif run.status == "completed":
        click.echo(f"{escape_unprintable(name)}: removed, with {run.files_deleted:,} indexed files")
        if run.error_message:
            click.echo(f"  {escape_unprintable(run.error_message)}")
    else:
        click.echo(f"{escape_unprintable(name)}: {run.status}: {escape_unprintable(run.error_message or '')}")
    if run.status != "completed":
        sys.exit(1)


@repos.command()
@click.argument("name", shell_complete=repository_names)
@click.option("--reason", default="Paused by command.", show_default=True, help="Displayed as the reason of the pause.")
@json_option
def pause(name: str, reason: str, as_json: bool) -> None:
    """Stop the schedule of the repository NAME. Its current run continues, and `sync` still works."""

    async def act(app: Application) -> RepositoryDetail:
        return await _detail(app, (await app.repositories.pause(name, reason, by=current_user())).name)

    _print_state(run_with_app(act), as_json)


@repos.command()
@click.argument("name", shell_complete=repository_names)
@json_option
def resume(name: str, as_json: bool) -> None:
    """Start the schedule of the repository NAME again."""

    async def act(app: Application) -> RepositoryDetail:
        return await _detail(app, (await app.repositories.resume(name)).name)

    _print_state(run_with_app(act), as_json)


async def _detail(app: Application, name: str) -> RepositoryDetail:
    from reposync.catalog.overview import repository_detail
    from reposync.store.ticks import Ticks

    return (await repository_detail(app.repositories, app.manifests, app.runs, Ticks(app.database), name))[0]


def _print_state(overview: Overview, as_json: bool) -> None:
    if as_json:
        print_json(overview.as_json())
    else:
        click.echo(f"{escape_unprintable(overview.name)}: {overview.state}{_next_due(overview)}")


def _next_due(overview: Overview) -> str:
    return f", next due {until(overview.next_due_at)}" if overview.next_due_at else ""


def _print_table(overviews: list[Overview]) -> None:
    any_failed = any(each.failed for each in overviews)
    titles = ["name", "source", "state", "schedule", "next due", "last sync", "commit", ">files", ">chunks", "last run"]
    if any_failed:
        titles.insert(8, ">failed")

    def cells(each: Overview) -> Iterator[Cell]:
        yield from (each.name, each.location, each.state, each.schedule or "on request only")
        yield from (until(each.next_due_at), ago(each.last_sync_at), short(each.last_commit), f"{each.files:,}")
        if any_failed:
            yield f"{each.failed:,}", "bold red" if each.failed else ""
        yield from (f"{each.chunks:,}", each.last_status or "-")

    print_table(titles, (list(cells(each)) for each in overviews), fold=titles[:7])


def _fields(each: RepositoryDetail) -> Iterator[tuple[str, Any]]:
    failed = click.style(f", {each.failed:,} failed: outdated in the index", fg="red") if each.failed else ""
    yield "name", escape_unprintable(each.name)
    yield "source", escape_unprintable(each.location)
    yield "registered", f"in {escape_unprintable(each.origin_file)}" if each.origin_file else f"by {each.origin}"
    yield "branch", escape_unprintable(each.branch) if each.branch else "the default branch"
    yield "collection", each.collection
    yield "schedule", each.schedule or "on request only"
    yield "state", each.state + (f": {escape_unprintable(each.paused_reason)}" if each.paused_reason else "")
    yield "next due", f"{each.next_due_at:%Y-%m-%d %H:%M:%S} UTC" if each.next_due_at else "-"
    yield "last sync", ago(each.last_sync_at)
    yield "commit", each.last_commit or "-"
    yield "files", f"{each.files:,} indexed, {each.skipped:,} skipped{failed}"
    yield "chunks", f"{each.chunks:,}"
    yield "last run", each.last_status or "-"
    if each.last_error:
        yield "why", escape_unprintable(each.last_error)
