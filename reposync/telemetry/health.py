"""The health of this process: its dependencies, each `ok`, `degraded` or `down`; and conditions that last."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

# Not structlog, which imports a terminal library: `configure_logging` makes these lines structured too.
log = logging.getLogger(__name__)

HealthStatus: TypeAlias = Literal["ok", "degraded", "down"]
ShownStatus: TypeAlias = HealthStatus | Literal["starting"]

_SEVERITY: Mapping[ShownStatus, int] = {"ok": 0, "degraded": 1, "starting": 2, "down": 3}
_LEVEL: Mapping[ShownStatus, int] = {"ok": logging.INFO, "degraded": logging.WARNING, "down": logging.ERROR}

LONGEST_REASON_CHARS = 500
_REQUIRED = "database"
"""Everything needs it; a pod without any other component is degraded at worst."""


@dataclass(frozen=True, slots=True)
class Component:
    """The last report on one dependency. `since`: start of this status; `reason`: a sentence if it is not `ok`.
    `starting`: of the database, until there is a report."""

    status: ShownStatus
    reason: str | None
    since: datetime
    latency_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """`status`: the worst of all; only the database makes it `down` or `starting`."""

    status: ShownStatus
    components: Mapping[str, Component]


class Health:
    """The last report on every component. Its methods return at once and raise nothing. A pod is not ready before it
    has reached its database."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._components = {_REQUIRED: Component("starting", "It has not been checked yet.", now())}

    def report(
        self,
        component: str,
        status: HealthStatus,
        reason: str | None = None,
        latency_seconds: float | None = None,
    ) -> None:
        """Set the status of `component`. Changes are logged, repetitions are not."""
        before = self._components.get(component)
        if before is not None and before.status == "starting":
            before = None
        since = before.since if before is not None and before.status == status else self._now()
        reason = reason if status != "ok" else None
        if reason is not None and len(reason) > LONGEST_REASON_CHARS:
            reason = reason[: LONGEST_REASON_CHARS - 1] + "…"
        after = self._components[component] = Component(status, reason, since, latency_seconds)
        if before is None or before.status != status:
            _log_change(component, before, after)

    def forget(self, component: str) -> None:
        """Remove a dependency, such as a GitLab server that left the registry. The database stays."""
        if component != _REQUIRED:
            self._components.pop(component, None)

    def snapshot(self) -> HealthSnapshot:
        components = dict(sorted(self._components.items()))
        counted = (self._counted(name, found.status) for name, found in components.items())
        return HealthSnapshot(max(counted, key=_SEVERITY.__getitem__), components)

    def _counted(self, name: str, status: ShownStatus) -> ShownStatus:
        return "degraded" if status == "down" and name != _REQUIRED else status


def _log_change(name: str, before: Component | None, after: Component) -> None:
    fields: dict[str, object] = {"component": name, "status": after.status}
    if after.reason:
        fields["reason"] = after.reason
    if after.latency_seconds is not None:
        fields["latency_seconds"] = round(after.latency_seconds, 4)
    if before is not None:
        fields["was"] = before.status
        fields["was_for_seconds"] = round((after.since - before.since).total_seconds(), 1)
    log.log(_LEVEL[after.status], "%s is %s", name, after.status, extra=fields)


class Trouble:
    """One lasting condition, logged when it begins, when it changes and when it is over: a daemon without its database
    reports it twice a night, not 5,000 times."""

    def __init__(self, over: str) -> None:
        """`over`: the log message when it is over."""
        self._over = over
        self._met: tuple[str, str] | None = None

    def met(self, event: str, reason: str, *, defect: Exception | None = None, **fields: object) -> None:
        """Log the event, unless it repeats for the same reason. `defect`: logged with its traceback."""
        if self._met != (event, reason):
            self._met = event, reason
            level = logging.WARNING if defect is None else logging.ERROR
            log.log(level, event, extra={"reason": reason, **fields}, exc_info=defect)

    def over(self, **fields: object) -> None:
        if self._met is not None:
            self._met = None
            log.info(self._over, extra=fields)
