"""Repositories that have left the registry are found without reading all: every search hides them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from reposync.store.indexes import INDEXES

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    for index in INDEXES:
        if index.name == "ix_repositories_inactive":
            op.execute(sa.schema.CreateIndex(index))
