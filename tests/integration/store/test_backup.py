"""A copy of the SQLite database while it is written to: whole, or not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from reposync.config.database_url import SqliteAddress, parse_address, sqlite_url
from reposync.errors import StoreUnavailable, UsageError
from reposync.store.database import Database
from reposync.store.schema import HEAD
from reposync.store.sqlite import back_up
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.integration.store.conftest import Store


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / "reposync.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "reposync.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    async with await Database.open(sqlite_url(path)) as database:
        await database.upgrade()
        yield Store(database)


async def test_a_copy_holds_what_was_committed_and_nothing_of_what_was_not(
    store: Store, path: Path, target: Path
) -> None:
    run = await store.queued("payments")
    async with store.database.write() as connection:
        await connection.execute(text("UPDATE sync_runs SET worker = 'not committed'"))
        made = await asyncio.wait_for(back_up(SqliteAddress(path), target), PATIENCE_SECONDS)

    assert (made.path, made.revision, made.size_bytes) == (target, HEAD, target.stat().st_size)
    assert target.stat().st_mode & 0o777 == 0o600, "it holds addresses of repositories"
    assert [each.name for each in target.parent.iterdir()] == [target.name]
    async with await Database.open(sqlite_url(target)) as copy:
        assert (await copy.schema()).state == "current"
        (found,) = await Store(copy).history.runs()
    assert (found.id, found.worker) == (run.id, None)


@pytest.mark.parametrize("there", ["file", "dangling link"])
async def test_nothing_is_overwritten(store: Store, path: Path, target: Path, there: str) -> None:
    if there == "file":
        target.write_bytes(b"of last week")
    else:
        target.symlink_to(target.with_name("nowhere"))

    with pytest.raises(UsageError, match="exists, and a back-up overwrites nothing"):
        await back_up(SqliteAddress(path), target)

    assert target.is_symlink() or target.read_bytes() == b"of last week"
    assert [each.name for each in target.parent.iterdir()] == [target.name]


async def test_a_failed_copy_reports_the_reason_and_leaves_nothing(tmp_path: Path, path: Path, target: Path) -> None:
    with pytest.raises(UsageError, match="There is no database"):
        await back_up(SqliteAddress(path), target)
    assert not path.exists(), "it is not made by the way"
    path.parent.mkdir()
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(StoreUnavailable, match=r"could not be copied.*not an SQLite database"):
        await back_up(SqliteAddress(path), target)
    with pytest.raises(UsageError, match="There is no folder"):
        await back_up(SqliteAddress(path), tmp_path / "nowhere" / "reposync.db")
    with pytest.raises(UsageError, match="PostgreSQL") as told:
        await back_up(parse_address("postgresql://someone:secret@db.example.com/reposync"), target)

    assert "pg_dump" in str(told.value.remedy)
    assert "secret" not in f"{told.value} {told.value.remedy}"
    assert list(target.parent.iterdir()) == []
