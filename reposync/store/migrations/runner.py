"""Runs Alembic. Imported only if the schema has to change."""

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
    """Upgrade the schema to head, or to an earlier `revision`, in the connection's transaction. Returns whether that
    changed it: a different process, even of a newer version, may have done it just before."""
    before = MigrationContext.configure(connection).get_current_revision()
    if before not in (None, *REVISIONS):
        return False
    command.upgrade(alembic_config(connection), revision)
    return before != MigrationContext.configure(connection).get_current_revision()
