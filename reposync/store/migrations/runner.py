"""Alembic, imported only where the schema has to change (its import alone takes 0.3 s)."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def migrate(connection: Connection) -> None:
    """Bring the schema to head inside the connection's transaction."""
    command.upgrade(alembic_config(connection), "head")
