"""`reposync repos`: the registered repositories."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from reposync import operations
from reposync.cli.commands import Group
from reposync.cli.completion import repository_names
from reposync.cli.descriptions import repository_lines
from reposync.cli.output import NO_REPOSITORY, Result, short
from reposync.cli.performing import Performer, performs
from reposync.cli.remote import server_option
from reposync.cli.tables import table, wide_option
from reposync.errors import FAILED, UsageError
from reposync.words import ago, escape_unprintable, next_attempt, until

IMPORTANT = ("name", "last run", "failed", "last sync", "state", "files", "next due", "schedule", "chunks", "commit")

repos = Group("repos")


@repos.command("list")
@wide_option
@server_option
@performs
def list_(perform: Performer) -> Result:
    """All repositories: those of the registry file and of groups, and those that were synced by path or URL."""
    page = perform.all_pages(operations.repositories.list_repositories)
    return Result(page, [table(list(map(_row, page.items)), *IMPORTANT) if page.items else NO_REPOSITORY])


@repos.command()
@click.argument("name", shell_complete=repository_names)
@performs
def show(perform: Performer, name: str) -> Result:
    """One repository: its source, what is indexed, its latest run, and what to do. --json has everything."""
    repository = perform(operations.repositories.get_repository, name=name)
    missed = [tick.scheduled_for for tick in repository.missed_ticks]
    return Result(repository, repository_lines(repository, missed))


def _changeable(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for what can be changed later."""
    patterns = "files that match these gitignore patterns."
    for option in (
        click.option("--exclude", metavar="PATTERN", multiple=True, help=f"No {patterns}"),
        click.option("--include", metavar="PATTERN", multiple=True, help=f"Only {patterns}"),
        click.option("--collection", metavar="NAME", help="Qdrant collection."),
        click.option("--timezone", metavar="ZONE", help="IANA time zone of the schedule."),
        click.option("--schedule", metavar="CRON", help="Crontab, @daily, words such as 'every 6 hours', or never."),
        click.option("--branch", metavar="BRANCH", help="Default: the default branch."),
    ):
        command = option(command)
    return command


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as keys of the registry file."""
    lists = {key: list(value) for key, value in options.items() if isinstance(value, tuple) and value}
    return {key: value for key, value in options.items() if isinstance(value, str)} | lists


@repos.command()
@click.argument("name")
@click.option("--gitlab", metavar="SERVER", help="Name of a GitLab server in the registry file; with --project.")
@click.option("--project", metavar="GROUP/PROJECT", help="Path of the project on that server.")
@click.option("--git", metavar="URL", help="https:// address of a public git repository.")
@click.option("--path", metavar="FOLDER", help="A git repository on this machine.")
@_changeable
@performs
def add(perform: Performer, /, name: str, **options: Any) -> Result:
    """Register the repository NAME in addition to those of the registry file. A running `serve` syncs it within
    seconds, unless its schedule is never: then it is synced on request only."""
    definition = {"name": name, **_given(options)}
    if "path" in definition:
        definition["path"] = str(Path(definition["path"]).expanduser().absolute())
    repository = perform(operations.repositories.register, operations.repositories.NewRepository(definition))
    return Result(repository, [f"{escape_unprintable(name)}: registered, {repository.schedule}"])


@repos.command("set")
@click.argument("name", shell_complete=repository_names)
@_changeable
@performs
def set_(perform: Performer, /, name: str, **options: Any) -> Result:
    """Change the repository NAME, which was added by `repos add` or over HTTP. An empty value restores the default. The
    others are changed in the registry file."""
    changes = {key: None if value in ("", [""]) else value for key, value in _given(options).items()}
    if not changes:
        raise click.UsageError("Nothing to change: name an option.")
    return _changed(perform, name, changes)


@repos.command()
@click.argument("name", shell_complete=repository_names)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. Required without a terminal.")
@performs
def remove(perform: Performer, name: str, yes: bool) -> Result:
    """Remove the repository NAME and its index. Its history stays."""
    shown = escape_unprintable(name)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("There is no terminal for the question.", remedy=f"--yes removes {shown} and its index.")
        click.confirm(f"Remove {shown} and its index?", abort=True, err=True)
    run = perform.follow(perform.request(operations.repositories.remove, name=name)).summary
    is_done = run.status == "completed"
    what = f"removed, with {run.files_deleted:,} indexed files" if is_done else run.status
    message = f". {escape_unprintable(run.error_message)}" if run.error_message else ""
    return Result(run, [f"{shown}: {what}{message}"], exit_code=0 if is_done else FAILED)


@repos.command()
@click.argument("name", shell_complete=repository_names)
@performs
def adopt(perform: Performer, name: str) -> Result:
    """Sync the project that was created again at the path of the repository NAME. The index stays until its first
    sync has ended."""
    adoption = perform(operations.repositories.adopt, name=name)
    shown, now = escape_unprintable(name), adoption.repository.project_id
    line = f"{shown}: was project number {adoption.former_project_id}, is number {now} now; "
    return Result(adoption, [f"{line}next: `reposync sync {shown}`"])


@repos.command()
@click.argument("name", shell_complete=repository_names)
@click.option("--reason", default="Paused by command.", show_default=True, help="Displayed as the reason of the pause.")
@performs
def pause(perform: Performer, name: str, reason: str) -> Result:
    """Stop the schedule of the repository NAME. Its current run continues, and `sync` still works."""
    return _changed(perform, name, {"is_active": False, "paused_reason": reason})


@repos.command()
@click.argument("name", shell_complete=repository_names)
@performs
def resume(perform: Performer, name: str) -> Result:
    """Start the schedule of the repository NAME again."""
    return _changed(perform, name, {"is_active": True})


def _changed(perform: Performer, name: str, changes: dict[str, Any]) -> Result:
    change = operations.repositories.Change(changes)
    repository = perform(operations.repositories.change, change, name=name)
    next_due = f", next due {until(repository.next_due_at)}" if repository.next_due_at else ""
    return Result(repository, [f"{escape_unprintable(repository.name)}: {repository.state}{next_due}"])


def _row(repository: operations.repositories.Overview) -> dict[str, Any]:
    meaning = ""
    if repository.meaning_indexed is not None:
        meaning = f", words only, {repository.meaning_indexed:.0%} of meaning"
    return {
        "name": repository.name,
        "source": repository.location,
        "state": repository.state,
        "schedule": repository.schedule or "on request only",
        "next due": until(repository.next_due_at),
        "last sync": f"{ago(repository.last_sync_at)}{meaning}",
        "commit": short(repository.last_commit),
        **{"files": repository.files, "failed": repository.failed, "chunks": repository.chunks},
        "last run": f"{repository.last_status}, {next_attempt(repository.next_attempt_at)}"
        if repository.next_attempt_at
        else repository.last_status,
    }
