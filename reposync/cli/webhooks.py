"""`reposync webhooks`: install the webhooks by which GitLab reports pushes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from reposync.cli.commands import Group, json_option, repository_names
from reposync.cli.output import print_json
from reposync.cli.startup import run_with_app
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from pydantic import SecretStr

    from reposync.app.application import Application
    from reposync.app.webhook_setup import HookReport, HookSite

RESULTS = {
    "created": ("created", "would be created"),
    "updated": ("updated", "would be updated"),
    "unchanged": ("unchanged", "unchanged"),
}


@click.group(cls=Group)
def webhooks() -> None:
    """Install the webhooks by which GitLab reports pushes.

    A push then starts a sync at once. The schedule stays active: GitLab does not guarantee to report every push.
    """


@webhooks.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=repository_names)
@click.option("--group", metavar="GROUP", help="The group's own hook, for all of its projects (GitLab Premium).")
@click.option("--gitlab", metavar="SERVER", help="With --group: the server's name in the registry file.")
@click.option(
    "--token-variable",
    metavar="NAME",
    help="Environment variable with a token for this command: it needs the scope api; the daemon's does not.",
)
@click.option("--url", required=True, metavar="URL", help="Where GitLab reaches reposync: https://reposync.example.com")
@click.option("--dry-run", is_flag=True, help="Only report what would be done.")
@json_option
def install(
    names: tuple[str, ...],
    group: str | None,
    gitlab: str | None,
    token_variable: str | None,
    url: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create the webhooks of the projects of repositories NAME, of all repositories, or of a group. Safe to repeat: a
    hook with an outdated address or secret is updated.

    The secret is `webhook_secret`, `webhook_signing` or both of the server in the registry file.
    """
    from reposync.app.webhook_setup import endpoint, is_open

    address, token = endpoint(url), _token(token_variable)
    if is_open(address):
        click.echo("warning: over http:// the secret and the pushes are sent unencrypted.", err=True)

    async def act(app: Application) -> list[HookReport]:
        from reposync.app.webhook_setup import install

        return await install(await _sites(app, names, group, gitlab), address, token=token, dry_run=dry_run)

    reports = run_with_app(act)
    if as_json:
        print_json([each.as_json() for each in reports])
    elif not reports:
        click.echo("No project of a GitLab server is registered.")
    _print_results(reports, dry_run, quiet=as_json)


def _print_results(reports: list[HookReport], dry_run: bool, *, quiet: bool) -> None:
    """Exit code 1 if any hook failed."""
    from reposync.cli.main import report

    for each in reports:
        if each.error is not None:
            report(each.error)
        elif not quiet:
            about = f" ({', '.join(map(escape_unprintable, each.site.repositories))})" if each.site.repositories else ""
            click.echo(f"{each.site.place}{about}: {RESULTS[each.done][dry_run]}")
    if any(each.error is not None for each in reports):
        sys.exit(1)


async def _sites(app: Application, names: tuple[str, ...], group: str | None, gitlab: str | None) -> list[HookSite]:
    from reposync.app.webhook_setup import group_site, project_sites
    from reposync.errors import UsageError

    if group is None:
        if gitlab is not None:
            raise UsageError("--gitlab requires --group.")
        return await project_sites(app, names)
    if names:
        raise UsageError("Name either repositories or a --group: the hook of a group is for all of its projects.")
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
