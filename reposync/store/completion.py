"""Names for the Tab key, read from the SQLite database of the state folder. The libraries of other queries take longer
to import than a person waits for a completion."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

MOST: Final = 100
_BUSY_SECONDS: Final = 0.05
_NAMES: Final = "SELECT name, '' FROM repositories WHERE substr(name, 1, ?) = ? ORDER BY name LIMIT ?"
_RUNS: Final = (
    "SELECT substr(id, 1, 8), status || ' ' || repository FROM sync_runs WHERE substr(id, 1, ?) = ? "
    "ORDER BY queued_at DESC LIMIT ?"
)


def repository_names(database: Path, begin: str) -> list[tuple[str, str]]:
    """Names that begin so, each with an empty text. Raises sqlite3.Error."""
    return _read(database, _NAMES, begin)


def run_ids(database: Path, begin: str) -> list[tuple[str, str]]:
    """Short ids that begin so, the newest first, each with status and repository. Raises sqlite3.Error."""
    return _read(database, _RUNS, begin)


def _read(database: Path, query: str, begin: str) -> list[tuple[str, str]]:
    address = f"{database.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS)) as connection:
        return connection.execute(query, (len(begin), begin, MOST)).fetchall()
