"""Which repositories were not synced at their last two ticks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from reposync.catalog.overview import late_repositories
from reposync.store.repository import Repository

AT_NINE = datetime(2026, 3, 2, 9, 0, 1, tzinfo=UTC)
HOURLY = Repository(
    id="1",
    name="api",
    location="https://git.example.com/api.git",
    source="git",
    origin="config",
    collection="code",
    cron_expression="0 * * * *",
    last_sync_at=AT_NINE,
    created_at=AT_NINE,
    updated_at=AT_NINE,
)


def hourly(**changes: Any) -> Repository:
    return HOURLY.model_copy(update=changes)


async def test_a_repository_is_late_once_two_of_its_ticks_have_passed() -> None:
    assert await late_repositories([HOURLY], AT_NINE + timedelta(hours=1)) == []
    assert await late_repositories([HOURLY], AT_NINE + timedelta(hours=2)) == ["api"]
    synced = hourly(last_sync_at=AT_NINE + timedelta(hours=2))
    assert await late_repositories([synced], AT_NINE + timedelta(hours=2)) == []


async def test_paused_unscheduled_and_unreadable_repositories_are_never_late() -> None:
    others = [
        hourly(is_active=False, paused_reason="moved"),
        hourly(cron_expression=None),
        hourly(cron_expression="whenever"),
        hourly(last_sync_at=None),
    ]
    assert await late_repositories(others, AT_NINE + timedelta(days=400)) == []
