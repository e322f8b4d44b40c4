"""Repeated hand-backs are one row of the timeline; a look at a group is fenced by a number."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    # With defaults for pods of the version before, which write rows without them.
    op.add_column("run_attempts", sa.Column("times", sa.Integer, nullable=False, server_default=sa.text("1")))
    op.add_column("project_groups", sa.Column("attempt", sa.BigInteger, nullable=False, server_default=sa.text("0")))
