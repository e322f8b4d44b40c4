"""What the first page says of the last 24 hours, the queue and the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from reposync.app.application import Application
from reposync.catalog.overview import late_repositories
from reposync.store.repository import RepositoryState
from reposync.store.run import RunCount
from reposync.store.status import RunStatus
from reposync.words import duration

HOURS = 24
_WIDTH, _HEIGHT, _GAP, _LEAST_HEIGHT = 300, 80, 1, 2.0
# From the bottom of a bar up.
_KINDS = ("completed", "cancelled", "failed")


async def last_day(app: Application, states: Sequence[RepositoryState]) -> dict[str, Any]:
    now = app.runs.now()
    counts = await app.runs.by_hour(_first_hour(now))
    ended = sum(each.runs for each in counts if each.is_final)
    completed = sum(each.runs for each in counts if each.kind == "completed")
    queue = await app.runs.queue()
    waiting = sum(queue.counts.get(each, 0) for each in (RunStatus.QUEUED, RunStatus.RETRYING))
    late = await late_repositories(states, now)
    behind = min((each.last_sync_at for each in states if each.name in set(late) and each.last_sync_at), default=None)
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
        "behind_since": behind,
        "chart": hour_chart(counts, now),
    }


@dataclass(frozen=True, slots=True)
class _Bar:
    hour: datetime
    runs: dict[str, int]


def _first_hour(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)


def hour_chart(counts: Sequence[RunCount], now: datetime) -> Markup | None:
    """A bar for each hour, its failures at the top and in red; None without runs."""
    first = _first_hour(now)
    bars = [_Bar(first + timedelta(hours=number), dict.fromkeys(_KINDS, 0)) for number in range(HOURS)]
    for each in counts:
        number = int((each.hour - first) / timedelta(hours=1))
        if each.kind in _KINDS and 0 <= number < HOURS:
            bars[number].runs[each.kind] += each.runs
    highest = max(sum(bar.runs.values()) for bar in bars)
    if not highest:
        return None
    step, pieces = _WIDTH / HOURS, []
    for number, bar in enumerate(bars):
        top = float(_HEIGHT)
        for kind in _KINDS:
            if runs := bar.runs[kind]:
                height = max(_LEAST_HEIGHT, _HEIGHT * runs / highest)
                top -= height
                title = f"{bar.hour:%H:00} UTC: {runs:,} {kind}"
                pieces.append(
                    f'<rect class="{kind}" x="{number * step:.2f}" y="{max(top, 0):.2f}" width="{step - _GAP:.2f}" '
                    f'height="{height:.2f}"><title>{title}</title></rect>'
                )
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
    label = f'aria-label="Runs of the last {HOURS} hours"'
    return Markup(f'<svg class="bars" {box} role="img" {label}>{"".join(pieces)}</svg>')  # noqa: S704 - only numbers
