"""Errors of the database in words for people, never with a statement, parameter, user or password."""

from __future__ import annotations

import logging
import re
import shutil
import sqlite3
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from reposync.errors import Remedy, StoreUnavailable

log = logging.getLogger(__name__)

_CHECK_ADDRESS = "Check that it runs and that DATABASE_URL names it."
_TRY_AGAIN = "Trying again later may help."
UPGRADE = Remedy("Run `reposync db upgrade`.", "The administrator of this server has to upgrade its database.")

# Reason and remedy.
_Words: TypeAlias = tuple[str, str | Remedy]
_PROMOTE = "Work continues as soon as a writable server answers at that address."

# https://www.postgresql.org/docs/current/errcodes-appendix.html; the longest matching prefix wins.
_POSTGRESQL: dict[str, _Words] = {
    "08": ("the connection broke", _TRY_AGAIN),
    "25006": ("it is read-only (a standby, or a primary that was demoted)", _PROMOTE),
    "25P03": ("this process held a transaction open for too long", _TRY_AGAIN),
    "28": ("it refused the user or the password", "Check both in DATABASE_URL."),
    "3D000": ("there is no database of that name", "Create it, or name a different one in DATABASE_URL."),
    "40": ("it aborted the transaction because of a conflicting one", _TRY_AGAIN),
    "42501": ("the user lacks a privilege", "Grant it the privileges on the schema."),
    "42703": ("its tables lack a column", UPGRADE),
    "42P01": ("its tables are missing", UPGRADE),
    "53": ("it ran out of connections, memory or disk", _TRY_AGAIN),
    "54": ("a limit of the server was exceeded", "See the server's log."),
    "55": ("it is not in the required state", _TRY_AGAIN),
    "55P03": ("a different process holds a lock for too long", _TRY_AGAIN),
    "57": ("it is starting, stopping or cancelled the query", _TRY_AGAIN),
    "58": ("its disk failed", "See the server's log."),
    "XX": ("its data is damaged", "See the server's log."),
}
_FULL = "the disk is full", "Make room."
_FAILED = "the disk failed", "Check the disk and its permissions."
_LEAST_ROOM_BYTES = 1_000_000
_SQLITE: tuple[tuple[str, str, str | Remedy], ...] = (
    ("locked", "a different process holds the write lock for too long", _TRY_AGAIN),
    ("busy", "a different process holds the write lock for too long", _TRY_AGAIN),
    ("no such table", "its tables are missing", UPGRADE),
    ("no such column", "its tables lack a column", UPGRADE),
    ("has no column", "its tables lack a column", UPGRADE),
    ("unable to open", "the file cannot be opened", "Check that its folder exists and can be written."),
    ("readonly", "the file cannot be written", "Check its permissions and those of its folder."),
    ("not a database", "the file is not an SQLite database", "Move it away, or name a different one in DATABASE_URL."),
    ("malformed", "the file is damaged", "Restore it from a backup, or move it away to start afresh."),
    ("full", *_FULL),
    ("disk i/o", *_FAILED),
)


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Raise StoreUnavailable for errors of the database and the connection to it. Unexpected ones, such as mistakes in
    our SQL, are also logged with an incident number, and retried by the daemon like the rest. IntegrityError passes
    unchanged."""
    try:
        yield
    except IntegrityError:
        raise
    except (DBAPIError, PoolTimeout, sqlite3.Error, OSError) as error:
        if isinstance(error, DBAPIError) and not _is_expected(error):
            raise _unexpected(where, error) from error
        raise connection_failure(where, error) from error
    except Exception as error:
        if type(error).__module__.startswith("asyncpg"):
            raise connection_failure(where, error) from error
        raise


def connection_failure(where: str, error: BaseException) -> StoreUnavailable:
    """What to raise from `error`."""
    reason, remedy = describe(error)
    # If SQLite cannot extend its files, it only reports that the disk failed.
    if (reason, remedy) == _FAILED and _has_no_room(Path(where.removeprefix("in ")).parent):
        reason, remedy = _FULL
    return StoreUnavailable(f"The database {where} cannot be used: {reason}.", remedy=remedy)


def _unexpected(where: str, error: DBAPIError) -> StoreUnavailable:
    incident = uuid.uuid4().hex[:12]
    log.error("incident %s: the database refused a statement", incident, exc_info=error)
    driver_error = _driver_error(error)
    kind = _sqlstate(driver_error) or type(driver_error).__name__
    return StoreUnavailable(
        f"The database {where} refused a statement for an unexpected reason ({kind}).",
        remedy=f"The log has the details of incident {incident}; please report it.",
    )


def _has_no_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _LEAST_ROOM_BYTES
    except OSError:
        return False


def is_locked(error: BaseException) -> bool:
    """A different process holds SQLite's lock."""
    driver_error = _driver_error(error)
    return isinstance(driver_error, sqlite3.OperationalError) and bool(re.search("locked|busy", str(driver_error)))


def is_lock_timeout(error: BaseException) -> bool:
    """PostgreSQL did not get a lock in time."""
    return _sqlstate(_driver_error(error)) == "55P03"


def is_read_only(error: BaseException) -> bool:
    """PostgreSQL is read-only: a hot standby, a demoted primary, or made so by its administrator."""
    return _sqlstate(_driver_error(error)) == "25006"


def is_missing_table(error: DBAPIError) -> bool:
    driver_error = _driver_error(error)
    return _sqlstate(driver_error) == "42P01" or "no such table" in str(driver_error)


def _is_expected(error: DBAPIError) -> bool:
    driver_error = _driver_error(error)
    if error.connection_invalidated:
        return True
    if isinstance(driver_error, sqlite3.Error):
        return _sqlite_words(driver_error) is not None
    return _postgresql_words(driver_error) is not None or type(driver_error).__name__ == "InterfaceError"


def _driver_error(error: BaseException) -> BaseException:
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def describe(error: BaseException) -> _Words:
    """What the database did wrong, as the end of a sentence, and what to do about it."""
    if isinstance(error, PoolTimeout):
        return "all of this process's connections to it are in use", _TRY_AGAIN
    driver_error = _driver_error(error)
    if isinstance(driver_error, sqlite3.Error):
        return _sqlite_words(driver_error) or ("SQLite failed", _CHECK_ADDRESS)
    if isinstance(driver_error, ssl.SSLCertVerificationError):
        reason = driver_error.verify_message or "it was refused"
        return f"its certificate is not trusted ({reason})", "Name the certificate of its authority in PGSSLROOTCERT."
    if isinstance(driver_error, TimeoutError):
        return "it did not answer in time", _CHECK_ADDRESS
    if isinstance(driver_error, ConnectionRefusedError):
        return "nothing answers at that address (connection refused)", _CHECK_ADDRESS
    if isinstance(driver_error, OSError):
        return driver_error.strerror or type(driver_error).__name__, _CHECK_ADDRESS
    return _postgresql_words(driver_error) or ("the connection broke", _CHECK_ADDRESS)


def _sqlite_words(error: sqlite3.Error) -> _Words | None:
    text = str(error).lower()
    return next(((reason, remedy) for part, reason, remedy in _SQLITE if part in text), None)


def _postgresql_words(error: BaseException) -> _Words | None:
    state = _sqlstate(error) or ""
    return next((_POSTGRESQL[state[:length]] for length in (5, 2) if state[:length] in _POSTGRESQL), None)
