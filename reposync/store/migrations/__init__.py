"""Alembic migrations, run from the package with no `alembic.ini`.

Expand only: a migration adds tables, indexes, and columns that are nullable or have a default, because pods of the
version before go on working while it runs and after it. What nobody uses any more is taken out by a later version,
which then names in OLDEST_PROGRAM the first one that did without it.
"""

from __future__ import annotations

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
"""Oldest first. Named here too, so that finding the schema up to date costs one query and no import of Alembic."""

HEAD = REVISIONS[-1]

OLDEST_PROGRAM = "0002"
"""Programs of this revision and newer can work on HEAD's schema. Those of 0001 would take the removal of a repository
for a sync of it."""
