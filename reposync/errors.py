"""Every error that a person may see. The message says what failed and where; `remedy` says what to do about it.

`code` is stable (history, HTTP, JSON), `status` is the HTTP status, `exit_code` the command line's (see EXIT_CODES),
and `retryable` tells whether the same run may be tried again without a person's help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

FAILED, MISUSED, NOT_FOUND, CONFLICT, INTERRUPTED = 1, 2, 3, 4, 130

EXIT_CODES = {
    0: "done",
    FAILED: "failed",
    MISUSED: "usage or configuration",
    NOT_FOUND: "what was named does not exist",
    CONFLICT: "not possible in its present state, or the name is ambiguous or taken",
    INTERRUPTED: "interrupted",
}
"""Of every command. A script tells a mistyped name (3) from a race with others (4)."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, for whoever is at a terminal, and for a client of the API. Pages have buttons and links for it."""

    command: str
    request: str

    def __str__(self) -> str:
        return self.command

    def redacted(self, redact: Callable[[str], str]) -> Remedy:
        return Remedy(redact(self.command), redact(self.request))


class RepoSyncError(Exception):
    """Base of the tree; raised as itself only for what was not foreseen."""

    code = "INTERNAL_ERROR"
    status = 500
    exit_code = FAILED
    retryable = False

    def __init__(
        self, message: str, *, remedy: str | Remedy | None = None, retry_after_seconds: float | None = None
    ) -> None:
        """`remedy` is a Remedy if it names a command. `retry_after_seconds`: what the server that failed asks for
        before the next try, from now."""
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message

    def redact(self, redact: Callable[[str], str]) -> None:
        """Take out of its words what `redact` does."""
        self.message = redact(self.message)
        if isinstance(self.remedy, Remedy):
            self.remedy = self.remedy.redacted(redact)
        elif self.remedy is not None:
            self.remedy = redact(self.remedy)

    @property
    def for_clients(self) -> str:
        """As `str`, for clients of the API."""
        return f"{self.message} {self.remedy.request}" if isinstance(self.remedy, Remedy) else str(self)

    @property
    def for_pages(self) -> str:
        """As `str`, for people with a browser."""
        return self.message if isinstance(self.remedy, Remedy) else str(self)


def first_error(errors: ExceptionGroup[Exception]) -> Exception:
    """The error that ended a TaskGroup: the first leaf, in the order in which tasks failed; the others are its echo.

    For `except ExceptionGroup`: what is raised inside `except*` is wrapped into a group again by Python 3.11.2.
    """
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, ExceptionGroup) else error


class ConfigError(RepoSyncError):
    """The registry or a setting is wrong; nothing was started."""

    code = "CONFIG_INVALID"
    status = 422
    exit_code = MISUSED


class SecretMissing(ConfigError):
    """This process does not have a secret that the repository's definition names; another process may."""

    code = "SECRET_MISSING"


class SourceElsewhere(RepoSyncError):
    """The folder is on another machine, whose processes can read it."""

    code = "SOURCE_ELSEWHERE"
    status = 409


class RegistryConflict(ConfigError):
    """Two registry files claim the same name."""

    code = "REGISTRY_CONFLICT"
    status = 409
    exit_code = CONFLICT


class UsageError(RepoSyncError):
    """What was asked for does not exist or does not fit."""

    code = "USAGE"
    status = 422
    exit_code = MISUSED


class RepositoryNotFound(UsageError):
    """No repository of that name is registered."""

    code = "REPOSITORY_NOT_FOUND"
    status = 404
    exit_code = NOT_FOUND


class RepositoryExists(UsageError):
    """The name is taken."""

    code = "REPOSITORY_EXISTS"
    status = 409
    exit_code = CONFLICT


class RepositoryReadOnly(UsageError):
    """It stands in the registry file or comes from a group, and is changed there."""

    code = "REPOSITORY_READ_ONLY"
    status = 409
    exit_code = CONFLICT


class RepositoryChanged(UsageError):
    """Somebody else changed it since it was read; nothing was written."""

    code = "REPOSITORY_CHANGED"
    status = 412
    exit_code = CONFLICT


class RepositoryInactive(UsageError):
    """It left the registry; what is indexed of it stays as it is."""

    code = "REPOSITORY_INACTIVE"
    status = 409
    exit_code = CONFLICT


class SourceNotAllowed(UsageError):
    """The operator lets nobody register such a source over HTTP."""

    code = "SOURCE_NOT_ALLOWED"
    status = 403


class NoEarlierVersion(UsageError):
    """No version of the index is kept that could be live again."""

    exit_code = CONFLICT


class NothingIndexed(UsageError):
    """The repository, or all of them, have no index yet."""

    exit_code = CONFLICT


class RunNotFound(UsageError):
    """No run has that id."""

    code = "RUN_NOT_FOUND"
    status = 404
    exit_code = NOT_FOUND


class RunAmbiguous(UsageError):
    """Several runs have an id that begins so."""

    code = "RUN_AMBIGUOUS"
    status = 409
    exit_code = CONFLICT


class RunStateConflict(UsageError):
    """A run in this state cannot be approved or tried again, or stands in the way of what was asked for."""

    code = "RUN_STATE_CONFLICT"
    status = 409
    exit_code = CONFLICT


# Sources -----------------------------------------------------------------------------------------------------------


class SourceError(RepoSyncError):
    """A source of files did not answer as it should."""

    code = "SOURCE_ERROR"
    status = 502


class SourceUnavailable(SourceError):
    """Network, time-out, 5xx, rate limit: trying again later may help."""

    code = "SOURCE_UNAVAILABLE"
    status = 503
    retryable = True


