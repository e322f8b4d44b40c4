"""Fixtures of the catalogue's tests: each runs on SQLite and on PostgreSQL."""

from tests.fixtures.databases import database, database_kind, database_url, postgresql, upgraded_sqlite_file  # noqa: F401
