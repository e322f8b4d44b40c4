"""The schema of 0.2.0, where upgrades begin. It made the tables, and recorded that in `alembic_version`, which any
program may use; from here on the revision is in a table of our own."""

revision = "0007"
down_revision = None


def upgrade() -> None:
    """Nothing is to be done. A new database gets today's tables instead."""
