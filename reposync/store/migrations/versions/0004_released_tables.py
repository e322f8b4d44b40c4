"""The schema of 0.1.0: where upgrades begin. A new database gets today's tables instead."""

revision = "0004"
down_revision = None


def upgrade() -> None:
    raise NotImplementedError("0.1.0 made these tables itself")
