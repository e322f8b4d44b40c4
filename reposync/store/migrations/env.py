"""Run by Alembic on the connection that it is handed: one transaction, opened and locked by the caller."""

from __future__ import annotations

from alembic import context

from reposync.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
