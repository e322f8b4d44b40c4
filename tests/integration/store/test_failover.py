"""PostgreSQL that is read-only is waited for, and another server takes its place: a real primary and its standby."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator

import pytest
from sqlalchemy import text

from reposync.errors import StoreUnavailable
from reposync.store.database import Database
from tests.fixtures.databases import REPLICATED, PostgresqlServer, started_postgresql
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.tcp_proxy import TcpProxy

pytestmark = pytest.mark.full

READ_ONLY = "ALTER SYSTEM SET default_transaction_read_only = on"
RELOAD = "SELECT pg_reload_conf()"


@pytest.fixture
def primary() -> Generator[PostgresqlServer, None, None]:
    with started_postgresql(REPLICATED) as server:
        yield server


@pytest.fixture
async def database(primary: PostgresqlServer) -> AsyncIterator[Database]:
    async with await Database.open(primary.url) as opened:
        await opened.upgrade()
        yield opened


@pytest.fixture
def standby(primary: PostgresqlServer, database: Database) -> Generator[PostgresqlServer, None, None]:
    """It has the tables from the beginning: replication is asynchronous."""
    with started_postgresql(REPLICATED, standby_of=primary) as server:
        yield server


async def refused(database: Database) -> str:
    """The sentence, as soon as it is known to be read-only; connections may break before."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await database.ping()
            except StoreUnavailable as error:
                if "read-only" in str(error):
                    return str(error)
            await asyncio.sleep(0.01)


async def well(database: Database) -> None:
    """As soon as it can be written to."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await write(database)
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def write(database: Database) -> None:
    await database.change(text("UPDATE sync_runs SET attempt = attempt WHERE false"))


async def test_connections_to_a_server_that_was_demoted_without_a_restart_are_given_up(
    primary: PostgresqlServer, standby: PostgresqlServer, database: Database
) -> None:
    await database.close()
    url = f"postgresql://postgres@/postgres?host={primary.home},{standby.home}"
    async with await Database.open(url) as both:
        await well(both)

        await asyncio.to_thread(primary.executes, READ_ONLY, RELOAD)

        said = await refused(both)
        assert "it is read-only (a standby, or a primary that was demoted)" in said
        assert "Work continues as soon as" in said
        await asyncio.to_thread(standby.executes, "SELECT pg_promote()")
        await well(both)
        async with both.read() as connection:
            assert await connection.scalar(text("SHOW default_transaction_read_only")) == "off"


@pytest.mark.parametrize("waits", [True, False])
async def test_behind_a_server_that_fell_silent_the_next_one_is_reached(
    primary: PostgresqlServer, database: Database, waits: bool
) -> None:
    """`waits`: the caller, for as long as that takes; a heartbeat has a third of its lease, and asks again."""
    with TcpProxy(primary.url) as silent, TcpProxy(primary.url) as other:
        silent.stall()
        url = f"postgresql://postgres@{silent.host}:{silent.port},{other.host}:{other.port}/postgres"
        if waits:
            async with await Database.open(url) as both:
                return await both.ping()
        silent.resume()
        async with await Database.open(url) as both:
            assert both.connect is not None
            silent.stall()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await both.connect()
            async with asyncio.timeout(3.0):  # a silent server would take four of them
                connection = await both.connect()
            assert await connection.fetchval("SELECT 1") == 1
            connection.terminate()
