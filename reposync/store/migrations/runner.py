"""Alembic, imported only where the schema has to change (its import alone takes 0.3 s)."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from reposync.store.migrations import REVISIONS


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def migrate(connection: Connection, revision: str = "head") -> bool:
    """Bring the schema to head, or to an earlier `revision`, inside the connection's transaction. Whether there was
    something to do: another process may have done it just before, even one of a newer version."""
    before = MigrationContext.configure(connection).get_current_revision()
    if before not in (None, *REVISIONS):
        return False
    command.upgrade(alembic_config(connection), revision)
    return before != MigrationContext.configure(connection).get_current_revision()
