"""Errors of the database in words for people, never with a statement, parameter, user or password."""

from __future__ import annotations

import logging
import sqlite3
import ssl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from reposync.errors import StatementRefused, StoreUnavailable
from reposync.next_steps import UpgradeDatabase

log = logging.getLogger(__name__)

_CHECK_ADDRESS = "Check that it runs and that REPOSYNC_DATABASE_URL names it."
_TRY_AGAIN = "Trying again later may help."
_PROMOTE = "Work continues as soon as a writable server answers at that address."
_DISK = "the disk is full, or it failed", "Make room, or check the disk."
_UPGRADE = "Its schema has to be upgraded."

# Reason and remedy.
_Words: TypeAlias = tuple[str, str]
LOCK_TIMEOUT, READ_ONLY = "55P03", "25006"
_NO_TABLES = "its tables are missing, or lack a column", _UPGRADE
_NO_TABLES_IN_SQLITE = ("no such table", "no such column", "has no column")
_LOCKED = "a different process holds the write lock for too long", _TRY_AGAIN

# Beginnings of codes, of PostgreSQL (https://www.postgresql.org/docs/current/errcodes-appendix.html) and of SQLite
# (https://www.sqlite.org/rescode.html).
_WORDS: dict[str, _Words] = {
    "08": ("the connection broke", _TRY_AGAIN),
    READ_ONLY: ("it is read-only (a standby, or a primary that was demoted)", _PROMOTE),
    "25P03": ("this process held a transaction open for too long", _TRY_AGAIN),
    "28": ("it refused the user or the password", "Check both in REPOSYNC_DATABASE_URL."),
    "3D000": ("there is no database of that name", "Create it, or name a different one in REPOSYNC_DATABASE_URL."),
    "40": ("it aborted the transaction because of a conflicting one", _TRY_AGAIN),
    "42501": ("the user lacks a privilege", "Grant it the privileges on the schema."),
    "42703": _NO_TABLES,
    "42P01": _NO_TABLES,
    "53": ("it ran out of connections, memory or disk", _TRY_AGAIN),
    LOCK_TIMEOUT: _LOCKED,
    "57": ("it is starting, stopping or cancelled the query", _TRY_AGAIN),
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_CANTOPEN": ("the file cannot be opened", "Check that its folder exists and can be written."),
    "SQLITE_READONLY": ("the file cannot be written", "Check its permissions and those of its folder."),
    "SQLITE_NOTADB": (
        "the file is not an SQLite database",
        "Move it away, or name a different one in REPOSYNC_DATABASE_URL.",
    ),
    "SQLITE_CORRUPT": ("the file is damaged", "Restore it from a backup, or move it away to start afresh."),
    "SQLITE_FULL": _DISK,
    "SQLITE_IOERR": _DISK,  # also if the disk is full, and its files cannot be extended
}


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
        driver_error = _driver_error(error)
        is_known = _words(driver_error) is not None or type(driver_error).__name__ == "InterfaceError"
        if isinstance(error, DBAPIError) and not is_known and not error.connection_invalidated:
            raise _unexpected(where, error) from error
        raise _failure(where, error) from error
    except Exception as error:
        if type(error).__module__.startswith("asyncpg"):
            raise _failure(where, error) from error
        raise


def _failure(where: str, error: BaseException) -> StoreUnavailable:
    reason, remedy = describe(error)
    return StoreUnavailable(
        f"The database {where} cannot be used: {reason}.",
        remedy=remedy,
        next_steps=[UpgradeDatabase()] if remedy == _UPGRADE else (),
    )


def _unexpected(where: str, error: DBAPIError) -> StatementRefused:
    incident = uuid.uuid4().hex[:12]
    log.error("incident %s: the database refused a statement", incident, exc_info=error)
    kind = error_code(error) or type(_driver_error(error)).__name__
    return StatementRefused(
        f"The database {where} refused a statement for an unexpected reason ({kind}).",
        remedy=f"The log has the details of incident {incident}; please report it.",
    )


def is_locked(error: BaseException) -> bool:
    """A different process holds SQLite's lock."""
    return error_code(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _driver_error(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def error_code(error: BaseException) -> str:
    """PostgreSQL's code of the error, or SQLite's name of it; empty if it has none."""
    driver_error = _driver_error(error)
    code = getattr(driver_error, "sqlstate", None) or getattr(driver_error, "sqlite_errorname", None)
    return code if isinstance(code, str) else ""


def describe(error: BaseException) -> _Words:
    """What the database did wrong, as the end of a sentence, and what to do about it."""
    if isinstance(error, PoolTimeout):
        return "all of this process's connections to it are in use", _TRY_AGAIN
    driver_error = _driver_error(error)
    if isinstance(driver_error, ssl.SSLCertVerificationError):
        reason = driver_error.verify_message or "it was refused"
        return f"its certificate is not trusted ({reason})", "Name the certificate of its authority in PGSSLROOTCERT."
    if isinstance(driver_error, TimeoutError):
        return "it did not answer in time", _CHECK_ADDRESS
    if isinstance(driver_error, ConnectionRefusedError):
        return "nothing answers at that address (connection refused)", _CHECK_ADDRESS
    if isinstance(driver_error, OSError):
        return driver_error.strerror or type(driver_error).__name__, _CHECK_ADDRESS
    failed = "SQLite failed" if isinstance(driver_error, sqlite3.Error) else "the connection broke"
    return _words(driver_error) or (failed, _CHECK_ADDRESS)


def _words(error: BaseException) -> _Words | None:
    code = error_code(error)
    if code == "SQLITE_ERROR" and any(part in str(error) for part in _NO_TABLES_IN_SQLITE):
        return _NO_TABLES
    return next((words for beginning, words in _WORDS.items() if code.startswith(beginning)), None)
