"""A consistent copy of an SQLite database while other processes write to it. PostgreSQL has pg_dump for that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sqlite3
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
    copy = _Copy(address, target)
    work = asyncio.ensure_future(asyncio.to_thread(copy.run))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        copy.interrupt()
        await asyncio.wait({work})
        raise


class _Copy:
    def __init__(self, address: SqliteAddress, target: Path) -> None:
        self._address = address
        self._target = target
        self._partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        self._source: sqlite3.Connection | None = None
        self._interrupted = False

    def interrupt(self) -> None:
        self._interrupted = True
        if self._source is not None:
            self._source.interrupt()

    def run(self) -> Backup:
        if not self._address.path.is_file():
            raise UsageError(f"There is no database {self._address.where} yet.", remedy="A sync creates it.")
        self._refuse_existing()
        try:
            return self._copied()
        except FileExistsError:
            self._refuse_existing()
            raise
        except (OSError, sqlite3.Error) as error:
            reason, remedy = describe(error)
            if isinstance(error, OSError):  # of the copy: SQLite reads the database itself
                remedy = "Name a writable file."
            raise StoreUnavailable(
                f"The database {self._address.where} could not be copied to {self._target}: {reason}.", remedy=remedy
            ) from error
        finally:
            with contextlib.suppress(OSError):
                self._partial.unlink()

    def _refuse_existing(self) -> None:
        if os.path.lexists(self._target):
            raise UsageError(
                f"{self._target} exists, and a back-up overwrites nothing.", remedy="Name a different file."
            )
        if not self._target.parent.is_dir():
            raise UsageError(
                f"There is no folder {self._target.parent}.", remedy="Create it, or name a different file."
            )

    def _copied(self) -> Backup:
        os.close(os.open(self._partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        # `mode=rw`: creates no database, and can read one that no other process has open.
        uri = f"{self._address.path.absolute().as_uri()}?mode=rw"
        with contextlib.closing(
            sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, check_same_thread=False)
        ) as source:
            self._source = source
            if self._interrupted:
                raise sqlite3.OperationalError("interrupted")
            # One read transaction: in WAL mode it does not block writers.
            source.execute("VACUUM INTO ?", (str(self._partial),))
        revision = _checked(self._partial)
        _flush(self._partial)
        size_bytes = self._partial.stat().st_size
        self._publish()
        _flush(self._target.parent)
        return Backup(self._target, size_bytes, revision)

    def _publish(self) -> None:
        try:
            os.link(self._partial, self._target)  # unlike a rename, never replaces a file
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            self._refuse_existing()
            self._partial.rename(self._target)


def _checked(path: Path) -> str | None:
    """The revision of the schema in the copy. Raises sqlite3.Error for one that is damaged."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as copy:
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(f"malformed: {found}")
        try:
            row = copy.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError:
            return None
        return str(row[0]) if row else None


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
