"""Periodic health checks of dependencies; probes read the last result."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from reposync.app.application import Application
from reposync.config.gitlab_instance import GitLabInstance
from reposync.errors import ClockSkewed, RepoSyncError, StoreUnavailable
from reposync.outgoing import RetryPolicy
from reposync.telemetry.health import Health, HealthStatus
from reposync.telemetry.redaction import Secrets
from reposync.words import next_attempt

T = TypeVar("T")

LONG_WAIT_SECONDS = 300.0
"""Shorter pauses that a server requests are usual."""
LONGEST_SKEW_SECONDS = 30.0
"""Only certificates, webhook signatures and log times depend on the pod's clock."""

OWN_SECONDS = 5.0
"""How often our own servers are checked: the loss of the database is noticed within seconds."""
OTHERS_SECONDS = 60.0
"""How often servers of third parties are checked, which limit requests."""
_AGAIN_SECONDS = 15.0
"""The longest pause after a failed check, so that a recovery is noticed soon."""
TIMEOUT_SECONDS = 4.0


class Check(NamedTuple):
    """`worst`: the status if `ask` fails. `pause_seconds`: until the next time; 0: each time."""

    ask: Callable[[], Awaitable[object]]
    worst: HealthStatus = "degraded"
    pause_seconds: float = 0.0


@dataclass
class HealthChecks:
    """The checks of the database, the waits in its queue, Redis, Qdrant, the embedding server and each GitLab server of
    the current registry."""

    app: Application
    health: Health
    secrets: Secrets
    own_seconds: float = OWN_SECONDS
    others_seconds: float = OTHERS_SECONDS
    timeout_seconds: float = TIMEOUT_SECONDS

    async def run(self) -> None:
        """Until cancelled."""
        due: dict[str, float] = {}
        while True:
            checks, now = self.checks(), time.monotonic()
            for component in due.keys() - checks.keys():
                self.health.forget(component)
            # Those of servers that were registered since, too.
            names = [name for name in checks if due.get(name, now) <= now]
            async with asyncio.TaskGroup() as group:  # which ends after all of them, also if it is cancelled
                tasks = {name: group.create_task(self._check(name, checks[name])) for name in names}
            due = {name: due.get(name, now) for name in checks}
            due |= {name: now + task.result() for name, task in tasks.items()}
            # Random, so that pods that started together do not ask together.
            await asyncio.sleep(self.own_seconds * random.uniform(0.8, 1.2))  # noqa: S311

    def checks(self) -> dict[str, Check]:
        """The checks for the current registry, by component."""
        app = self.app
        registry = app.configuration.registry
        checks = {
            "database": Check(app.database.ping, "down"),
            "qdrant": Check(self._ask_index, "down"),
            "waits": Check(self._ask_for_waits),
        }
        if app.database.clock.is_measured:
            checks["clock"] = Check(self._ask_clock)
        if app.locks is not None:
            # Degraded: the database's claim guards every sync too.
            checks["redis"] = Check(app.locks.ping)
        if registry.embedding.provider != "none":
            checks["embedding"] = Check(lambda: app.embedder().ping(), pause_seconds=self.others_seconds)
        for server in registry.gitlab:
            ask = partial(self._ask_gitlab, server)
            checks[f"gitlab:{server.name}"] = Check(ask, pause_seconds=self.others_seconds)
        return checks

    async def _ask_clock(self) -> None:
        with contextlib.suppress(StoreUnavailable):  # the check of the database reports it
            await self.app.database.clock.measure()
        skew_seconds = self.app.database.clock.skew_seconds
        if abs(skew_seconds) > LONGEST_SKEW_SECONDS:
            relation = "ahead of" if skew_seconds > 0 else "behind"
            raise ClockSkewed(
                f"This pod's clock is {abs(skew_seconds):,.0f} s {relation} the database's, which all pods use.",
                remedy="Set the clock of its node (NTP), or of the database's machine.",
            )

    async def _ask_for_waits(self) -> None:
        """Raises RepoSyncError if runs pause for long because a server asks for that."""
        with contextlib.suppress(StoreUnavailable):  # the check of the database reports it
            if runs := await self.app.history.long_waits(LONG_WAIT_SECONDS):
                first = runs[0]
                more = f", and {len(runs) - 1:,} more runs wait" if runs[1:] else ""
                when = next_attempt(first.not_before)
                raise RepoSyncError(f"{first.repository}: {when}{more}. {first.error_message}")

    async def _ask_index(self) -> None:
        await self.app.index(self.app.configuration.registry.defaults.collection).ping()

    async def _ask_gitlab(self, server: GitLabInstance) -> None:
        from reposync.sources.gitlab_client import GitLabClient

        limit = self.timeout_seconds
        names = ("connect_timeout_seconds", "read_timeout_seconds")
        impatient = server.model_copy(update={name: min(getattr(server, name), limit) for name in names})
        gitlab = GitLabClient(impatient, retry=RetryPolicy(attempts=1, max_wait_seconds=0.0))
        try:
            await gitlab.ping()
        finally:
            await gitlab.close()

    async def _check(self, component: str, check: Check) -> float:
        """Returns the pause until the next time."""
        began = time.monotonic()
        error = await problem_or(check.ask, self.timeout_seconds, self.secrets)
        reason = str(error) if isinstance(error, RepoSyncError) else None
        latency = time.monotonic() - began if reason is None else None
        self.health.report(component, "ok" if reason is None else check.worst, reason, latency)
        return check.pause_seconds if reason is None else min(check.pause_seconds, _AGAIN_SECONDS)


async def problem_or(ask: Callable[[], Awaitable[T]], timeout_seconds: float, secrets: Secrets) -> T | RepoSyncError:
    """The answer, or why there is none in time, without secrets."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return await ask()
    except TimeoutError:
        return RepoSyncError(f"No answer within {timeout_seconds:g} s.")
    except RepoSyncError as error:
        error.redact(secrets.redact)
        return error.without_traceback()
    except Exception as error:  # noqa: BLE001 - a defect of one check must not end the others
        return RepoSyncError(secrets.redact(f"It could not be checked: {type(error).__name__}: {error}"))
