"""A database in which the repositories that an actor may not see do not exist, nor anything of them.

Each statement of a limited connection gets common table expressions with the names of its tables, which hide the tables
themselves (`WITH repositories AS (SELECT * FROM repositories WHERE ...)`). So no query can forget the condition, and
counts, joins and searches by prefix come out as if the other rows had never been written. Both databases put such an
expression into the query as they do with a view. The statement's text depends on the tables alone: prepared statements
are used again, and 5,000 ids are one parameter.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import count
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

# These declare all tables.
import reposync.store.people_tables
import reposync.store.tables  # noqa: F401
from reposync.store.columns import metadata
from reposync.visible import Visible

# Column of the repository's id.
_OF_REPOSITORY: Final[Mapping[str, str]] = {
    "repositories": "id",
    "index_versions": "repository_id",
    "sync_runs": "repository_id",
    "secret_findings": "repository_id",
    "evaluations": "repository_id",
    "commit_words": "repository_id",
}
# Table whose visible rows decide, and the column with the id of one. Most queries read few rows of these large tables:
# hence a search for each and not a list of all visible ids. The column of the manifest is that of `version_id`.
_OF_ANOTHER: Final[Mapping[str, tuple[str, str]]] = {
    "indexed_files": ("index_versions", "repository_id"),
    "run_problems": ("sync_runs", "run_id"),
    "run_changes": ("sync_runs", "run_id"),
    "run_log_lines": ("sync_runs", "run_id"),
}
LIMITED_TABLES: Final = frozenset({*_OF_REPOSITORY, *_OF_ANOTHER})
OPEN_TABLES: Final = frozenset({"workers"})
"""Hold nothing of repositories, and are shown to everybody. All others are for those who see everything."""

_FEW: Final = 200
"""For so many ids an index is searched. Of more, each row that was read is asked for: for 5,000 ids, reading the list
takes SQLite 3 ms for each statement, and asking for a row 0.5 us."""
_KEY: Final = "reposync_visible"
_WORD: Final = re.compile(r"[a-z_]+")
_ALL_TABLES: Final = frozenset(metadata.tables)


class StatementRefused(Exception):
    """An error of this program: a limited database cannot tell what the statement would show or change."""


class VisibleSets:
    """The sets that SQLite asks for, by number."""

    def __init__(self) -> None:
        self._sets: dict[int, frozenset[str]] = {}
        self._numbers = count(1)

    def number_of(self, ids: frozenset[str], owner: object) -> int:
        """For as long as the owner is used."""
        number = next(self._numbers)
        self._sets[number] = ids
        weakref.finalize(owner, self._sets.pop, number, None)
        return number

    def has(self, number: int, identity: str) -> bool:
        return identity in self._sets[number]

    def teach(self, engine: AsyncEngine) -> None:
        """Make the function known to all connections of the engine."""

        def connected(connection: Any, _record: Any) -> None:
            connection.create_function(_KEY, 2, self.has, deterministic=True)

        event.listen(engine.sync_engine, "connect", connected)


def limited_engine(engine: AsyncEngine, visible: Visible, sets: VisibleSets, owner: object) -> AsyncEngine:
    """The same connections, on which every statement is limited, for as long as the `owner` is used. `visible` is not
    everything."""
    ids = visible.ids if visible.ids is not None else frozenset()
    is_few = len(ids) <= _FEW
    limit: tuple[str, Any]
    if engine.dialect.name == "postgresql":
        limit = (_FEW_OF_POSTGRESQL, sorted(ids)) if is_few else (_MANY_OF_POSTGRESQL, ",".join(sorted(ids)))
    elif is_few:
        limit = _FEW_OF_SQLITE, json.dumps(sorted(ids))
    else:
        limit = _MANY_OF_SQLITE, sets.number_of(ids, owner)
    limited = engine.execution_options(**{_KEY: limit})
    event.listen(limited.sync_engine, "before_cursor_execute", _limit, retval=True)
    return limited


def _limit(_: Any, __: Any, statement: str, parameters: Any, context: Any, is_many: bool) -> tuple[str, Any]:
    """Called by SQLAlchemy with each statement."""
    if is_many or not isinstance(parameters, tuple):
        raise StatementRefused("a limited database only reads, one statement at a time")
    condition, value = context.execution_options[_KEY]
    prefix, rest = limited_statement(statement, condition, len(parameters) + 1)
    if not prefix:
        return statement, parameters
    # SQLite counts parameters without a number on from the highest number before them.
    values = (*parameters, value) if condition in _OF_POSTGRESQL else (value, *parameters)
    return f"{prefix}{rest}", values


# Conditions on the column of the repository's id. PostgreSQL's parameters have numbers.
# As a list and not as `= ANY(...)`, of which the planner looks at each value.
_FEW_OF_POSTGRESQL: Final = "{column} IN (SELECT unnest(${number}::text[]))"
# One text is sent and read in a fifth of the time of an array of 5,000, and hashed once; `= ANY` of a subquery looks
# at each value for each row. For the bare column the planner searches the index 5,000 times to find ten rows. Ten rows
# take 2 ms and 5,000 take 4 ms; by `= ANY` 3 ms and 280 ms.
_MANY_OF_POSTGRESQL: Final = "({column} || '') IN (SELECT unnest(string_to_array(${number}::text, ',')))"
_OF_POSTGRESQL: Final = frozenset({_FEW_OF_POSTGRESQL, _MANY_OF_POSTGRESQL})
_FEW_OF_SQLITE: Final = "{column} IN (SELECT value FROM json_each(?1))"
_MANY_OF_SQLITE: Final = f"{_KEY}(?1, {{column}})"


@lru_cache(500)
def limited_statement(statement: str, condition: str, number: int) -> tuple[str, str]:
    """The common table expressions that limit it, and the rest. Raises StatementRefused."""
    words = _WORD.findall(statement.lower())
    tables = _ALL_TABLES.intersection(words)
    if words[:1] not in (["select"], ["with"]) or "recursive" in words[:2] or {"insert", "update", "delete"} & {*words}:
        raise StatementRefused(f"a limited database does not execute: {statement[:200]}")
    if not tables and "from" in words:
        raise StatementRefused(f"a limited database does not know what this reads: {statement[:200]}")
    if closed := tables - LIMITED_TABLES - OPEN_TABLES:
        raise StatementRefused(f"a limited database does not show {', '.join(sorted(closed))}")
    needed = tables & LIMITED_TABLES
    if not needed:
        return "", statement
    needed |= {_OF_ANOTHER[table][0] for table in needed & _OF_ANOTHER.keys()}
    # In SQLite the expression would mean itself. In PostgreSQL it does not.
    schema = "" if condition in _OF_POSTGRESQL else "main."
    expressions = ", ".join(_expressions(needed, condition.replace("{number}", str(number)), schema))
    is_with = words[0] == "with"
    rest = statement.lstrip()[len("WITH") :] if is_with else statement
    return f"WITH {expressions}{',' if is_with else ' '}", rest


def _expressions(tables: Iterable[str], condition: str, schema: str) -> Iterable[str]:
    """One that uses a different one comes after it."""
    for table, column in _OF_REPOSITORY.items():
        if table in tables:
            yield _expression(table, schema, condition.replace("{column}", column))
    for table, (other, column) in _OF_ANOTHER.items():
        if table in tables:
            seen = f"EXISTS (SELECT 1 FROM {other} WHERE {other}.id = {table}.{column})"  # noqa: S608 - our own names
            yield _expression(table, schema, seen)


def _expression(table: str, schema: str, condition: str) -> str:
    return f"{table} AS NOT MATERIALIZED (SELECT * FROM {schema}{table} WHERE {condition})"  # noqa: S608 - our own
