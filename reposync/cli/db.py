"""`reposync db`: the database's schema, and a copy of the database. `reposync version`."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reposync import __version__
from reposync.cli.commands import Group, run_async, settings, with_database
from reposync.cli.output import Result, prints
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.store.database import Database

DEPENDENCIES = (
    *("qdrant-client", "qdrant-edge-py", "python-gitlab", "dulwich", "langchain-text-splitters"),
    "sqlmodel",
)
OF_EXTRAS = ("onnxruntime", "opentelemetry-sdk")


db = Group("db")


@db.command()
@prints
@with_database
async def upgrade(database: Database) -> Result:
    """Bring the schema up to what this version needs. Safe to repeat, and from several processes at once: one does it,
    the others wait. The schema of a newer version is left unchanged."""
    before = (await database.schema()).revision
    await database.upgrade()
    after = (await database.schema()).revision
    line = f"{after} (unchanged)" if before == after else f"{before or 'empty'} -> {after}"
    return Result({"before": before, "after": after}, [line])


@db.command()
@prints
@with_database
async def current(database: Database) -> Result:
    """The revision of the schema, and whether this version can work with it."""
    from reposync.store.schema import HEAD

    schema = await database.schema()
    meaning = {
        "empty": f"`reposync db upgrade` or `reposync serve` creates schema {HEAD}",
        "behind": f"`reposync db upgrade` or `reposync serve` upgrades it to {HEAD}",
        "current": "what this version needs",
        "ahead": f"newer than this version's {HEAD}, which can work with it",
        "incompatible": f"this version, which needs {HEAD}, cannot work with it",
        "foreign": f"tables of a different program: {', '.join(schema.others)}",
    }
    document = {"revision": schema.revision, "needed": HEAD, "state": schema.state}
    return Result(document, [f"{schema.revision or schema.state} ({meaning[schema.state]})"])


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@prints
def backup(file: Path) -> Result:
    """Copy the SQLite database to FILE, consistently, while daemons are running. FILE must not exist.

    For PostgreSQL use pg_dump. The index is not included: the next sync rebuilds it from the source.
    """
    from reposync.config.database_url import parse_address
    from reposync.store.sqlite import back_up

    # Not by `open_database`, which creates a missing database.
    made = run_async(back_up(parse_address(settings(bare_names=True).database_url), file))
    path, revision = str(made.path), made.revision or "empty"
    return Result(
        {"file": path, "size_bytes": made.size_bytes, "revision": made.revision},
        [f"{escape_unprintable(path)}: {made.size_bytes / 1e6:.1f} MB, schema {revision}"],
    )


@click.command()
@prints
def version() -> Result:
    from importlib import metadata

    versions = {"reposync": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in DEPENDENCIES}
    for name in OF_EXTRAS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return Result(versions, [f"{name} {number}" for name, number in versions.items()])
