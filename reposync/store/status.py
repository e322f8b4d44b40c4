"""The states of a run and what may start one. Free of SQL: the command line names them without loading it.

Rows may hold words that a newer program wrote: see `known`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

W = TypeVar("W", bound=StrEnum)


def known(words: type[W], word: str) -> W | str:
    """The member of `words` that a row names; a word that only a newer program knows is returned unchanged."""
    try:
        return words(word)
    except ValueError:
        return word


class RunStatus(StrEnum):
    """The values are in the database and in its partial indexes: do not rename them."""

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
"""Something will still happen without a person. As in the partial indexes, this excludes an unknown status: this
program can do nothing about such a run, and nobody should wait for it here."""

FINAL = frozenset(RunStatus) - ACTIVE
"""Nothing more happens by itself. Of these only `blocked` can continue, if a person approves it."""

LOST, RELEASED, YIELDED = "lost", "released", "yielded"
"""Outcomes of an attempt that are no status of a run: its worker vanished; it handed the run back because it was asked
to stop; it let other runs go first. Otherwise an attempt's outcome is the status that it gave the run."""


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
"""Lowest first: people who wait, then pushes, then schedules."""


class CredentialKind(StrEnum):
    """The values are in the database: do not rename them."""

    SESSION = "session"
    PERSONAL = "personal"
    CODE = "code"
    ACCESS = "access"
    REFRESH = "refresh"

    @property
    def prefix(self) -> str:
        """What the secret of such a credential begins with."""
        return f"rs{self.value[0]}_"


class FileChange(StrEnum):
    """What a run did to a file of the index. The values are in the database: do not rename them."""

    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    AT_RISK = "at_risk"
    """The deletion brake stopped the run before it would have removed the file."""
