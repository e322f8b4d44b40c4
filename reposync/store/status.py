"""The states of a run and what may start one. Free of SQL: the command line names them without loading it.

Rows may hold words that a newer program wrote: see `known`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

W = TypeVar("W", bound=StrEnum)


def known(words: type[W], word: str) -> W | str:
    """The member of `words` that a row names; a word that only a newer program knows stays as it is."""
    try:
        return words(word)
    except ValueError:
        return word


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
"""Something will still happen without a person. A status that is not known is not among these, as in the partial
indexes: this program can do nothing about such a run, and nobody is to wait for it here."""

FINAL = frozenset(RunStatus) - ACTIVE
"""Nothing more happens by itself. Of these only `blocked` can go on, when a person approves it."""


class RunTrigger(StrEnum):
    COMMAND = "command"
    SCHEDULE = "schedule"
    HTTP = "http"
    WEBHOOK = "webhook"


PRIORITIES: Mapping[str, int] = {
    RunTrigger.COMMAND: 0,
    RunTrigger.HTTP: 0,
    RunTrigger.WEBHOOK: 10,
    RunTrigger.SCHEDULE: 20,
}
"""Lower goes first: a person who waits before a push that somebody will search for before the clock."""
