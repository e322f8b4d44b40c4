"""The newest known head of each repository, to tell which indexes are behind it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("repositories", sa.Column("head_commit", sa.Text))
    op.add_column("repositories", sa.Column("lag_since", sa.DateTime(timezone=True)))
