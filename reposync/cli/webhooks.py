"""`reposync webhooks`: the hooks by which GitLab tells of pushes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reposync.cli.completion import repository_names
from reposync.cli.group import Group
from reposync.cli.output import json_option, print_json, table_console, visible
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from pydantic import SecretStr

    from reposync.app.application import Application
    from reposync.app.webhook_setup import FoundHook, HookReport, HookSite

F = TypeVar("F", bound=Callable[..., Any])

WORDS = {
    "created": ("made", "would be made"),
    "updated": ("changed", "would be changed"),
    "unchanged": ("is as it should be", "is as it should be"),
    "removed": ("removed", "would be removed"),
    "none": ("there is none at this address", "there is none at this address"),
}


def _which(command: F) -> F:
    """The options that say where, and as whom."""
    for option in (
        click.option(
            "--token-variable",
            metavar="NAME",
            help="Environment variable with a token for this command: it needs the scope api; the daemon's does not.",
        ),
        click.option("--gitlab", metavar="SERVER", help="With --group: the server's name in the registry file."),
        click.option(
            "--group", metavar="GROUP", help="The group's own hook, for all of its projects (GitLab Premium)."
        ),
        click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=repository_names),
    ):
        command = option(command)
    return command


_url = click.option(
    "--url", required=True, metavar="URL", help="Where GitLab reaches reposync: https://reposync.example.com"
)
_dry_run = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


@click.group(cls=Group)
def webhooks() -> None:
    """The hooks by which GitLab tells of pushes: install, list, remove.

    A push then starts a sync at once. The schedule goes on beside it: GitLab does not promise to tell of every push.
    """


@webhooks.command()
@_which
@_url
@_dry_run
@json_option
def install(url: str, dry_run: bool, as_json: bool, **which: Any) -> None:
    """Make the hooks of the projects of repositories NAME, or of all, or of a group. Repeating it changes nothing that
    is right, and renews what is not: another address, another secret.

    The secret is `webhook_secret`, `webhook_signing` or both of the server in the registry file.
    """
    from reposync.app.webhook_setup import endpoint, is_open

    address = endpoint(url)
    if is_open(address):
        click.echo("warning: over http:// the secret and the pushes can be read on their way.", err=True)
    _print(run_async(_install(address, dry_run, **which)), address, dry_run, as_json)


@webhooks.command()
@_which
@_url
@_dry_run
@json_option
def remove(url: str, dry_run: bool, as_json: bool, **which: Any) -> None:
    """Take the hooks at that address away from the projects of repositories NAME, or of all, or from a group."""
    from reposync.app.webhook_setup import endpoint

    address = endpoint(url)
    _print(run_async(_remove(address, dry_run, **which)), address, dry_run, as_json)


@webhooks.command("list")
@_which
@json_option
def list_(as_json: bool, **which: Any) -> None:
    """The hooks that lead to a reposync, this one or another, and whether GitLab has switched them off.

    \b
    secret   current  made with the secrets that the registry file has now
             other    made with others: `install` renews it, if it is this reposync's
             unknown  not made by `install`
    """
    found, failures = run_async(_list(**which))
    if as_json:
        print_json([each.as_json() for each in found])
    elif found:
        _print_table(found)
    elif not failures:
        click.echo("No webhook leads to a reposync. `reposync webhooks install --url ...` makes them.")
    _end(failures)


def _print(reports: list[HookReport], url: str, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json([each.as_json() for each in reports])
    else:
        if not reports:
            click.echo("No project of a GitLab server is registered.")
        for each in reports:
            if each.error is None:
                about = f" ({', '.join(map(visible, each.site.repositories))})" if each.site.repositories else ""
                click.echo(f"{each.site.place}{about}: {WORDS[each.done][dry_run]}")
    _end([each for each in reports if each.error is not None])


def _end(failures: list[HookReport]) -> None:
    """What went wrong, a place each; exit code 1 where anything did."""
    from reposync.cli.main import report

    for each in failures:
        if each.error is not None:
            report(each.error)
    if failures:
        sys.exit(1)


def _print_table(found: list[FoundHook]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("gitlab", "where", "hook", "branch", "address", "status", "secret"):
        table.add_column(title, overflow="fold")
    for each in found:
        hook = each.hook
        status = hook.status or "-"
        table.add_row(
            each.site.server.name,
            Text(visible(str(each.site.place))),
            str(hook.id),
            Text(visible(hook.branch or "any")),
            Text(visible(hook.url)),
            status if hook.push_events else "no push events",
            each.secret,
        )
    table_console().print(table)


async def _sites(app: Application, names: tuple[str, ...], group: str | None, gitlab: str | None) -> list[HookSite]:
    from reposync.app.webhook_setup import group_site, project_sites
    from reposync.errors import UsageError

    if group is None:
        if gitlab is not None:
            raise UsageError("--gitlab says where a --group is.")
        return await project_sites(app, names)
    if names:
        raise UsageError("Either repositories or a --group: a group's hook is for all of its projects.")
    return [group_site(app, group, gitlab)]


def _token(variable: str | None) -> SecretStr | None:
    from pydantic import SecretStr

    from reposync.errors import UsageError

    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise UsageError(f"The variable {variable} is not set, or empty.", remedy="Give its name, not the token.")
    return SecretStr(value)


async def _install(
    url: str, dry_run: bool, names: tuple[str, ...], group: str | None, gitlab: str | None, token_variable: str | None
) -> list[HookReport]:
    from reposync.app.application import open_application
    from reposync.app.webhook_setup import install

    token = _token(token_variable)
    async with open_application(settings()) as app:
        return await install(await _sites(app, names, group, gitlab), url, token=token, dry_run=dry_run)


async def _remove(
    url: str, dry_run: bool, names: tuple[str, ...], group: str | None, gitlab: str | None, token_variable: str | None
) -> list[HookReport]:
    from reposync.app.application import open_application
    from reposync.app.webhook_setup import remove

    token = _token(token_variable)
    async with open_application(settings()) as app:
        return await remove(await _sites(app, names, group, gitlab), url, token=token, dry_run=dry_run)


async def _list(
    names: tuple[str, ...], group: str | None, gitlab: str | None, token_variable: str | None
) -> tuple[list[FoundHook], list[HookReport]]:
    from reposync.app.application import open_application
    from reposync.app.webhook_setup import found_hooks

    token = _token(token_variable)
    async with open_application(settings()) as app:
        return await found_hooks(await _sites(app, names, group, gitlab), token=token)
