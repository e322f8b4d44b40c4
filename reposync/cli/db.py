"""`reposync db`: the database's schema, and a copy of the database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reposync.cli.group import Group
from reposync.cli.output import json_option, print_json, visible
from reposync.cli.startup import run_async

if TYPE_CHECKING:
    from reposync.store.backup import Backup
    from reposync.store.schema import Schema


@click.group(cls=Group, elsewhere={"migrate": "db upgrade"})
def db() -> None:
    """The database: its schema, and a back-up of it."""


@db.command()
@json_option
def upgrade(as_json: bool) -> None:
    """Bring the schema up to what this version needs. Safe to repeat, and from several processes at once: one does it,
    the others wait and say for whom. A schema that a newer version made stays as it is."""
    before, after = run_async(_upgrade())
    if as_json:
        print_json({"before": before, "after": after})
    else:
        click.echo(f"{after} (as it was)" if before == after else f"{before or 'empty'} -> {after}")


@db.command()
@json_option
def current(as_json: bool) -> None:
    """The revision that the schema is at, and whether this version can work with it."""
    from reposync.store.migrations import HEAD

    schema = run_async(_schema())
    if as_json:
        print_json({"revision": schema.revision, "needed": HEAD, "state": schema.state})
        return
    meaning = {
        "empty": f"this version makes schema {HEAD} when it starts, or by `reposync db upgrade`",
        "behind": f"this version brings it to {HEAD} when it starts, or by `reposync db upgrade`",
        "current": "what this version needs",
        "ahead": f"newer than this version's {HEAD}, which can work with it",
        "incompatible": f"newer than this version's {HEAD}, which cannot work with it",
    }
    click.echo(f"{schema.revision or 'empty'} ({meaning[schema.state]})")


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def backup(file: Path, as_json: bool) -> None:
    """Copy the SQLite database to FILE, consistent, while daemons go on. FILE must not exist.

    For PostgreSQL use pg_dump. The index is not in it: the next sync makes it anew from the source.
    """
    made = run_async(_backup(file))
    if as_json:
        print_json({"file": str(made.path), "size_bytes": made.size_bytes, "revision": made.revision})
    else:
        click.echo(f"{visible(str(made.path))}: {made.size_bytes / 1e6:.1f} MB, schema {made.revision or 'empty'}")


async def _upgrade() -> tuple[str | None, str | None]:
    from reposync.cli.state import open_database

    async with open_database() as database:
        before = await database.current()
        await database.upgrade()
        return before, await database.current()


async def _schema() -> Schema:
    from reposync.cli.state import open_database

    async with open_database() as database:
        return await database.schema()


async def _backup(file: Path) -> Backup:
    from reposync.config.settings import Settings
    from reposync.store.addresses import parse_address
    from reposync.store.backup import back_up

    # Not opened as everything else does: a back-up makes no database, and changes nothing in the one that is there.
    return await back_up(parse_address(Settings.from_environment().database_url), file)
