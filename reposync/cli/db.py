"""`reposync db`: the database's schema, and a copy of the database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reposync.cli.commands import Group, json_option
from reposync.cli.output import print_json
from reposync.cli.startup import run_async, run_with_database, settings
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.store.database import Database


@click.group(cls=Group, aliases={"migrate": "db upgrade"})
def db() -> None:
    """The database: its schema, and a backup of it."""


@db.command()
@json_option
def upgrade(as_json: bool) -> None:
    """Bring the schema up to what this version needs. Safe to repeat, and from several processes at once: one does it,
    the others wait. The schema of a newer version is left unchanged."""

    async def act(database: Database) -> tuple[str | None, str | None]:
        before = await database.current()
        await database.upgrade()
        return before, await database.current()

    before, after = run_with_database(act, upgrade=False)
    if as_json:
        print_json({"before": before, "after": after})
    else:
        click.echo(f"{after} (unchanged)" if before == after else f"{before or 'empty'} -> {after}")


@db.command()
@json_option
def current(as_json: bool) -> None:
    """The revision of the schema, and whether this version can work with it."""
    from reposync.store.schema import HEAD

    schema = run_with_database(lambda database: database.schema(), upgrade=False)
    if as_json:
        print_json({"revision": schema.revision, "needed": HEAD, "state": schema.state})
        return
    meaning = {
        "empty": f"this version creates schema {HEAD} when it starts, or by `reposync db upgrade`",
        "behind": f"this version upgrades it to {HEAD} when it starts, or by `reposync db upgrade`",
        "current": "what this version needs",
        "ahead": f"newer than this version's {HEAD}, which can work with it",
        "incompatible": f"this version, which needs {HEAD}, cannot work with it",
    }
    click.echo(f"{schema.revision or 'empty'} ({meaning[schema.state]})")


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def backup(file: Path, as_json: bool) -> None:
    """Copy the SQLite database to FILE, consistently, while daemons are running. FILE must not exist.

    For PostgreSQL use pg_dump. The index is not included: the next sync rebuilds it from the source.
    """
    from reposync.config.database_url import parse_address
    from reposync.store.backup import back_up

    # Not by `open_database`, which creates a missing database.
    made = run_async(back_up(parse_address(settings().database_url), file))
    if as_json:
        print_json({"file": str(made.path), "size_bytes": made.size_bytes, "revision": made.revision})
    else:
        click.echo(
            f"{escape_unprintable(str(made.path))}: {made.size_bytes / 1e6:.1f} MB, schema {made.revision or 'empty'}"
        )