class SourceDenied(SourceError):
    """401 or 403: a person must mend the token or its rights."""

    code = "SOURCE_DENIED"


class SourceGone(SourceError):
    """404: the project is missing or hidden from this token. Never a reason to delete an index."""

    code = "SOURCE_GONE"


class BranchNotFound(SourceError):
    """The repository is there, the branch is not."""

    code = "BRANCH_NOT_FOUND"


class RepositoryEmpty(SourceError):
    """The repository has no commit yet."""

    code = "REPOSITORY_EMPTY"


class SourceCorrupt(SourceError):
    """Content that does not hash to its blob sha, a listing that contradicts itself, or an answer cut short."""

    code = "SOURCE_CORRUPT"
    retryable = True


# Embedding ---------------------------------------------------------------------------------------------------------


class EmbeddingError(RepoSyncError):
    """The embedding model or server refused or answered nonsense (wrong count, wrong dimension)."""

    code = "EMBEDDING_ERROR"
    status = 502


class EmbeddingUnavailable(EmbeddingError):
    """The embedding server cannot be reached or is overloaded."""

    code = "EMBEDDING_UNAVAILABLE"
    status = 503
    retryable = True


class EmbeddingAnswerUnreadable(EmbeddingError):
    """The server answered no JSON: a page of a proxy between passes, a wrong address does not."""

    code = "EMBEDDING_ANSWER_UNREADABLE"
    retryable = True


class EmbeddingInputRefused(EmbeddingError):
    """The model refuses this text; others may pass. Becomes a problem of its file, never the end of a run."""

    code = "EMBEDDING_INPUT_REFUSED"


# Index -------------------------------------------------------------------------------------------------------------


class VectorIndexError(RepoSyncError):
    """Qdrant refused a request or answered nonsense."""

    code = "INDEX_ERROR"
    status = 502


class IndexUnavailable(VectorIndexError):
    """Qdrant, or the embedded engine, cannot be reached."""

    code = "INDEX_UNAVAILABLE"
    status = 503
    retryable = True


class IndexAnswerUnreadable(VectorIndexError):
    """What answered is no Qdrant: a page of a proxy between passes, a wrong address does not."""

    code = "INDEX_ANSWER_UNREADABLE"
    retryable = True


class IndexMismatch(VectorIndexError):
    """The collection was made for another embedding model, dimension, windowing or schema."""

    code = "INDEX_MISMATCH"
    status = 409


class IndexChanged(VectorIndexError):
    """Points vanished while a run was writing: something else deletes in the collection."""

    code = "INDEX_CHANGED"
    status = 409
    retryable = True


class IndexUnsupported(VectorIndexError):
    """The embedded engine cannot do this; a Qdrant server can."""

    code = "INDEX_UNSUPPORTED"
    status = 501


# Store and runs ----------------------------------------------------------------------------------------------------


class StoreUnavailable(RepoSyncError):
    """The database cannot be reached, or its schema is not the one that this version needs."""

    code = "STORE_UNAVAILABLE"
    status = 503
    retryable = True


class ClockSkewed(RepoSyncError):
    """This machine's clock differs from the database's."""

    code = "CLOCK_SKEWED"
    status = 503


class Starting(StoreUnavailable):
    """The daemon has just been started; it answers in a moment."""

    code = "STARTING"


class LeaseLost(RepoSyncError):
    """Another worker took this run over; nothing more is written under it."""

    code = "LEASE_LOST"
    status = 409


class RunDefect(RepoSyncError):
    """Something that a run needs beside it ended by a defect: its heartbeat, or the watchdog of its lock."""

    retryable = True


class LockHeld(RepoSyncError):
    """The repository's Redis lock is somebody else's, and its holder is alive as far as anybody can tell."""

    code = "LOCK_HELD"
    status = 409
    exit_code = CONFLICT
    retryable = True


class LockLost(RepoSyncError):
    """The repository's Redis lock could not be kept until its end came near, or was taken by another."""

    code = "LOCK_LOST"
    status = 409
    retryable = True


class LockNotFound(UsageError):
    """Nobody holds the lock of that repository."""

    code = "LOCK_NOT_FOUND"
    status = 404
    exit_code = NOT_FOUND


class RedisUnavailable(RepoSyncError):
    """Redis cannot be reached, or does not do what it is asked. Syncs go on without it."""

    code = "REDIS_UNAVAILABLE"
    status = 503
    retryable = True


class RunCancelled(RepoSyncError):
    """Somebody asked for this run to end."""

    code = "RUN_CANCELLED"
    status = 409


class DeletionBlocked(RepoSyncError):
    """The brake: a run would take too much out of the index. It stays as it is until a person approves. `facts`: what
    an approval is for."""

    code = "DELETION_BLOCKED"
    status = 409

    facts: Mapping[str, Any] = MappingProxyType({})


class IndexHeld(RepoSyncError):
    """A person rolled the index back or paused its change, and the repository is configured to be elsewhere now."""

    code = "INDEX_HELD"
    status = 409


class GateClosed(RepoSyncError):
    """The version that was built answers the questions of the quality gate worse than the live one."""

    code = "INDEX_GATE_CLOSED"
    status = 409


CANNOT_HERE = frozenset({RepositoryNotFound.code, SecretMissing.code, SourceElsewhere.code})
"""Why a process hands a run back that others may be able to execute."""


class DefinitionChanged(RepoSyncError):
    """The repository was registered differently while a run was under way; what it made is not published."""

    code = "SUPERSEDED"
    status = 409
