"""The rows of the files that a run added to the index, changed or removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reposync.store.columns import path_key
from reposync.store.database import Database
from reposync.store.run import Run, RunChange
from reposync.store.tables import CHANGES

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert

MAX_CHANGES = 1_000
"""Files that are listed of a run; its counts are of all. They are for people, who read no longer list."""


def change_rows(database: Database, run: Run, changes: Sequence[RunChange]) -> tuple[Insert, list[dict[str, Any]]]:
    """A statement, and its rows, that lists the files; each row replaces an earlier one of that file."""
    new = database.insert(CHANGES)
    upsert = new.on_conflict_do_update(
        index_elements=[CHANGES.c.run_id, CHANGES.c.path], set_={"change": new.excluded.change}
    )
    return upsert, [{"run_id": run.id, "path": path_key(each.path), "change": str(each.change)} for each in changes]
