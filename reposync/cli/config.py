"""`reposync config`: the registry file, checked, and its schema. `reposync apply`: write the file to the catalogue."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, current_user, settings, with_database
from reposync.cli.output import Result, prints, say
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.catalog.apply import Plan
    from reposync.config.document import Problem
    from reposync.store.database import Database

_SIGNS = {"added": ("+", "green"), "changed": ("~", "yellow"), "gone": ("-", "red")}
_FILE = click.argument("file", required=False, type=click.Path(path_type=Path))


config = Group("config")


@config.command()
@_FILE
@prints
def check(file: Path | None) -> Result:
    """Check the registry FILE (default: the one in use).

    All problems are listed at once, each with file, line and column; the exit code is then 2.
    """
    from reposync.config.document import RegistryErrors
    from reposync.config.loading import load_registry

    try:
        # With a file on the command line, the check does not depend on the settings of this machine.
        loaded = load_registry(file or settings().config_path, os.environ)
    except RegistryErrors as error:
        click.echo("\n".join(map(str, error.problems)), err=True)
        return Result(_report(file, errors=error.problems), [], exit_code=error.exit_code)
    registry = loaded.registry
    counts = [f"{len(registry.repositories)} repositories" if len(registry.repositories) != 1 else "1 repository"]
    counts += [f"{len(registry.groups)} group{'s' * (len(registry.groups) > 1)}"] if registry.groups else []
    counts += [f"{len(registry.gitlab)} GitLab server{'s' * (len(registry.gitlab) > 1)}"] if registry.gitlab else []
    report = _report(loaded.path, warnings=loaded.warnings) | {"repositories": len(registry.repositories)}
    text = f"ok: {', '.join(counts)} in {loaded.path}" if loaded.path else "ok: no registry file, the defaults apply"
    return Result(report, [text], "\n".join(f"warning: {problem}" for problem in loaded.warnings) or None)


def _report(path: Path | None, errors: Sequence[Problem] = (), warnings: Sequence[Problem] = ()) -> dict[str, Any]:
    from dataclasses import asdict

    found = {"errors": list(map(asdict, errors)), "warnings": list(map(asdict, warnings))}
    return {"ok": not errors, "file": str(path) if path else None, **found}


@config.command()
def schema() -> None:
    """Print the JSON schema of the registry file (config/schema.json)."""
    from reposync.config.schema import registry_schema

    click.echo(registry_schema(), nl=False)


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@prints
def apply(file: Path | None, dry_run: bool) -> Result:
    """Write the registry FILE to the catalogue, which all pods and commands use. It replaces the one before as a whole.

    Default for FILE: the file that REPOSYNC_CONFIG names, or repositories.yaml in this folder. Repositories that leave
    the file are deactivated: their index and history stay. `serve` applies its file on start and when it changes; only
    this command applies a content again that a later one has superseded.
    """
    from reposync.config.loading import load_registry

    # Before the database: a file with errors changes nothing.
    environment = settings(bare_names=True)
    loaded = load_registry(file or environment.config_path)

    @with_database
    async def apply_or_plan(database: Database) -> Plan:
        from reposync.catalog.apply import Applying

        if environment.has_own_database or not dry_run:
            await database.upgrade()
        else:
            (await database.schema()).require(database.where)
        applying = Applying(database, loaded, by=current_user())
        return await (applying.plan() if dry_run else applying.apply(on_request=True))

    plan = apply_or_plan()
    document = plan.as_json()
    conflict = plan.conflict()
    if conflict is not None:
        conflict.details = document
        say(*_plan_lines(plan))
        raise conflict
    return Result(document, _plan_lines(plan))


def _plan_lines(plan: Plan) -> Iterator[str]:
    for change in plan.changes:
        sign, colour = _SIGNS[change.kind]
        yield click.style(f"{sign} {escape_unprintable(change.what)}", fg=colour)
        for key, (before, after) in change.keys.items():
            if change.kind == "changed":
                yield f"    {key}: {_shown(before)} -> {_shown(after)}"
            elif after not in (None, [], {}):
                yield f"    {key}: {_shown(after)}"
    for row in plan.conflicts:
        title, origin = escape_unprintable(row.title), escape_unprintable(row.origin_words)
        yield click.style(f"! {title} belongs to {origin}", fg="red")
    counts = [(kind, sum(each.kind == kind for each in plan.changes)) for kind in _SIGNS]
    found = ", ".join(f"{number:,} {kind}" for kind, number in counts if number) or "no change"
    done = "applied" if plan.applied else "would be applied"
    yield f"{escape_unprintable(plan.path)} ({plan.digest[:12]}): {done}: {found}; {plan.unchanged:,} unchanged"
    if plan.standing == "superseded" and not plan.applied:
        yield "  This content was superseded by a later one; applying it reverts the catalogue."


def _shown(value: Any) -> str:
    match value:
        case {"variable": str(raw)} | {"address": str(raw)}:
            return escape_unprintable(raw)
        case {"file": str(path)}:  # of an earlier version
            return f"(in the clear in {escape_unprintable(path)})"
        case dict():
            return ", ".join(f"{escape_unprintable(str(key))} {_shown(each)}" for key, each in value.items())
        case list():
            return ", ".join(map(_shown, value)) or "(none)"
        case _:
            return "(none)" if value is None else escape_unprintable(str(value))
