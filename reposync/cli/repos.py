"""`reposync repos`: the registered repositories."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, current_user, prints, run_with_app, with_app, with_database
from reposync.cli.output import NO_REPOSITORY, Result, field_lines, short, table
from reposync.words import ago, escape_unprintable, next_attempt, until

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.catalog.overview import Overview, RepositoryDetail
    from reposync.store.database import Database
    from reposync.store.repository import Repository


repos = Group("repos")


@repos.command("list")
@with_database
async def list_(database: Database) -> Result:
    """All repositories: those of the registry file and of groups, and those that were synced by path or URL."""
    from reposync.catalog.overview import overviews
    from reposync.store.history import RunHistory
    from reposync.store.manifest import Manifests
    from reposync.store.repositories import Repositories

    found = await overviews(Repositories(database), Manifests(database), RunHistory(database))
    rows = table(list(map(_row, found)), fold=("name", "source", "schedule")) if found else NO_REPOSITORY
    return Result(found, [rows])


@repos.command()
@click.argument("name")
@with_app
async def show(app: Application, name: str) -> Result:
    """One repository: its source, what is indexed, and its latest run."""
    document = (await _detail(app, name)).as_json()
    return Result(document, field_lines(document))


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
@with_app
async def add(app: Application, /, name: str, **options: Any) -> Result:
    """Register the repository NAME in addition to those of the registry file. A running `serve` syncs it within
    seconds, unless its schedule is never: then it is synced on request only."""
    from reposync.catalog.targets import add_repository

    given = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items() if value}
    detail = await _detail(app, (await add_repository(app.catalog, {"name": name, **given})).name)
    return Result(detail.as_json(), [f"{escape_unprintable(name)}: registered, {detail.schedule}"])


@repos.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
@prints
def remove(name: str, yes: bool) -> Result:
    """Remove the repository NAME and its index. Its history stays."""
    shown = escape_unprintable(name)
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"There is no terminal for the question. --yes removes {shown} and its index.")
        click.confirm(f"Remove {shown} and its index?", abort=True, err=True)

    async def act(app: Application) -> Result:
        from reposync.api.documents import run_document
        from reposync.app.command_runs import remove_repository

        run = await remove_repository(app, name, asked_by=current_user())
        is_done = run.status == "completed"
        what = f"removed, with {run.files_deleted:,} indexed files" if is_done else run.status
        message = f". {escape_unprintable(run.error_message)}" if run.error_message else ""
        return Result(run_document(app.history, run), [f"{shown}: {what}{message}"], failed=not is_done)

    return run_with_app(act, with_engine=True)


@repos.command()
@click.argument("name")
@with_app
async def adopt(app: Application, name: str) -> Result:
    """Sync the project that was created again at the path of the repository NAME. The index stays until its first
    sync has ended."""
    from reposync.app.adoption import adopt_project

    former, row = await adopt_project(app, name)
    shown = escape_unprintable(row.name)
    detail = await _detail(app, row.name)
    line = f"{shown}: was project number {former}, is number {row.project_id} now; next: `reposync sync {shown}`"
    return Result(detail.as_json(), [line])


@repos.command()
@click.argument("name")
@click.option("--reason", default="Paused by command.", show_default=True, help="Displayed as the reason of the pause.")
@with_app
async def pause(app: Application, name: str, reason: str) -> Result:
    """Stop the schedule of the repository NAME. Its current run continues, and `sync` still works."""
    return await _state(app, await app.repositories.pause(name, reason, by=current_user()))


@repos.command()
@click.argument("name")
@with_app
async def resume(app: Application, name: str) -> Result:
    """Start the schedule of the repository NAME again."""
    return await _state(app, await app.repositories.resume(name))


async def _state(app: Application, row: Repository) -> Result:
    detail = await _detail(app, row.name)
    next_due = f", next due {until(detail.next_due_at)}" if detail.next_due_at else ""
    return Result(detail.as_json(), [f"{escape_unprintable(detail.name)}: {detail.state}{next_due}"])


async def _detail(app: Application, name: str) -> RepositoryDetail:
    from reposync.catalog.overview import repository_detail

    return (await repository_detail(app.repositories, app.manifests, app.history, name))[0]


def _row(each: Overview) -> dict[str, Any]:
    return {
        "name": each.name,
        "source": each.location,
        "state": each.state,
        "schedule": each.schedule or "on request only",
        "next due": until(each.next_due_at),
        "last sync": ago(each.last_sync_at)
        + (f", words only, {each.meaning_indexed:.0%} of meaning" if each.meaning_indexed is not None else ""),
        "commit": short(each.last_commit),
        **{"files": each.files, "failed": each.failed, "chunks": each.chunks},
        "last run": f"{each.last_status}, {next_attempt(each.next_attempt_at)}"
        if each.next_attempt_at
        else each.last_status,
    }
