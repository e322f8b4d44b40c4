"""A group of GitLab projects is a row with its definition, whether it comes from the registry file, a command or a
request. Programs of 0011 cannot work beside it: they delete groups that are not in the registry document."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0011"

_ROW = """
    INSERT INTO project_groups (key, due_at, definition)
    SELECT :key, applied_at, :definition FROM registry_documents WHERE true
    ON CONFLICT (key) DO UPDATE SET definition = excluded.definition"""


def upgrade() -> None:
    op.execute("ALTER TABLE project_groups ADD COLUMN definition JSON")
    op.execute("ALTER TABLE project_groups ADD COLUMN origin TEXT DEFAULT 'config' NOT NULL")
    connection = op.get_bind()
    if sa.inspect(connection).has_table(
        "alembic_version"
    ):  # of 0.2.0, which 0011 left there, or of a different program
        op.execute("UPDATE alembic_version SET version_num = '0017' WHERE version_num = '0011'")
    document = connection.scalar(sa.text("SELECT document FROM registry_documents").columns(document=sa.JSON))
    if not document or "groups" not in document:
        return
    groups = document.pop("groups")
    urls = {server["name"]: server["url"] for server in document.get("gitlab", ())}
    for group in groups:
        row = sa.text(_ROW).bindparams(sa.bindparam("definition", group, type_=sa.JSON))
        connection.execute(row, {"key": f"{urls[group['gitlab']]}/{group['group']}"})
    written = sa.text("UPDATE registry_documents SET document = :document")
    connection.execute(written.bindparams(sa.bindparam("document", document, type_=sa.JSON)))
