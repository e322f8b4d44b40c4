"""The states of a run and what may start one. Free of SQL: the command line names them without loading it."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    """The values stand in the database and in its partial indexes: do not rename them."""

    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"


WAITING = frozenset({RunStatus.QUEUED, RunStatus.RETRYING})
"""A worker may claim it once `not_before` has passed. `retrying` was handed back by an attempt that began."""

ACTIVE = WAITING | {RunStatus.RUNNING}
"""Something will still happen without a person."""

FINAL = frozenset(RunStatus) - ACTIVE
"""Nothing more happens by itself. Of these only `blocked` can go on, when a person approves it."""


class RunTrigger(StrEnum):
    COMMAND = "command"
    SCHEDULE = "schedule"
    HTTP = "http"
    WEBHOOK = "webhook"


PRIORITIES = {RunTrigger.COMMAND: 0, RunTrigger.HTTP: 0, RunTrigger.WEBHOOK: 10, RunTrigger.SCHEDULE: 20}
"""Lower goes first: a person who waits before a push that somebody will search for before the clock."""
