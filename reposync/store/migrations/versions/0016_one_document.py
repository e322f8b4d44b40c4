"""Tables of several registry files, whose content is in the one document since 0011."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.execute("DROP TABLE superseded_digests")
    op.execute("DROP TABLE registry_files")
