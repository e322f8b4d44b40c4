"""`reposync groups`: the GitLab groups whose projects register themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reposync import operations
from reposync.cli.commands import Group
from reposync.cli.output import Result
from reposync.cli.performing import Performer, performs
from reposync.cli.tables import table, wide_option
from reposync.words import escape_unprintable, until

if TYPE_CHECKING:
    from reposync.operations.groups import GroupDetail

groups = Group("groups")


@groups.command("list")
@wide_option
@performs
def list_(perform: Performer) -> Result:
    """All groups: those of the registry file, and those that were added by `groups set` or over HTTP."""
    found = perform(operations.groups.list_groups)
    if not found.items:
        return Result(found, ["No groups are registered."])
    return Result(found, [table(list(map(_row, found.items)), "group", "repositories", "next listing")])


def _row(group: GroupDetail) -> dict[str, Any]:
    return {
        "group": group.group,
        "gitlab": group.gitlab,
        "from": "registry file" if group.origin == "config" else group.origin,
        "repositories": group.repositories,
        "next listing": until(group.next_listing_at),
    }


@groups.command("set")
@click.argument("group")
@click.option("--gitlab", metavar="SERVER", required=True, help="Name of a GitLab server in the registry file.")
@click.option("--include", metavar="PATTERN", multiple=True, help="Only projects whose paths match.")
@click.option("--exclude", metavar="PATTERN", multiple=True, help="No projects whose paths match.")
@click.option("--archived", is_flag=True, help="Register archived projects too.")
@click.option("--discover", metavar="CRON", help="When to list the projects of the group.")
@click.option("--schedule", metavar="CRON", help="When each project is synced: crontab, words, or never.")
@click.option("--timezone", metavar="ZONE", help="IANA time zone of both schedules.")
@click.option("--collection", metavar="NAME", help="Qdrant collection of the projects.")
@performs
def set_(perform: Performer, /, group: str, **options: Any) -> Result:
    """Register all projects of GROUP, the path of a GitLab group, in addition to those of the registry file. Repeated,
    the command replaces the settings of GROUP as a whole."""
    definition = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items() if value}
    put = perform(operations.groups.put_group, operations.groups.NewGroup(definition), group=group)
    return Result(put, [f"{escape_unprintable(group)}: registered, next listing {until(put.next_listing_at)}"])


@groups.command()
@click.argument("group")
@click.option("--gitlab", metavar="SERVER", help="Required if several GitLab servers have a group GROUP.")
@performs
def remove(perform: Performer, group: str, gitlab: str | None) -> Result:
    """Remove GROUP, which was added by `groups set` or over HTTP. Its repositories are deactivated; their indexes and
    history stay."""
    removed = perform(operations.groups.remove_group, {"gitlab": gitlab}, group=group)
    count = len(removed.deactivated)
    what = f"{count:,} repositor{'y is' if count == 1 else 'ies are'} not synced any more"
    return Result(removed, [f"{escape_unprintable(group)}: removed; {what}"])
