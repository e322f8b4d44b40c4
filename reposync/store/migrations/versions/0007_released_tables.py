"""The schema of 0.2.0: where upgrades begin. A new database gets today's tables instead."""

revision = "0007"
down_revision = None


def upgrade() -> None:
    raise NotImplementedError("0.2.0 made these tables itself")
