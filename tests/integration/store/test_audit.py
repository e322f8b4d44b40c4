"""The audit as an administrator pages through it, and what is kept of it while the database is away."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from reposync.app.audit import MAX_WAITING, AuditWriter
from reposync.errors import StoreUnavailable
from reposync.store.audit import AuditLog
from reposync.store.database import Database
from reposync.store.people_tables import AuditEntry
from tests.integration.store.conftest import ON_EVERY_DATABASE, WHEN

pytestmark = ON_EVERY_DATABASE


def entry(number: int, **changes: Any) -> AuditEntry:
    words = {"actor": "@ann", "via": "http", "address": "192.0.2.7", "operation": "search", "outcome": "ok"}
    at = WHEN + timedelta(minutes=number // 2)  # two at a time
    return AuditEntry(**{"id": f"{number:04}", "at": at, "repositories": ["payments"], **words, **changes})


async def test_pages_follow_each_other_without_gap_or_repetition_while_entries_are_added(database: Database) -> None:
    audit = AuditLog(database)
    entries = [entry(number) for number in range(7)]
    await audit.add(entries)
    seen = page = await audit.page(2)
    await audit.add([entry(100)])
    while page:
        page = await audit.page(2, before=(page[-1].at, page[-1].id))
        seen = seen + page
    assert seen == entries[::-1]


async def test_entries_are_found_by_person_repository_operation_and_time(database: Database) -> None:
    audit = AuditLog(database)
    await audit.add(
        [
            entry(0, repositories=["platform/payments", "100%"]),
            entry(2, actor="@bob", repositories=["platform/payments-api"]),
            entry(4, operation="read", repositories=['a"b', "größe"]),
        ]
    )

    async def found(**filters: Any) -> list[str]:
        return [each.id for each in await audit.page(10, **filters)]

    assert await found(actor="@bob") == ["0002"]
    assert await found(repository="platform/payments") == ["0000"], "and not what only begins with the name"
    assert await found(repository="100%") == ["0000"]
    assert await found(repository="1%") == []
    assert await found(repository='a"b') == ["0004"]
    assert await found(repository="größe") == ["0004"]
    assert await found(operation="read") == ["0004"]
    assert await found(since=WHEN + timedelta(minutes=1), until=WHEN + timedelta(minutes=2)) == ["0002"]


async def test_only_what_is_old_enough_is_deleted(database: Database) -> None:
    audit = AuditLog(database)
    await audit.add([entry(number) for number in range(10)])
    assert await audit.purge(WHEN + timedelta(minutes=3), batch=2) == 6
    assert [each.id for each in await audit.page(10)] == ["0009", "0008", "0007", "0006"]


async def test_what_waits_is_written_when_the_writer_ends(database: Database) -> None:
    audit = AuditLog(database)
    writer = AuditWriter(audit)
    task = asyncio.create_task(writer.run())
    writer.add(entry(1))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert [each.id for each in await audit.page(10)] == ["0001"]


async def test_entries_that_were_written_before_the_connection_broke_are_no_error(database: Database) -> None:
    audit = AuditLog(database)
    await audit.add([entry(1)])
    await audit.add([entry(1), entry(2)])
    assert [each.id for each in await audit.page(10)] == ["0002", "0001"]


class _Away(AuditLog):
    """A database that does not answer until `is_back`."""

    is_back = False

    async def add(self, entries: Any) -> None:
        if not self.is_back:
            raise StoreUnavailable("The database does not answer.")
        await super().add(entries)


async def test_entries_wait_for_a_database_that_does_not_answer(database: Database) -> None:
    audit = _Away(database)
    writer = AuditWriter(audit)
    writer.add(entry(1))
    with pytest.raises(StoreUnavailable):
        await writer.flush()
    audit.is_back = True
    await writer.flush()
    assert [each.id for each in await audit.page(10)] == ["0001"]


async def test_the_oldest_entries_are_lost_and_counted_if_it_is_away_for_too_long(database: Database) -> None:
    audit, lost = _Away(database), []
    writer = AuditWriter(audit, lost.append)
    for number in range(MAX_WAITING + 3):
        writer.add(entry(number))
    audit.is_back = True
    await writer.flush()
    assert sum(lost) == 3
    assert [each.id for each in await audit.page(1)] == [f"{MAX_WAITING + 2:04}"]
    assert len(await audit.page(MAX_WAITING + 10)) == MAX_WAITING
