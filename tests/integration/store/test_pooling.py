"""Connections that the server closed are replaced before anybody notices."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from reposync.store import database as database_module
from reposync.store.database import Database
from reposync.store.status import RunTrigger
from tests.fixtures.tcp_proxy import TcpProxy
from tests.integration.store.conftest import Store


@pytest.fixture
def database_kind() -> str:
    """SQLite has no server."""
    return "postgresql"


async def end_all_connections(url: str) -> int:
    """Those of this database's users but for our own, as a restart of the server would, and wait until they are gone;
    tells how many there were."""
    server = await asyncpg.connect(url)
    try:
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        others = "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        return len(await server.fetch(f"{ended} {others}"))
    finally:
        await server.close()


async def test_connections_that_the_server_closed_are_replaced_without_an_error(
    database: Database, database_url: str
) -> None:
    store = Store(database)
    await asyncio.gather(*(store.repository(f"repository-{number}") for number in range(6)))

    for _ in range(3):
        assert await end_all_connections(database_url)
        names = [f"repository-{number}" for number in range(6)]
        runs = await asyncio.gather(*(store.runs.enqueue(name, RunTrigger.HTTP) for name in names))
        assert {run.repository for run, _ in runs} == set(names)
        assert len(await store.runs.history()) == 6


async def test_connections_that_a_silent_server_does_not_let_end_are_cut(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CLOSE_SECONDS", 0.1)
    with TcpProxy(database_url) as proxy:
        async with await Database.open(proxy.url) as behind:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(behind.ping())
            opened = list(behind._connections)
            assert opened
            proxy.stall("requests", "answers")
        assert all(connection.is_closed() for connection in opened)
