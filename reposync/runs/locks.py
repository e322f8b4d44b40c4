"""The second guard of a sync, and what operators see of it. The first one is the run's row in the database.

A lock is a Redis key a repository. Its value names the worker, pod first, and the attempt that holds it: the token is
never used twice, and whoever finds a value there can ask the database whether its holder still counts.
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
TTL_SECONDS = 1800.0

# How long the database may take to say whether a holder still counts.
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
        # The last space: a pod's name may have some.
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
    """A lock as it is in Redis. `holder` None: somebody else's value; `ttl_seconds` None: it never ends by itself.
    Bytes of `value` that are no text are half surrogates in it."""

    repository_id: str
    holder: LockHolder | None
    ttl_seconds: float | None
    value: str


IsStale = Callable[[LockHolder], Awaitable[bool]]
"""Whether a holder does not count any more, so that its lock may be replaced. Raises nothing."""


class LockObserver(Protocol):
    """Told on the event loop; every method returns at once and raises nothing."""

    def lock_taken(self, seconds: float) -> None:
        """A sync got its lock after so long."""

    def lock_missing(self) -> None:
        """A sync begins without its lock: Redis does not do its work."""

    def lock_lost(self, reason: str) -> None:
        """A sync had to be stopped. `unreachable`: Redis was away until the lock nearly ran out; `taken`: somebody
        alive has the lock; `superseded`: the run is another attempt's by now."""

    def lock_unavailable(self, reason: str) -> None:
        """Redis does not do its work; the database's claim guards alone. `reason`: a sentence without a secret."""

    def lock_available(self) -> None:
        """Redis does its work, for the first time or again."""


class LockGuard(Protocol):
    async def watch(self) -> None:
        """Keep the lock until cancelled. Raises LockLost when it cannot be kept: the sync must end then."""


class RunLocks(Protocol):
    def guard(self, run: Run) -> AbstractAsyncContextManager[LockGuard]:
        """Hold the lock of `run`'s repository, which this process has claimed. Entering raises LockHeld where somebody
        alive holds it; where Redis cannot be asked, the database's claim guards alone. Leaving gives the lock back,
        within a second, and raises nothing."""

    async def list(self) -> list[LockRecord]:
        """Every lock there is, by repository id. Raises RedisUnavailable."""

    async def release(self, repository_id: str, value: str) -> bool:
        """Remove the lock if its value is exactly this; whether it was. Raises RedisUnavailable."""

    async def close(self) -> None:
        """Raises nothing."""


class NoLocks:
    """Where there is no Redis: the database's claim guards alone."""

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
    """What the database says about a holder. Its run is unknown: another installation shares the Redis, and its locks
    are respected. The database does not answer: the same."""

    async def is_stale(holder: LockHolder) -> bool:
        try:
            async with asyncio.timeout(_JUDGEMENT_SECONDS):
                run = await runs.get(holder.run_id)
        except (RunNotFound, RunAmbiguous, StoreUnavailable, TimeoutError):
            return False
        return run.id == holder.run_id and not holds(run, holder)

    return is_stale


def holds(run: Run, holder: LockHolder) -> bool:
    """Whether `run`, as the database has it, is being executed by exactly this holder."""
    return run.status is RunStatus.RUNNING and (run.worker, run.attempt) == (holder.worker, holder.attempt)
