"""What the first page says of the last 24 hours, the queue and the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reposync.api.web.charts import first_hour, hour_chart
from reposync.app.application import Application
from reposync.catalog.overview import late_repositories
from reposync.store.repository import RepositoryState
from reposync.store.status import RunStatus
from reposync.words import duration


async def last_day(app: Application, states: Sequence[RepositoryState]) -> dict[str, Any]:
    now = app.runs.now()
    counts = await app.runs.by_hour(first_hour(now))
    ended = sum(each.runs for each in counts if each.is_final)
    completed = sum(each.runs for each in counts if each.kind == "completed")
    queue = await app.runs.queue()
    waiting = sum(queue.counts.get(each, 0) for each in (RunStatus.QUEUED, RunStatus.RETRYING))
    late = set(await late_repositories(states, now))
    synced = [(each.last_sync_at, each.name) for each in states if each.name in late and each.last_sync_at]
    behind = [(each.behind_since, each.name) for each in states if each.behind_since]
    return {
        "success_rate": f"{100 * completed / ended:.0f}%" if ended else "–",
        "ended": ended,
        "running": queue.counts.get(RunStatus.RUNNING, 0),
        "waiting": waiting,
        # In minutes, so that the page does not change at each look.
        "oldest": duration(queue.oldest_seconds // 60 * 60) if queue.oldest_seconds >= 60 else None,
        "blocked": queue.counts.get(RunStatus.BLOCKED, 0),
        "workers": len(await app.workers.alive()),
        "late": len(late),
        "most_late": min(synced, default=None),
        "behind": len(behind),
        "most_behind": min(behind, default=None),
        "chart": hour_chart(counts, now),
    }
