"""SQLite: connections to its file, and a consistent copy of it while other processes write.

PostgreSQL has pg_dump for that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sqlite3
import stat
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from reposync.clock import elapsed_seconds
from reposync.config.database_url import PostgresqlAddress, SqliteAddress
from reposync.errors import StoreUnavailable, UsageError
from reposync.store.database_errors import describe, is_locked
from reposync.store.schema import FORMER_VERSION_TABLE, VERSION_TABLE

LOCK_SECONDS = 10.0


def make_private(path: Path) -> None:
    """Make the file, and its folder if it is missing, for this user only. A file that everybody may read becomes one
    that others may not: whoever keeps the state in a folder of mode 0755 would show runs and paths to the machine.
    SQLite gives its other files the mode of this one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o007:
            with contextlib.suppress(PermissionError):  # the file of a different user
                path.chmod(mode & ~0o007)


def turn_on_wal(path: Path, lock_seconds: float) -> None:
    """Readers and the writer do not wait for each other. The file keeps the mode. The switch ignores SQLite's own wait
    for a lock, and two processes may open a new file at once."""
    deadline = elapsed_seconds() + lock_seconds
    with closing(sqlite3.connect(path, timeout=lock_seconds)) as connection:
        if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            return
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if not is_locked(error) or elapsed_seconds() > deadline:
                    raise
            time.sleep(0.01)


def sqlite_engine(path: Path, lock_seconds: float, *, writes: bool = False, **options: Any) -> AsyncEngine:
    """Its connections wait for SQLite's lock for `lock_seconds`, in the driver's thread. Transactions of one that
    `writes` begin with that lock: a read that grows into a write fails at once if a different process wrote in between.
    Of one that does not, there are none: each statement sees what is committed then."""
    url = URL.create("sqlite+aiosqlite", database=str(path))
    # Without an `isolation_level` the driver begins no transactions: it would do so late, and not at all for DDL.
    driver = {"timeout": lock_seconds, "isolation_level": None}
    engine = create_async_engine(url, hide_parameters=True, connect_args=driver, **options)
    event.listen(engine.sync_engine, "connect", _prepare)
    if writes:
        event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _prepare(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


# Back-ups ------------------------------------------------------------------------------------------------------------


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
            remedy='pg_dump --format=custom --file=FILE "$REPOSYNC_DATABASE_URL"',
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
                error = sqlite3.DatabaseError(found)
                error.sqlite_errorname = "SQLITE_CORRUPT"
                raise error
            query = "SELECT name FROM sqlite_master WHERE name IN (?, ?) ORDER BY length(name) DESC"
            table = copy.execute(query, (VERSION_TABLE, FORMER_VERSION_TABLE)).fetchone()
            select = "SELECT version_num FROM {}"
            revision = copy.execute(select.format(*table)).fetchone() if table else None
        _flush(partial)
        _create(target)  # a rename alone would replace a file
        partial.rename(target)
        _flush(target.parent)
        return Backup(target, target.stat().st_size, revision[0] if revision else None)
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
