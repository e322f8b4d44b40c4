"""The second guard of a sync. The first one is the run's row in the database.

A lock is one Redis key a repository. Its value names the worker, pod first, and the attempt that holds it: a value is
never used twice, and the database can tell whether its holder is stale.
"""

from __future__ import annotations

import asyncio
import builtins
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from reposync.errors import RunAmbiguous, RunNotFound, StoreUnavailable
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunStatus

LOCK_PREFIX = "reposync:lock:repository:"

# How long the database may take to say whether a holder is stale.
_JUDGEMENT_SECONDS = 5.0
_TOKEN = re.compile(r"(?P<run_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):(?P<attempt>[0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class LockHolder:
    """One worker's attempt at a run."""

    worker: str
    run_id: str
    attempt: int

    @classmethod
    def of(cls, run: Run) -> LockHolder:
        return cls(run.worker or "", run.id, run.attempt)

    @classmethod
    def parse(cls, value: str) -> LockHolder | None:
        """None for a value that no reposync wrote."""
        # The last space: a pod's name may contain spaces.
        worker, _, token = value.rpartition(" ")
        found = _TOKEN.fullmatch(token)
        if found is None or not worker or not worker.isprintable():
            return None
        return cls(worker, found["run_id"], int(found["attempt"]))

    @property
    def pod(self) -> str:
        return self.worker.rsplit(":", 2)[0]

    @property
    def value(self) -> str:
        return f"{self.worker} {self.run_id}:{self.attempt}"


@dataclass(frozen=True, slots=True)
class LockRecord:
    """A lock as stored in Redis. `holder` None: reposync did not write the value; `ttl_seconds` None: it never expires.
    Bytes of `value` that are not text are surrogates (PEP 383)."""

    repository_id: str
    holder: LockHolder | None
    ttl_seconds: float | None
    value: str


IsStale = Callable[[LockHolder], Awaitable[bool]]
"""Whether a holder's run has ended or was taken over, so that its lock may be replaced. Raises nothing."""


class LockGuard(Protocol):
    async def watch(self) -> None:
        """Keep the lock until cancelled. Raises LockLost if it cannot be kept: then the sync must end."""


class RunLocks(Protocol):
    def guard(self, run: Run) -> AbstractAsyncContextManager[LockGuard]:
        """Hold the lock of `run`'s repository; this process has claimed the run. Entering raises LockHeld if a live
        worker holds it; without Redis, only the database's claim guards. Leaving releases the lock within a second, and
        raises nothing."""

    async def list(self) -> list[LockRecord]:
        """All locks, by repository id. Raises RedisUnavailable."""

    async def release(self, repository_id: str, value: str) -> bool:
        """Remove the lock if its value is exactly this; returns whether it was removed. Raises RedisUnavailable."""

    async def close(self) -> None:
        """Raises nothing."""


class NoLocks:
    """Without Redis: only the database's claim guards."""

    @asynccontextmanager
    async def guard(self, run: Run) -> AsyncGenerator[LockGuard, None]:
        yield _Unguarded()

    async def list(self) -> builtins.list[LockRecord]:
        return []

    async def release(self, repository_id: str, value: str) -> bool:
        return False

    async def close(self) -> None:
        return


class _Unguarded:
    async def watch(self) -> None:
        await asyncio.Event().wait()


def stale_by(runs: Runs) -> IsStale:
    """Decide by the database. A holder is respected if its run is unknown (a different installation shares the Redis)
    or if the database does not answer."""

    async def is_stale(holder: LockHolder) -> bool:
        try:
            async with asyncio.timeout(_JUDGEMENT_SECONDS):
                run = await runs.get(holder.run_id)
        except (RunNotFound, RunAmbiguous, StoreUnavailable, TimeoutError):
            return False
        return run.id == holder.run_id and not holds(run, holder)

    return is_stale


def holds(run: Run, holder: LockHolder) -> bool:
    """Whether exactly this holder executes `run`."""
    return run.status is RunStatus.RUNNING and (run.worker, run.attempt) == (holder.worker, holder.attempt)
