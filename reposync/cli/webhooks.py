"""`reposync webhooks`: install the webhooks by which GitLab reports pushes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reposync.cli.completion import repository_names
from reposync.cli.group import Group
from reposync.cli.output import json_option, print_json, visible
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from pydantic import SecretStr

    from reposync.app.application import Application
    from reposync.app.webhook_setup import HookReport, HookSite

F = TypeVar("F", bound=Callable[..., Any])

WORDS = {
    "created": ("created", "would be created"),
    "updated": ("updated", "would be updated"),
    "unchanged": ("unchanged", "unchanged"),
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
    """Install the webhooks by which GitLab reports pushes.

    A push then starts a sync at once. The schedule stays active: GitLab does not guarantee to report every push.
    """


@webhooks.command()
@_which
@_url
@_dry_run
@json_option
def install(url: str, dry_run: bool, as_json: bool, **which: Any) -> None:
    """Create the webhooks of the projects of repositories NAME, of all repositories, or of a group. Safe to repeat: a
    hook with an outdated address or secret is updated.

    The secret is `webhook_secret`, `webhook_signing` or both of the server in the registry file.
    """
    from reposync.app.webhook_setup import endpoint, is_open

    address = endpoint(url)
    if is_open(address):
        click.echo("warning: over http:// the secret and the pushes can be read on their way.", err=True)
    _print(run_async(_install(address, dry_run, **which)), address, dry_run, as_json)


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
