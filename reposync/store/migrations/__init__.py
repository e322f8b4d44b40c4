"""Alembic migrations, run from the package without an `alembic.ini`.

Expand only: a migration adds tables, indexes, and columns that are nullable or have a default, because pods of the
version before go on working while it runs and after it. A later version removes what is no longer used, and names in
OLDEST_PROGRAM the first version that works without it.
"""

from __future__ import annotations

from pathlib import Path

REVISIONS = tuple(sorted(path.name[:4] for path in Path(__file__).with_name("versions").glob("[0-9]*_*.py")))
"""Oldest first. From the file names: a current schema is recognised without importing Alembic."""

HEAD = REVISIONS[-1]

OLDEST_PROGRAM = "0002"
"""Programs of this revision and newer can work on HEAD's schema. Those of 0001 would take the removal of a repository
for a sync of it."""
