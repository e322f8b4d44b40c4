"""Under which keys a run is shown, by commands and over HTTP alike. Free of SQL: the command line starts without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reposync.store.run import Run

RUN_KEYS = (
    "id",
    "repository",
    "status",
    "trigger",
    "scheduled_for",
    "queued_at",
    "started_at",
    "completed_at",
    "duration_seconds",
    "attempt",
    "worker",
    "commit_before",
    "commit_after",
    "files_processed",
    "files_deleted",
    "files_skipped",
    "files_failed",
    "chunks_embedded",
    "chunks_reused",
    "error_code",
    "error_message",
)


def run_json(run: Run) -> dict[str, Any]:
    """A run under the names of its columns."""
    return {key: getattr(run, key) for key in RUN_KEYS}
