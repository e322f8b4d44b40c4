"""`reposync db`: the database's schema."""

from __future__ import annotations

import click

from reposync.cli.output import json_option, print_json
from reposync.cli.startup import run_async


@click.group()
def db() -> None:
    """The database's schema."""


@db.command()
@json_option
def upgrade(as_json: bool) -> None:
    """Bring the schema up to what this version needs. Safe to repeat, and from several processes at once."""
    before, after = run_async(_upgrade())
    if as_json:
        print_json({"before": before, "after": after})
    else:
        click.echo(f"{after} (as it was)" if before == after else f"{before or 'empty'} -> {after}")


@db.command()
@json_option
def current(as_json: bool) -> None:
    """The revision that the schema is at."""
    revision = run_async(_current())
    if as_json:
        print_json({"revision": revision})
    else:
        click.echo(revision or "empty")


async def _upgrade() -> tuple[str | None, str | None]:
    from reposync.cli.state import open_database

    async with open_database() as database:
        before = await database.current()
        await database.upgrade()
        return before, await database.current()


async def _current() -> str | None:
    from reposync.cli.state import open_database

    async with open_database() as database:
        return await database.current()
