"""One registry document instead of several registry files.

The current content of a single file becomes the document. Several files are merged into one, as they were in force
together: no repository becomes inactive. Its digest is empty, so that no file replaces it before a person applies one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

log = logging.getLogger(__name__)

_FILES = sa.table(
    "registry_files",
    sa.column("path", sa.Text),
    sa.column("digest", sa.Text),
    sa.column("document", sa.JSON),
    sa.column("applied_by", sa.Text),
    sa.column("created_at"),
)
_MOST_SUPERSEDED = 100
_MOMENT = {"postgresql": "TIMESTAMP WITH TIME ZONE", "sqlite": "DATETIME"}


def upgrade() -> None:
    op.execute(f"""
        CREATE TABLE registry_documents (
            id TEXT NOT NULL,
            digest TEXT NOT NULL,
            document JSON NOT NULL,
            superseded JSON NOT NULL,
            path TEXT NOT NULL,
            applied_by TEXT NOT NULL,
            applied_at {_MOMENT[op.get_context().dialect.name]} NOT NULL,
            CONSTRAINT pk_registry_documents PRIMARY KEY (id))""")
    connection = op.get_bind()
    files = connection.execute(sa.select(_FILES).order_by(_FILES.c.created_at, _FILES.c.path)).all()
    if not files:
        return
    digests = sa.text("SELECT digest FROM superseded_digests ORDER BY superseded_at, digest")
    superseded = list(dict.fromkeys(connection.scalars(digests)))
    values = {"digest": files[0].digest, "path": files[0].path, "by": files[0].applied_by}
    if len(files) > 1:
        paths = ", ".join(file.path for file in files)
        superseded += [file.digest for file in files if file.digest not in superseded]
        values = {"digest": "", "path": paths, "by": f"the upgrade, which merged {paths},"}
        log.warning("%s were merged into one registry document; write one file, and `reposync apply` it", paths)
    insert = sa.text("""
        INSERT INTO registry_documents (id, digest, document, superseded, path, applied_by, applied_at)
        SELECT 'registry', :digest, :document, :superseded, :path, :by, max(applied_at) FROM registry_files""")
    typed = insert.bindparams(sa.bindparam("document", type_=sa.JSON), sa.bindparam("superseded", type_=sa.JSON))
    document = _merged([file.document for file in files])
    connection.execute(typed, values | {"document": document, "superseded": superseded[-_MOST_SUPERSEDED:]})


def _merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A section of an earlier one wins, as it did."""
    merged: dict[str, Any] = {}
    for document in documents:
        for section, value in document.items():
            if isinstance(value, list) and section in merged:
                known = {_key(entry) for entry in merged[section]}
                merged[section] = [*merged[section], *(entry for entry in value if _key(entry) not in known)]
            else:
                merged.setdefault(section, value)
    return merged


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Of a server its name, of a group its server and path."""
    return entry.get("name"), entry.get("gitlab"), entry.get("group")
