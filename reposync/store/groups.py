"""Groups whose projects register themselves: when each is due, who looks through it, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import LeaseLost
from reposync.store.database import Database
from reposync.store.database_clock import AHEAD_SECONDS
from reposync.store.tables import GROUPS

MAX_MESSAGE_CHARS = 10_000
_LONGEST_LEASE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class GroupState:
    """A row of `project_groups`. `projects`: how many were registered when it was last looked through whole, which was
    at `checked_at`. The error is that of the latest try; None where all went well."""

    key: str
    due_at: datetime
    worker: str | None
    lease_until: datetime | None
    attempt: int
    checked_at: datetime | None
    projects: int
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class GroupClaim:
    """One look through a group, and the fence of what is written in its name: `attempt` is never given twice."""

    key: str
    worker: str
    attempt: int


class Groups:
    """Every method raises StoreUnavailable. A group is known by its key, `<server's address>/<path>`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def declare(self, keys: Collection[str]) -> None:
        """These groups are configured, and due at once: whoever has just read a new configuration wants it to hold."""
        async with self._database.write() as connection:
            for key in sorted(keys):
                now = self._database.moment()
                insert = self._database.insert(GROUPS).values(key=key, due_at=now, projects=0)
                sooner = case((GROUPS.c.due_at > now, now), else_=GROUPS.c.due_at)
                await connection.execute(insert.on_conflict_do_update(index_elements=["key"], set_={"due_at": sooner}))

    async def claim_due(self, worker: str, lease_seconds: float, *, among: Collection[str]) -> GroupClaim | None:
        """The group of `among` that has been due for longest and that nobody looks through, as this worker's from now
        on. A lease that ran out is nobody's."""
        now = self._database.moment()
        # Neither a lease nor a look can be of the future: the database's clock was set back since.
        lost = or_(GROUPS.c.lease_until < now, GROUPS.c.lease_until > self._database.moment(_LONGEST_LEASE_SECONDS))
        free = or_(GROUPS.c.lease_until.is_(None), lost)
        due = or_(GROUPS.c.due_at <= now, GROUPS.c.checked_at > self._database.moment(AHEAD_SECONDS))
        query = (
            select(GROUPS.c.key)
            .where(GROUPS.c.key.in_(among), due, free)
            .order_by(GROUPS.c.due_at, GROUPS.c.key)
            .limit(1)
        )
        async with self._database.read() as connection:  # asked first, because it takes no lock: most polls find none
            if await connection.scalar(query) is None:
                return None
        async with self._database.write() as connection:
            chosen = query.with_for_update(skip_locked=True).scalar_subquery()
            return await self._take(connection, GROUPS.c.key == chosen, worker, lease_seconds)

    async def claim(self, key: str, worker: str, lease_seconds: float) -> GroupClaim:
        """This group as this worker's, whether it is due or not, and whoever has it: a person is waiting. The other
        one finds its claim gone before it writes."""
        async with self._database.write() as connection:
            insert = self._database.insert(GROUPS).values(key=key, due_at=self._database.moment(), projects=0)
            await connection.execute(insert.on_conflict_do_nothing())
            claim = await self._take(connection, GROUPS.c.key == key, worker, lease_seconds)
        if claim is None:
            raise LeaseLost(f"Group {key} left the registry at this moment.")
        return claim

    async def _take(
        self, connection: AsyncConnection, which: ColumnElement[bool], worker: str, lease_seconds: float
    ) -> GroupClaim | None:
        lease_until = self._database.moment(lease_seconds)
        taken = update(GROUPS).where(which).values(worker=worker, lease_until=lease_until, attempt=GROUPS.c.attempt + 1)
        row = (await connection.execute(taken.returning(GROUPS.c.key, GROUPS.c.attempt))).one_or_none()
        return None if row is None else GroupClaim(row.key, worker, row.attempt)

    async def renew(self, claim: GroupClaim, lease_seconds: float) -> None:
        """The lease begins anew. Raises LeaseLost."""
        async with self._database.write() as connection:
            renewed = update(GROUPS).where(_held(claim)).values(lease_until=self._database.moment(lease_seconds))
            if not (await connection.execute(renewed)).rowcount:
                raise _lost(claim)

    async def hold(self, claim: GroupClaim, connection: AsyncConnection) -> None:
        """Raises LeaseLost unless the claim stands, and keeps it so until the transaction ends."""
        query = select(GROUPS.c.key).where(_held(claim)).with_for_update(read=True)
        if await connection.scalar(query) is None:
            raise _lost(claim)

    async def record(
        self,
        claim: GroupClaim,
        next_due: Callable[[datetime], datetime],
        *,
        projects: int | None = None,
        error_code: str | None = None,
        error_message: str | None = None,
    ) -> bool:
        """How it ended; the group is free again. `next_due` says from the database's time when it is due next;
        `projects` is None where it was not looked through whole. False, and nothing written, if the claim is gone."""
        async with self._database.write() as connection:
            now: datetime = (await connection.execute(select(self._database.moment()))).scalar_one()
            ended: dict[str, Any] = {
                "due_at": next_due(now),
                "worker": None,
                "lease_until": None,
                "error_code": error_code,
                "error_message": error_message[:MAX_MESSAGE_CHARS] if error_message else None,
            }
            if projects is not None:
                ended |= {"projects": projects, "checked_at": now}
            query = update(GROUPS).where(_held(claim)).values(**ended)
            return (await connection.execute(query)).rowcount == 1

    async def release(self, claim: GroupClaim) -> None:
        """Given up before its end: it is as due as before, and the next worker may have it at once."""
        async with self._database.write() as connection:
            query = update(GROUPS).where(_held(claim))
            await connection.execute(query.values(worker=None, lease_until=None))

    async def forget(self, keep: Collection[str]) -> list[str]:
        """Drop what is not configured any more; which these were."""
        async with self._database.write() as connection:
            gone = delete(GROUPS).where(GROUPS.c.key.not_in(keep)).returning(GROUPS.c.key)
            return sorted((await connection.execute(gone)).scalars())

    async def list(self) -> list[GroupState]:
        """All of them, by key."""
        async with self._database.read() as connection:
            rows = await connection.execute(select(GROUPS).order_by(GROUPS.c.key))
            return [GroupState(**row._mapping) for row in rows]


def _held(claim: GroupClaim) -> ColumnElement[bool]:
    """The worker as well: pods of the version before count no attempts."""
    return and_(GROUPS.c.key == claim.key, GROUPS.c.attempt == claim.attempt, GROUPS.c.worker == claim.worker)


def _lost(claim: GroupClaim) -> LeaseLost:
    return LeaseLost(f"Group {claim.key} is looked through by another worker.")
