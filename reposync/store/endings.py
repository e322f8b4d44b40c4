"""How an attempt at a run ends. The reason becomes one of these in `runs.endings`; `Runs.end` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reposync.store.status import PRIORITIES, RELEASED, YIELDED, RunStatus, RunTrigger


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and how an attempt ends. A run that was cancelled meanwhile ends as cancelled, unless it is over anyway."""

    code: str | None = None
    message: str | None = None

    @property
    def outcomes(self) -> frozenset[str]:
        """What the row of the attempt may have after it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Ending):
    """The run is completed, or cancelled."""

    status: RunStatus = RunStatus.COMPLETED

    @property
    def outcomes(self) -> frozenset[str]:
        return frozenset({self.status})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Ending):
    """The run failed, and a person decides."""

    own_requests: int | None = None
    """How many of the requests in the row are of the command that executes the run, and learns of the failure. If there
    are others, workers try the run again, and the attempt does not count."""
    delay_seconds: float = 0.0

    @property
    def outcomes(self) -> frozenset[str]:
        return frozenset({RunStatus.FAILED, RunStatus.RETRYING, RunStatus.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Ending):
    """The run waits for an approval of `brake`. If an earlier run of the repository does already, it waits for both."""

    brake: Mapping[str, Any] | None = None

    @property
    def outcomes(self) -> frozenset[str]:
        return frozenset({RunStatus.BLOCKED, RunStatus.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(Ending):
    """The attempt failed, and another one may not. After the last attempt the run ends as `at_last`."""

    delay_seconds: float
    at_last: RunStatus = RunStatus.FAILED

    @property
    def outcomes(self) -> frozenset[str]:
        return frozenset({RunStatus.RETRYING, RunStatus.CANCELLED, self.at_last})


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBack(Ending):
    """The run did not fail, and goes back into the queue."""

    delay_seconds: float = 0.0
    outcome: str = RELEASED
    priority: int | None = None

    @property
    def outcomes(self) -> frozenset[str]:
        return frozenset({self.outcome, RunStatus.CANCELLED})


STOPPING = HandBack()
"""This process shuts down."""
YIELDING = HandBack(outcome=YIELDED, priority=PRIORITIES[RunTrigger.SCHEDULE])
"""Other runs wait. Also a person's run continues with the priority of a scheduled one: it has had its turn."""
