"""`reposync apply`: write the registry file to the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import json_option
from reposync.cli.output import print_json
from reposync.cli.startup import current_user, run_with_database, settings
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.catalog.apply import Change, Plan
    from reposync.store.database import Database

_SIGNS = {"added": ("+", "green"), "changed": ("~", "yellow"), "gone": ("-", "red")}


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@click.option("--take-over", is_flag=True, help="Also take over names that belong to a different file or person.")
@json_option
def apply(file: Path | None, dry_run: bool, take_over: bool, as_json: bool) -> None:
    """Write the registry FILE to the catalogue, which all pods and commands use.

    Default for FILE: the file that REPOSYNC_CONFIG names, or repositories.yaml in this folder. Repositories that leave
    the file are deactivated: their index and history stay. `serve` applies its file on start and when it changes; only
    this command applies a content again that a later one has superseded.
    """
    from reposync.config.loading import load_registry

    loaded = load_registry(file or settings().config_path)

    async def act(database: Database) -> tuple[Plan, bool]:
        from reposync.catalog.apply import Applying

        applying = Applying(database, loaded, by=current_user())
        plan = await applying.plan(take_over=take_over)
        if dry_run or plan.conflicts:
            return plan, False
        return plan, await applying.write(plan, on_request=True)

    plan, written = run_with_database(act)
    if as_json:
        print_json(plan.as_json() | {"applied": written})
        return
    for change in plan.changes:
        _print_change(change)
    for conflict in plan.conflicts:
        click.secho(f"! {escape_unprintable(conflict.what)} belongs to {escape_unprintable(conflict.theirs)}", fg="red")
    counts = [(kind, sum(each.kind == kind for each in plan.changes)) for kind in _SIGNS]
    found = ", ".join(f"{number:,} {kind}" for kind, number in counts if number) or "no change"
    done = "applied" if written else "would be applied"
    click.echo(f"{escape_unprintable(plan.path)} ({plan.digest[:12]}): {done}: {found}; {plan.unchanged:,} unchanged")
    if plan.standing == "superseded" and not written:
        click.echo("  This content was superseded by a later one; applying it reverts the catalogue.")
    if plan.conflicts:
        plan.refuse_conflicts()


def _print_change(change: Change) -> None:
    sign, colour = _SIGNS[change.kind]
    click.secho(f"{sign} {escape_unprintable(change.what)}", fg=colour)
    for key, (before, after) in change.keys.items():
        if change.kind == "changed":
            click.echo(f"    {key}: {_shown(before)} -> {_shown(after)}")
        elif after not in (None, [], {}):
            click.echo(f"    {key}: {_shown(after)}")


def _shown(value: Any) -> str:
    match value:
        case None:
            return "(none)"
        case {"variable": str(raw)} | {"address": str(raw)}:
            return escape_unprintable(raw)
        case {"file": str(path)}:
            return f"(in the clear in {escape_unprintable(path)})"
        case dict():
            return ", ".join(f"{escape_unprintable(str(key))} {_shown(each)}" for key, each in value.items())
        case list():
            return ", ".join(map(_shown, value)) or "(none)"
        case _:
            return escape_unprintable(str(value))
