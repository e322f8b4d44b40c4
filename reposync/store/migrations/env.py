"""Run by Alembic on the connection of `migrate`, whose transaction the caller opened and locked."""

from __future__ import annotations

from alembic import context

from reposync.store.indexes import SCHEMA

context.configure(connection=context.config.attributes["connection"], target_metadata=SCHEMA)
with context.begin_transaction():
    context.run_migrations()
