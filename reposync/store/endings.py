"""How an attempt at a run ends. The reason becomes one of these in `runs.endings`; `Runs.end` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from reposync.errors import CANNOT_HERE
from reposync.store.run import COUNTS, RunFigures
from reposync.store.run_state import Event
from reposync.store.status import PRIORITIES, RELEASED, YIELDED, RunStatus, RunTrigger


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and how an attempt ends. A run that was cancelled meanwhile ends as cancelled, unless it is over anyway."""

    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Ending):
    """The run is completed, or cancelled."""

    status: RunStatus = RunStatus.COMPLETED


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Ending):
    """The run failed, and a person decides."""

    own_requests: int | None = None
    """How many of the requests in the row are of the command that executes the run, and learns of the failure. If there
    are others, workers try the run again, and the attempt does not count."""
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Ending):
    """The run waits for an approval of `brake`. If an earlier run of the repository does already, it waits for both."""

    brake: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(Ending):
    """The attempt failed, and another one may not. After the last attempt the run ends as `at_last`."""

    delay_seconds: float
    at_last: RunStatus = RunStatus.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBack(Ending):
    """The run did not fail, and goes back into the queue."""

    delay_seconds: float = 0.0
    outcome: str = RELEASED
    priority: int | None = None


STOPPING = HandBack()
"""This process shuts down."""
YIELDING = HandBack(outcome=YIELDED, priority=PRIORITIES[RunTrigger.SCHEDULE])
"""Other runs wait. Also a person's run continues with the priority of a scheduled one: it has had its turn."""


# What it does to the row ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """What an ending does to the row of a run. `delay_seconds`: until the next attempt; None if there is none.
    `outcome`: see `move`."""

    event: Event
    columns: Mapping[str, Any]
    delay_seconds: float | None = None
    outcome: str | None = None


def step_of(row: Row[Any], ending: Ending, error: Mapping[str, Any]) -> Step:
    uncounted = {**error, "handed_back": row.handed_back + 1, "max_attempts": row.max_attempts + 1}
    match ending:
        case Finish(status=RunStatus.COMPLETED):
            return Step(Event.COMPLETE, error)
        case Fail(own_requests=None):
            return Step(Event.FAIL, error)
        case _ if row.cancel_requested:  # with the reason of that
            return Step(Event.STOP, {})
        case Finish():
            return Step(Event.STOP, error)
        case Fail() if len(row.asked) <= (ending.own_requests or 0):
            return Step(Event.FAIL, error)
        case Fail():
            return Step(Event.RETRY_LATER, uncounted, ending.delay_seconds)
        case Retry() if row.attempt < row.max_attempts:
            return Step(Event.RETRY_LATER, error, ending.delay_seconds)
        case Retry():
            event = Event.COMPLETE if ending.at_last is RunStatus.COMPLETED else Event.FAIL
            return Step(event, error)
        case Block():
            # An approval holds for what the run met first, and for nothing later.
            brake = dict(ending.brake) if ending.brake else None
            return Step(Event.BLOCK, {**error, "brake": brake, "approval": None})
        case HandBack():
            priority = row.priority if ending.priority is None else ending.priority
            return Step(Event.HAND_BACK, uncounted | {"priority": priority}, ending.delay_seconds, ending.outcome)
    raise NotImplementedError(ending)


def is_same_wait(earlier: str | None, code: str | None, figures: RunFigures | None) -> bool:
    """Whether the attempt did nothing, for the reason of the one before."""
    worked = figures is not None and any(getattr(figures, name) for name in COUNTS)
    return not worked and code is not None and (code == earlier or {code, earlier} <= CANNOT_HERE)
