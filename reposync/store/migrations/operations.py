"""Short forms of columns and indexes for the migrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

MOMENT = sa.DateTime(timezone=True)
NEWEST = (sa.text("queued_at DESC"), sa.text("id DESC"))
ACTIVE = "status IN ('queued', 'retrying', 'running')"
OVER = "status NOT IN ('queued', 'retrying', 'running')"


def required(kind: Any, *names: str) -> Iterator[sa.Column[Any]]:
    return (sa.Column(name, kind, nullable=False) for name in names)


def optional(kind: Any, *names: str) -> Iterator[sa.Column[Any]]:
    return (sa.Column(name, kind) for name in names)


def key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def cascading(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=f"fk_{table}_{column}", ondelete="CASCADE")


def partial_index(
    name: str, table: str, columns: Sequence[str | sa.TextClause], condition: str, *, unique: bool = False
) -> None:
    only = sa.text(condition)
    op.create_index(name, table, list(columns), unique=unique, sqlite_where=only, postgresql_where=only)
