"""Alembic migrations, run from the package with no `alembic.ini`."""

from __future__ import annotations

REVISIONS = ("0001", "0002", "0003")
"""Oldest first. Named here too, so that finding the schema up to date costs one query and no import of Alembic."""

HEAD = REVISIONS[-1]
