from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from reposync.store.database import Database
from reposync.store.history import RunHistory
from reposync.store.manifest import Manifests
from reposync.store.registry import ProjectGroups
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration, Repository
from reposync.store.run import Ask, Run, RunAttempt, RunFigures
from reposync.store.run_log import RunLogs
from reposync.store.runs import Runs
from reposync.store.secret_findings import SecretFindings
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import REPOSITORIES, GroupEntry, IndexVersion, VersionState
from reposync.store.ticks import TickOutcome, Ticks
from reposync.store.versions import Published, Versions
from tests.fixtures.clocks import database_time  # noqa: F401
from tests.fixtures.databases import (  # noqa: F401
    database,
    database_kind,
    database_url,
    empty_database_url,
    open_database,
    postgresql,
    upgraded_sqlite_file,
)
from tests.fixtures.endings import ending

ON_POSTGRESQL = pytest.mark.parametrize("database_kind", ["postgresql"])
ON_EVERY_DATABASE = pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"])

# Tests name days of their own, which may be long ago.
ANY_GRACE_SECONDS = 1e10

COMMIT = "c" * 40
# Less than a year ago: each tick of a test is the latest of a yearly schedule.
TICK = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=200)
WHEN = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def registration(name: str, **changes: Any) -> Registration:
    place = {"location": "https://git.example.com/payments.git", "source": "git", "origin": "config"}
    return Registration(**{"name": name, "collection": "code", **place, **changes})


class Store:
    """The store over one database, and short ways to the states that tests start from."""

    def __init__(self, database: Database) -> None:  # noqa: F811
        self.database = database
        self.repositories = Repositories(database)
        self.manifests = Manifests(database)
        self.findings = SecretFindings(database)
        self.versions = Versions(database)
        self.runs = Runs(database)
        self.history = RunHistory(database)
        self.logs = RunLogs(database)
        self.ticks = Ticks(database)
        self.groups = ProjectGroups(database)

    async def put_groups(self, *keys: str, gone: Collection[str] = (), origin: str = "config") -> None:
        entries = [
            GroupEntry(key=key, definition={"gitlab": "main", "group": key.rpartition("/")[2]}, origin=origin)
            for key in keys
        ]
        async with self.database.write() as connection:
            await self.groups.write(connection, entries, gone)

    async def tick(
        self, when: datetime, *names: str, grace_seconds: float = ANY_GRACE_SECONDS, max_attempts: int = 3
    ) -> TickOutcome:
        """`when` was the latest tick of these repositories; nobody has looked at their schedules since it came."""
        await self.due(when, *names)
        return await self.take(grace_seconds, max_attempts)

    async def take(self, grace_seconds: float = ANY_GRACE_SECONDS, max_attempts: int = 3) -> TickOutcome:
        """A pod looks at what is due."""
        return await self.ticks.take(grace_seconds=grace_seconds, max_attempts=max_attempts)

    async def due(self, when: datetime, *names: str) -> None:
        yearly = f"{when.minute} {when.hour} {when.day} {when.month} *"
        those = update(REPOSITORIES).where(REPOSITORIES.c.name.in_(names or ("payments",)))
        before = when - timedelta(seconds=1)
        schedule = {"cron_expression": yearly, "timezone": "UTC", "next_due_at": when, "last_tick_at": before}
        await self.database.change(those.values(**schedule))

    async def repository(self, name: str = "payments", **changes: Any) -> Repository:
        return await self.repositories.register(registration(name, **changes))

    async def renamed(self, row: Repository, name: str) -> Repository:
        """As its group does it."""
        await self.repositories.rename(row, name)
        return await self.repositories.by_id(row.id)

    async def queued(self, name: str = "payments", trigger: RunTrigger = RunTrigger.COMMAND, **asked: Any) -> Run:
        await self.repository(name)
        run, created = await self.runs.enqueue(name, Ask(trigger, **asked))
        assert created
        return run

    async def ticked(self, when: datetime = TICK) -> None:
        """A repository whose run of a tick waits."""
        await self.repository()
        assert await self.tick(when) == TickOutcome(queued=1)

    async def claimed(self, worker: str = "worker-1") -> Run:
        """The run that is next."""
        run = await self.runs.claim(worker, 60.0)
        assert run is not None
        return run

    async def ended(self, run: Run | None = None, status: RunStatus = RunStatus.COMPLETED) -> Run:
        """The run that is next, or this one, is executed."""
        return await self.runs.end(run or await self.claimed(), ending(status), RunFigures())

    async def running(
        self, name: str = "payments", *, worker: str = "worker-1", lease_seconds: float = 60.0, **asked: Any
    ) -> Run:
        run = await self.queued(name, **asked)
        claimed = await self.runs.claim(worker, lease_seconds, run_id=run.id)
        assert claimed is not None
        return claimed

    async def attempts(self, run: Run) -> list[RunAttempt]:
        return (await self.history.get(run.id)).all_attempts

    async def building(self, run: Run, **columns: Any) -> IndexVersion:
        """A version that is built by `run`."""
        made = {"collection": "code", "physical": "code", "settings_key": "settings-1", **columns}
        return await self.versions.add(run, VersionState.BUILDING, **made)

    async def publishes(
        self, run: Run, version: IndexVersion | None = None, *, read: Repository | None = None, **said: Any
    ) -> IndexVersion:
        """`run` ends well; without `version` it works on the live one, or builds the first one."""
        if version is None:
            there = await self.versions.of(run.repository_id)
            live = [each for each in there if each.state is VersionState.LIVE]
            version = live[0] if live else await self.building(run)
        what: dict[str, Any] = {
            "commit": COMMIT,
            "committed_at": None,
            "complete": True,
            "index_identity": "index-1",
            "fingerprint": "rules-1",
            "attributes": {},
            "links": None,
            "branch_name": None,
            "project_id": None,
            **said,
        }
        read = read or await self.repositories.by_id(run.repository_id)
        return await self.versions.publish(run, version, read, Published(**what))

    async def replaced(self, run: Run, **columns: str) -> tuple[IndexVersion, IndexVersion]:
        """A version that was live, and the one that is now."""
        first = await self.publishes(run)
        second = await self.building(run, settings_key="settings-2", **columns)
        return first, await self.publishes(run, second, commit="d" * 40)

    async def taken(self, name: str) -> Run:
        """The run of this repository that waits, as a worker claims it."""
        (waiting,) = await self.history.active((await self.repositories.get(name)).id)
        claimed = await self.runs.claim("worker-1", 3_000.0, run_id=waiting.id)
        assert claimed is not None
        return claimed

    async def taken_over(self, run: Run, *, worker: str = "worker-2") -> Run:
        """The run as another worker has it after the lease of the first ran out."""
        await self.runs.expire(run)
        claimed = await self.runs.claim(worker, 60.0, run_id=run.id)
        assert claimed is not None
        return claimed


@pytest.fixture
def store(database: Database) -> Store:  # noqa: F811
    return Store(database)


@pytest.fixture
async def empty(empty_database_url: str) -> AsyncIterator[Database]:  # noqa: F811
    """A database without tables."""
    async with await Database.open(empty_database_url) as opened:
        yield opened
