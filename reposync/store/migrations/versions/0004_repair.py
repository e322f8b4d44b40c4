"""What `verify --repair` needs: runs that compare every point with what is recorded."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    # With a default for pods of the version before, which queue runs without it.
    op.add_column("sync_runs", sa.Column("repair", sa.Boolean, nullable=False, server_default=sa.false()))
