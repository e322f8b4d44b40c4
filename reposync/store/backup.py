"""A consistent copy of an SQLite database while other processes write to it. PostgreSQL has pg_dump for that."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from reposync.config.database_url import PostgresqlAddress, SqliteAddress
from reposync.errors import StoreUnavailable, UsageError
from reposync.store.database_errors import describe

LOCK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Backup:
    """`revision`: of its schema; None if it has no tables yet."""

    path: Path
    size_bytes: int
    revision: str | None


async def back_up(address: SqliteAddress | PostgresqlAddress, target: Path) -> Backup:
    """Write the database at this moment to `target`, which is complete and checked, or not created. Writers do not
    wait. Raises UsageError for a `target` that exists or cannot be created, or for PostgreSQL, and StoreUnavailable if
    it fails."""
    if isinstance(address, PostgresqlAddress):
        raise UsageError(
            f"The database {address.where} is PostgreSQL, which has its own tool for this.",
            remedy='pg_dump --format=custom --file=FILE "$DATABASE_URL"',
        )
    if not address.path.is_file():
        raise UsageError(f"There is no database {address.where} yet.", remedy="A sync creates it.")
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.", remedy="Create it, or name a different file.")
    return await asyncio.to_thread(_copy, address, target)


def _copy(address: SqliteAddress, target: Path) -> Backup:
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        if os.path.lexists(target):
            raise FileExistsError
        _create(partial)
        # `mode=rw`: creates no database, and can read one that no other process has open.
        uri = f"{address.path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS)) as source:
            # One read transaction: in WAL mode it does not block writers.
            source.execute("VACUUM INTO ?", (str(partial),))
        with closing(sqlite3.connect(partial)) as copy:
            (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(f"malformed: {found}")
            has_tables = copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            row = copy.execute("SELECT version_num FROM alembic_version").fetchone() if has_tables else None
        _flush(partial)
        _create(target)  # a rename alone would replace a file
        partial.rename(target)
        _flush(target.parent)
        return Backup(target, target.stat().st_size, row[0] if row else None)
    except FileExistsError as error:
        message = f"{target} exists, and a back-up overwrites nothing."
        raise UsageError(message, remedy="Name a different file.") from error
    except (OSError, sqlite3.Error) as error:
        reason, remedy = describe(error)
        if isinstance(error, OSError):  # of the copy: SQLite reads the database itself
            remedy = "Name a writable file."
        raise StoreUnavailable(
            f"The database {address.where} could not be copied to {target}: {reason}.", remedy=remedy
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
