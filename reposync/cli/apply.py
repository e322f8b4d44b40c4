"""`reposync apply`: the registry file becomes the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.output import json_option, print_json, visible
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from reposync.catalog.apply import Change, Plan

_SIGNS = {"added": ("+", "green"), "changed": ("~", "yellow"), "gone": ("-", "red")}


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@click.option("--take-over", is_flag=True, help="Take what the file claims and others have, too.")
@json_option
def apply(file: Path | None, dry_run: bool, take_over: bool, as_json: bool) -> None:
    """Make what the registry FILE says the catalogue, which all pods and commands go by.

    If no FILE is named, it is the one that REPOSYNC_CONFIG names, or repositories.yaml of this folder. What leaves the
    file is switched off: its index and its history stay. `serve` applies its file by itself, at the start and when it
    changes; only this command applies a content again that a later one has superseded.
    """
    plan, written = run_async(_apply(file, dry_run=dry_run, take_over=take_over))
    if as_json:
        print_json(plan.as_json() | {"applied": written})
        return
    for change in plan.changes:
        _print_change(change)
    for conflict in plan.conflicts:
        click.secho(f"! {visible(conflict.what)} belongs to {visible(conflict.theirs)}", fg="red")
    counts = [(kind, sum(each.kind == kind for each in plan.changes)) for kind in _SIGNS]
    found = ", ".join(f"{number:,} {kind}" for kind, number in counts if number) or "no change"
    done = "applied" if written else "would be applied"
    click.echo(f"{visible(plan.path)} ({plan.digest[:12]}): {done}: {found}; {plan.unchanged:,} unchanged")
    if plan.standing == "superseded" and not written:
        click.echo("  This content was superseded by a later one; applying it sets the catalogue back.")
    if plan.conflicts:
        plan.refuse_conflicts()


async def _apply(file: Path | None, *, dry_run: bool, take_over: bool) -> tuple[Plan, bool]:
    import asyncio

    from reposync.catalog.apply import Applying
    from reposync.cli.person import person
    from reposync.cli.state import open_state
    from reposync.config.loading import load_registry

    environment = settings()
    loaded = await asyncio.to_thread(load_registry, file or environment.config_path)
    async with open_state() as database:
        applying = Applying(database, loaded, by=person())
        plan = await applying.plan(take_over=take_over)
        if dry_run or plan.conflicts:
            return plan, False
        return plan, await applying.write(plan, on_request=True)


def _print_change(change: Change) -> None:
    sign, colour = _SIGNS[change.kind]
    click.secho(f"{sign} {visible(change.what)}", fg=colour)
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
            return visible(raw)
        case {"file": str(path)}:
            return f"(in the clear in {visible(path)})"
        case dict():
            return ", ".join(f"{visible(str(key))} {_shown(each)}" for key, each in value.items())
        case list():
            return ", ".join(map(_shown, value)) or "(none)"
        case _:
            return visible(str(value))
