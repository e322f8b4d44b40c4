"""Who may still write in the name of a run. The answer stands in the run's row and nowhere else."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import LeaseLost
from reposync.store.status import RunStatus
from reposync.store.tables import RUNS


class Attempt(Protocol):
    """One worker's try at a run (a `Run` as `claim` returned it)."""

    @property
    def id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def worker(self) -> str | None: ...


def held_by(run: Attempt) -> ColumnElement[bool]:
    """True of the run's row as long as nobody took it over, ended it or handed it back. `attempt` only ever grows."""
    return and_(
        RUNS.c.id == run.id,
        RUNS.c.attempt == run.attempt,
        RUNS.c.worker == run.worker,
        RUNS.c.status == RunStatus.RUNNING,
    )


def lease_lost(run: Attempt) -> LeaseLost:
    return LeaseLost(f"Run {run.id} is no longer attempt {run.attempt} of {run.worker}; nothing was written.")


async def hold(connection: AsyncConnection, run: Attempt) -> None:
    """Raises LeaseLost unless the run is still this attempt's, and keeps it so until the transaction ends: the row is
    locked against a take-over. Where the repository's row is locked too, lock that one first."""
    held = await connection.scalar(select(RUNS.c.id).where(held_by(run)).with_for_update(read=True))
    if held is None:
        raise lease_lost(run)
