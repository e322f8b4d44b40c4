"""How far the clock of each worker's machine is ahead of the database's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("workers", sa.Column("clock_skew_seconds", sa.Float))
