"""A run as the API answers it and `--json` prints it. Free of FastAPI: commands start without it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from reposync.api.cursors import cursor_after
from reposync.runs.blocked import brake_of
from reposync.runs.progress import shown_progress
from reposync.store.run_keys import run_json

if TYPE_CHECKING:
    from reposync.store.runs import Run, Runs

FIRST_PROBLEMS = 100

REQUEST_KEYS = (
    "id",
    "trigger",
    "asked_by",
    "asked_at",
    "scheduled_for",
    "full",
    "repair",
    "removal",
    "approval",
    "withdrawn_at",
    "withdrawn_by",
)


async def run_documents(runs: Runs, found: Collection[Run]) -> list[dict[str, Any]]:
    """As items of the history. Raises StoreUnavailable."""
    askers = await runs.askers([run.id for run in found])
    return [{**run_json(run), "asked_by": askers.get(run.id, [])} for run in found]


async def run_detail(runs: Runs, run: Run, limit: int = FIRST_PROBLEMS) -> dict[str, Any]:
    """With everything that is known of it, and the first `limit` problems by path. Raises StoreUnavailable."""
    requests = (await runs.requests([run.id])).get(run.id, [])
    attempts, counts = await runs.attempts(run.id), await runs.count_problems(run.id)
    problems = await runs.problems(run.id, limit)
    brake, progress = brake_of(run), shown_progress(run)
    is_all = not problems or len(problems) == sum(counts.values())
    return {
        **run_json(run),
        "asked_by": list(dict.fromkeys(each.asked_by for each in requests)),
        "max_attempts": run.max_attempts,
        "not_before": run.not_before,
        "cancel_requested": run.cancel_requested,
        "removal": run.removal,
        "repair": run.repair,
        "brake": None if brake is None else asdict(brake),
        "progress": None if progress is None else dict(progress),
        "requests": [{key: getattr(each, key) for key in REQUEST_KEYS} for each in requests],
        "attempts": [asdict(each) for each in attempts],
        "problems": [asdict(each) for each in problems],
        "problem_counts": counts,
        "problems_cursor": None if is_all else cursor_after(problems[-1].path),
    }
