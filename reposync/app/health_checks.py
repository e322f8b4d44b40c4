"""Periodic health checks of dependencies; probes read the last result."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from reposync.app.application import Application
from reposync.config.registry import GitLabInstance
from reposync.errors import ClockSkewed, RepoSyncError, StoreUnavailable
from reposync.outgoing import RetryPolicy
from reposync.supervision import keep
from reposync.telemetry.health import Health, HealthStatus, Trouble
from reposync.telemetry.redaction import Secrets

# How often the list of checks is updated from the registry.
_LOOK_SECONDS = 2.0
_LATE = 4
LONGEST_SKEW_SECONDS = 30.0
"""Only certificates, webhook signatures and log times depend on the pod's clock."""


class Pace(NamedTuple):
    """`again_seconds`: pause after a failed check, so that a recovery is noticed soon."""

    every_seconds: float
    timeout_seconds: float
    again_seconds: float


OWN = Pace(every_seconds=5.0, timeout_seconds=4.0, again_seconds=5.0)
"""For our own servers: the loss of the database is noticed within seconds."""
OTHERS = Pace(every_seconds=60.0, timeout_seconds=10.0, again_seconds=15.0)
"""For third-party servers, which limit requests."""


class Check(NamedTuple):
    """`worst`: the status if `ask` fails. `subject`: if it changes, the check starts again."""

    component: str
    ask: Callable[[], Awaitable[object]]
    pace: Pace
    worst: HealthStatus = "degraded"
    subject: object = None


@dataclass
class HealthChecks:
    """Of the database, Redis, Qdrant, the embedding server and each GitLab server of the current registry."""

    app: Application
    health: Health
    secrets: Secrets
    own: Pace = OWN
    others: Pace = OTHERS

    async def run(self) -> None:
        """Until cancelled."""
        running: dict[str, tuple[object, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                wanted = {check.component: check for check in self._checks()}
                for component, (subject, task) in list(running.items()):
                    if component not in wanted or wanted[component].subject != subject:
                        task.cancel()
                        await asyncio.wait({task})
                        del running[component]
                        if component not in wanted:
                            self.health.forget(component)
                for component, check in wanted.items():
                    if component not in running:
                        name = f"health of {component}"
                        task = group.create_task(keep(name, partial(self._repeat, check)), name=name)
                        running[component] = (check.subject, task)
                await asyncio.sleep(_LOOK_SECONDS)

    def _checks(self) -> Iterator[Check]:
        app = self.app
        registry = app.configuration.registry
        yield Check("database", app.database.ping, self.own, "down")
        if app.database.clock.is_measured:
            yield Check("clock", self._ask_clock, self.own)
        ping: Callable[[], Awaitable[object]] | None = getattr(app.locks, "ping", None)
        if ping is not None:
            # Degraded: the database's claim guards every sync too.
            yield Check("redis", ping, self.own)
        yield Check("qdrant", self._ask_index, self.own, "down")
        if registry.embedding.provider == "local":
            yield Check("embedding", self._ask_local_model, self.others)
        elif registry.embedding.provider != "none":
            yield Check("embedding", lambda: app.embedder().ping(), self.others)
        for server in registry.gitlab:
            yield Check(f"gitlab:{server.name}", partial(self._ask_gitlab, server), self.others, subject=server)

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

    async def _repeat(self, check: Check) -> None:
        pace = check.pace
        unexpected = Trouble("a health check works again")
        while True:
            is_well = await self._once(check, unexpected)
            pause = pace.every_seconds if is_well else min(pace.every_seconds, pace.again_seconds)
            # Random, so that pods that started together do not ask together.
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311

    async def _once(self, check: Check, unexpected: Trouble) -> bool:
        limit = check.pace.timeout_seconds
        began = time.monotonic()
        reason: str | None = None
        try:
            async with asyncio.timeout(limit):
                await check.ask()
        except TimeoutError:
            reason = f"No answer within {limit:g} s."
        except RepoSyncError as error:
            reason = self.secrets.redact(str(error))
        except Exception as error:  # noqa: BLE001 - a defect of one check must not end the others
            reason = f"It could not be checked ({type(error).__name__}); see the log."
            event = "a health check failed unexpectedly"
            unexpected.met(event, self.secrets.redact(str(error)), defect=error, component=check.component)
        else:
            unexpected.over(component=check.component)
        status: HealthStatus = "ok" if reason is None else check.worst
        valid_seconds = _LATE * (check.pace.every_seconds + limit)
        latency = time.monotonic() - began if reason is None else None
        self.health.report(check.component, status, reason, latency, valid_seconds=valid_seconds)
        return reason is None
