"""Run by Alembic on the connection of `runner.migrate`, whose transaction the caller opened and locked."""

from __future__ import annotations

from alembic import context

from reposync.store.tables import RUNS

context.configure(connection=context.config.attributes["connection"], target_metadata=RUNS.metadata)
with context.begin_transaction():
    context.run_migrations()
