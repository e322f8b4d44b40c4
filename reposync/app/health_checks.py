"""Periodic health checks of dependencies; probes read the last result."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from reposync.app.application import Application
from reposync.config.registry import GitLabInstance
from reposync.errors import ClockSkewed, RepoSyncError, StoreUnavailable
from reposync.outgoing import RetryPolicy
from reposync.telemetry.health import Health, HealthStatus, Trouble
from reposync.telemetry.redaction import Secrets
from reposync.words import next_attempt

# How often the list of checks is updated from the registry.
_LOOK_SECONDS = 2.0
LONG_WAIT_SECONDS = 300.0
"""Shorter pauses that a server requests are usual."""
LONGEST_SKEW_SECONDS = 30.0
"""Only certificates, webhook signatures and log times depend on the pod's clock."""


# The longest pause after a failed check, so that a recovery is noticed soon.
_AGAIN_SECONDS = 15.0


class Pace(NamedTuple):
    every_seconds: float
    timeout_seconds: float


OWN = Pace(every_seconds=5.0, timeout_seconds=4.0)
"""For our own servers: the loss of the database is noticed within seconds."""
OTHERS = Pace(every_seconds=60.0, timeout_seconds=10.0)
"""For third-party servers, which limit requests."""


class Check(NamedTuple):
    """`worst`: the status if `ask` fails."""

    ask: Callable[[], Awaitable[object]]
    pace: Pace
    worst: HealthStatus = "degraded"


@dataclass
class HealthChecks:
    """Of the database, the waits in its queue, Redis, Qdrant, the embedding server and each GitLab server of the
    current registry."""

    app: Application
    health: Health
    secrets: Secrets
    own: Pace = OWN
    others: Pace = OTHERS

    async def run(self) -> None:
        """Until cancelled."""
        running: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                for component in self._checks():
                    if component not in running or running[component].done():
                        running[component] = group.create_task(self._repeat(component))
                await asyncio.sleep(_LOOK_SECONDS)

    def _checks(self) -> dict[str, Check]:
        """Of the current registry, by component."""
        app = self.app
        registry = app.configuration.registry
        checks = {
            "database": Check(app.database.ping, self.own, "down"),
            "qdrant": Check(self._ask_index, self.own, "down"),
            "waits": Check(self._ask_for_waits, self.own),
        }
        if app.database.clock.is_measured:
            checks["clock"] = Check(self._ask_clock, self.own)
        ping: Callable[[], Awaitable[object]] | None = getattr(app.locks, "ping", None)
        if ping is not None:
            # Degraded: the database's claim guards every sync too.
            checks["redis"] = Check(ping, self.own)
        if registry.embedding.provider == "local":
            checks["embedding"] = Check(self._ask_local_model, self.others)
        elif registry.embedding.provider != "none":
            checks["embedding"] = Check(lambda: app.embedder().ping(), self.others)
        for server in registry.gitlab:
            checks[f"gitlab:{server.name}"] = Check(partial(self._ask_gitlab, server), self.others)
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

    async def _ask_local_model(self) -> None:
        # Not the embedder: its import takes a second, and its memory is never freed.
        from reposync.embedding.settings import check_weights

        await asyncio.to_thread(check_weights)

    async def _ask_gitlab(self, server: GitLabInstance) -> None:
        from reposync.sources.gitlab_client import GitLabClient

        limit = self.others.timeout_seconds
        names = ("connect_timeout_seconds", "read_timeout_seconds")
        impatient = server.model_copy(update={name: min(getattr(server, name), limit) for name in names})
        gitlab = GitLabClient(impatient, retry=RetryPolicy(attempts=1, max_wait_seconds=0.0))
        try:
            await gitlab.ping()
        finally:
            await gitlab.close()

    async def _repeat(self, component: str) -> None:
        unexpected = Trouble("a health check works again")
        while (check := self._checks().get(component)) is not None:
            reason = await self._once(component, check, unexpected)
            pause = check.pace.every_seconds if reason is None else min(check.pace.every_seconds, _AGAIN_SECONDS)
            # Random, so that pods that started together do not ask together.
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311
        self.health.forget(component)

    async def _once(self, component: str, check: Check, unexpected: Trouble) -> str | None:
        """The reason if it failed."""
        began = time.monotonic()
        reason: str | None = None
        try:
            async with asyncio.timeout(check.pace.timeout_seconds):
                await check.ask()
        except TimeoutError:
            reason = f"No answer within {check.pace.timeout_seconds:g} s."
        except RepoSyncError as error:
            reason = self.secrets.redact(str(error))
        except Exception as error:  # noqa: BLE001 - a defect of one check must not end the others
            reason = f"It could not be checked ({type(error).__name__}); see the log."
            unexpected.met("a health check failed", self.secrets.redact(str(error)), defect=error, component=component)
        else:
            unexpected.over(component=component)
        latency = time.monotonic() - began if reason is None else None
        self.health.report(component, "ok" if reason is None else check.worst, reason, latency)
        return reason
