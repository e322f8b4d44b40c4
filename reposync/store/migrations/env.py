"""Run by Alembic on the connection of `migrate`, whose transaction the caller opened and locked."""

from __future__ import annotations

from alembic import context

from reposync.store.schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
