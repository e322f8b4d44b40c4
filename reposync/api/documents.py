"""Runs as JSON documents, for `--json` and HTTP alike, and cursors of lists. Free of FastAPI: commands import it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from reposync.errors import UsageError

if TYPE_CHECKING:
    from reposync.store.history import RunHistory
    from reposync.store.run import Run

FIRST_PROBLEMS = 100
MAX_CURSOR_CHARS = 3_100
"""A path is stored as 512 characters and a hash of 64; a character takes at most four bytes, base64 a third more."""

_BEFORE_ALL = "\1"
"""Sorts before every path. The cursor of an empty one would be an empty text, which clients take for none."""

DETAIL_KEYS = ("max_attempts", "handed_back", "not_before", "cancel_requested", "removal", "repair")
"""Columns of a run that only its detail shows."""


def run_documents(history: RunHistory, found: Iterable[Run]) -> list[dict[str, Any]]:
    """The runs as items of the history."""
    return [run_document(history, run) for run in found]


def run_document(history: RunHistory, run: Run) -> dict[str, Any]:
    """A run that nobody has reported on for the time of its lease says so: its process is gone, or cannot write."""
    document = {**run.document, "asked_by": run.askers}
    if run.status == "running" and run.lease_until is not None and run.lease_until < history.now():
        document["error_message"] = (
            f"Its worker has not reported; its lease ended at {run.lease_until:%H:%M:%S} UTC. The process is gone, or "
            "cannot write to the database: a full disk, or a lock, which `/readyz` of the daemon names."
        )
    return document


async def run_detail(history: RunHistory, run: Run, limit: int = FIRST_PROBLEMS) -> dict[str, Any]:
    """Everything known of the run, with its first `limit` problems by path. Raises StoreUnavailable."""
    # Imported here: `reposync history` uses this module and needs no part of a sync.
    from reposync.runs.reporting import current_progress
    from reposync.sync.brake import read_brake

    counts = await history.count_problems(run.id)
    problems = await history.problems(run.id, limit)
    brake, progress = read_brake(run.brake), current_progress(run)
    is_all = len(problems) >= sum(counts.values())
    return {
        **run_document(history, run),
        "asked_by": run.all_askers,
        **{key: getattr(run, key) for key in DETAIL_KEYS},
        "max_attempts": run.max_attempts - run.handed_back,
        "brake": None if brake is None else asdict(brake),
        "progress": None if progress is None else dict(progress),
        "requests": [asdict(request) for request in run.requests],
        "attempts": [attempt.model_dump() for attempt in run.all_attempts],
        "problems": [asdict(each) for each in problems],
        "problem_counts": counts,
        "problems_cursor": None if is_all else cursor_after(problems[-1].path if problems else _BEFORE_ALL),
    }


def cursor_after(key: str) -> str:
    """The opaque cursor of the page after the item with `key`, by which the list is sorted."""
    return base64.urlsafe_b64encode(key.encode("utf-8", "replace")).decode().rstrip("=")


def key_before(cursor: str) -> str:
    """The inverse of `cursor_after`. Raises UsageError for anything else."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        key = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        key = "\0"
    if "\0" in key:
        raise UsageError("This cursor is not valid.", remedy="Use `next_cursor` of the previous page.")
    return key


def page_of_names(
    names: Iterable[str], limit: int, cursor: str | None, part: str | None
) -> tuple[list[str], str | None]:
    """The names with `part` in them that come after `cursor`, sorted, and the next cursor. Raises UsageError."""
    after = None if cursor is None else key_before(cursor)
    matching = sorted(
        name
        for name in names
        if (after is None or name > after) and (part is None or part.casefold() in name.casefold())
    )
    return matching[:limit], cursor_after(matching[limit - 1]) if len(matching) > limit else None
