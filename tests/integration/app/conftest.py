"""An execution log on each database."""

from tests.fixtures.databases import (  # noqa: F401
    database,
    database_kind,
    database_url,
    open_database,
    postgresql,
    upgraded_sqlite_file,
)
