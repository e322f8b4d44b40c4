"""Repositories that have left the registry are found without reading all: every search hides them."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("""
        CREATE INDEX ix_repositories_inactive ON repositories (id) WHERE NOT is_active AND paused_reason IS NULL""")
