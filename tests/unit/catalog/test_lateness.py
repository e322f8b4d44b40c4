"""Which repositories were not synced at their last two ticks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from reposync.catalog.overview import late_repositories
from reposync.store.repository import RepositoryState

AT_NINE = datetime(2026, 3, 2, 9, 0, 1, tzinfo=UTC)
HOURLY = RepositoryState("1", "api", True, None, AT_NINE, "0 * * * *", "UTC")


async def test_a_repository_is_late_once_two_of_its_ticks_have_passed() -> None:
    assert await late_repositories([HOURLY], AT_NINE + timedelta(hours=1)) == []
    assert await late_repositories([HOURLY], AT_NINE + timedelta(hours=2)) == ["api"]
    synced = replace(HOURLY, last_sync_at=AT_NINE + timedelta(hours=2))
    assert await late_repositories([synced], AT_NINE + timedelta(hours=2)) == []


async def test_paused_unscheduled_and_unreadable_repositories_are_never_late() -> None:
    others = [
        replace(HOURLY, is_active=False, paused_reason="moved"),
        replace(HOURLY, cron_expression=None),
        replace(HOURLY, cron_expression="whenever"),
        replace(HOURLY, last_sync_at=None),
    ]
    assert await late_repositories(others, AT_NINE + timedelta(days=400)) == []
