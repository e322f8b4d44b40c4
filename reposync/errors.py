"""All errors for users. The message says what failed and where; `remedy` says what to do.

`code` is stable (history, HTTP, JSON), `status` is the HTTP status, `exit_code` that of commands (see EXIT_CODES), and
`retryable` tells whether the run may be retried without a person's help.
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
"""Of all commands. Scripts can distinguish a mistyped name (3) from a conflict (4)."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, at a terminal and for a client of the API. Pages have buttons and links for it."""

    command: str
    request: str

    def __str__(self) -> str:
        return self.command

    def redacted(self, redact: Callable[[str], str]) -> Remedy:
        return Remedy(redact(self.command), redact(self.request))


class RepoSyncError(Exception):
    """Base of all errors; raised itself only for an unexpected one."""

    code = "INTERNAL_ERROR"
    status = 500
    exit_code = FAILED
    retryable = False

    def __init__(
        self, message: str, *, remedy: str | Remedy | None = None, retry_after_seconds: float | None = None
    ) -> None:
        """`remedy` is a Remedy if it names a command. `retry_after_seconds`: the wait that the failed server
        requests."""
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message

    def redact(self, redact: Callable[[str], str]) -> None:
        """Apply `redact` to all text."""
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
    """The error that ended a TaskGroup: the first leaf, in the order in which tasks failed; the others follow from it.

    For `except ExceptionGroup`: Python 3.11.2 wraps what is raised inside `except*` into a group again.
    """
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, ExceptionGroup) else error


class ConfigError(RepoSyncError):
    """The registry or a setting is wrong; nothing was started."""

    code = "CONFIG_INVALID"
    status = 422
    exit_code = MISUSED


class SecretMissing(ConfigError):
    """This process lacks a secret that the repository's definition names; a different process may have it."""

    code = "SECRET_MISSING"


class SourceElsewhere(RepoSyncError):
    """The folder is on a different machine."""

    code = "SOURCE_ELSEWHERE"
    status = 409


class RegistryConflict(ConfigError):
    """Two registry files claim the same name."""

    code = "REGISTRY_CONFLICT"
    status = 409
    exit_code = CONFLICT


class UsageError(RepoSyncError):
    """The request names something that does not exist or is not valid."""

    code = "USAGE"
    status = 422
    exit_code = MISUSED


class NotFoundError(UsageError):
    """The named object does not exist."""

    status = 404
    exit_code = NOT_FOUND


class ConflictError(UsageError):
    """The state of an object does not allow the request."""

    status = 409
    exit_code = CONFLICT


class RepositoryNotFound(NotFoundError):
    """No repository of that name is registered."""

    code = "REPOSITORY_NOT_FOUND"


class RepositoryExists(ConflictError):
    """The name is taken."""

    code = "REPOSITORY_EXISTS"


class RepositoryReadOnly(ConflictError):
    """It is defined in the registry file or by a group, and is changed there."""

    code = "REPOSITORY_READ_ONLY"


class RepositoryChanged(UsageError):
    """It was changed since it was read; nothing was written."""

    code = "REPOSITORY_CHANGED"
    status = 412
    exit_code = CONFLICT


class RepositoryInactive(ConflictError):
    """It left the registry; its index is unchanged."""

    code = "REPOSITORY_INACTIVE"


class SourceNotAllowed(UsageError):
    """The operator does not allow such sources over HTTP."""

    code = "SOURCE_NOT_ALLOWED"
    status = 403


class NoEarlierVersion(UsageError):
    """No earlier version of the index is kept."""

    exit_code = CONFLICT


class NothingIndexed(UsageError):
    """The repository, or every repository, has no index yet."""

    exit_code = CONFLICT


class RunNotFound(NotFoundError):
    """No run has that id."""

    code = "RUN_NOT_FOUND"


class RunAmbiguous(ConflictError):
    """Several runs have an id with this prefix."""

    code = "RUN_AMBIGUOUS"


class RunStateConflict(ConflictError):
    """The state of the run does not allow the request."""

    code = "RUN_STATE_CONFLICT"


# Sources -----------------------------------------------------------------------------------------------------------


class SourceError(RepoSyncError):
    """A source of files answered unexpectedly."""

    code = "SOURCE_ERROR"
    status = 502


class SourceUnavailable(SourceError):
    """Network failure, time-out, 5xx or rate limit: a later retry may succeed."""

    code = "SOURCE_UNAVAILABLE"
    status = 503
    retryable = True


class SourceDenied(SourceError):
    """401 or 403: the token or its permissions must be corrected."""

    code = "SOURCE_DENIED"


class SourceGone(SourceError):
    """404: the project is missing or hidden from this token. The index is never deleted for it."""

    code = "SOURCE_GONE"


class BranchNotFound(SourceError):
    """The repository exists, the branch does not."""

    code = "BRANCH_NOT_FOUND"


class RepositoryEmpty(SourceError):
    """The repository has no commit yet."""

    code = "REPOSITORY_EMPTY"


class SourceCorrupt(SourceError):
    """Content that does not hash to its blob sha, a contradictory listing, or a truncated answer."""

    code = "SOURCE_CORRUPT"
    retryable = True


# Embedding ---------------------------------------------------------------------------------------------------------


class EmbeddingError(RepoSyncError):
    """The embedding model or server refused a request or returned an invalid answer (wrong count, wrong dimension)."""

    code = "EMBEDDING_ERROR"
    status = 502


class EmbeddingUnavailable(EmbeddingError):
    """The embedding server cannot be reached or is overloaded."""

    code = "EMBEDDING_UNAVAILABLE"
    status = 503
    retryable = True


class EmbeddingAnswerUnreadable(EmbeddingError):
    """The server did not answer JSON: the page of a proxy is temporary, a wrong address is not."""

    code = "EMBEDDING_ANSWER_UNREADABLE"
    retryable = True


class EmbeddingInputRefused(EmbeddingError):
    """The model refuses this text. It becomes a problem of its file and never ends a run."""

    code = "EMBEDDING_INPUT_REFUSED"


# Index -------------------------------------------------------------------------------------------------------------


class VectorIndexError(RepoSyncError):
    """Qdrant refused a request or returned an invalid answer."""

    code = "INDEX_ERROR"
    status = 502


class IndexUnavailable(VectorIndexError):
    """Qdrant, or the embedded engine, cannot be reached."""

    code = "INDEX_UNAVAILABLE"
    status = 503
    retryable = True


class IndexAnswerUnreadable(VectorIndexError):
    """The answer is not Qdrant's: the page of a proxy is temporary, a wrong address is not."""

    code = "INDEX_ANSWER_UNREADABLE"
    retryable = True


class IndexMismatch(VectorIndexError):
    """The collection was created for a different embedding model, dimension, windowing or schema."""

    code = "INDEX_MISMATCH"
    status = 409


class IndexChanged(VectorIndexError):
    """Points disappeared during a run: a different program deletes in the collection."""

    code = "INDEX_CHANGED"
    status = 409
    retryable = True


class IndexUnsupported(VectorIndexError):
    """The embedded engine does not support this; a Qdrant server does."""

    code = "INDEX_UNSUPPORTED"
    status = 501


# Store and runs ----------------------------------------------------------------------------------------------------


class StoreUnavailable(RepoSyncError):
    """The database cannot be reached, or its schema does not fit this version."""

    code = "STORE_UNAVAILABLE"
    status = 503
    retryable = True


class ClockSkewed(RepoSyncError):
    """This machine's clock differs from the database's."""

    code = "CLOCK_SKEWED"
    status = 503


class Starting(StoreUnavailable):
    """The daemon is starting; it answers in a moment."""

    code = "STARTING"


class LeaseLost(RepoSyncError):
    """A different worker took over the run; this one writes nothing more."""

    code = "LEASE_LOST"
    status = 409


class RunDefect(RepoSyncError):
    """A background task of the run failed: its heartbeat, or the watchdog of its lock."""

    retryable = True


class LockHeld(RepoSyncError):
    """The repository's Redis lock is held by a different process, which seems to be alive."""

    code = "LOCK_HELD"
    status = 409
    exit_code = CONFLICT
    retryable = True


class LockLost(RepoSyncError):
    """The repository's Redis lock could not be renewed in time, or was taken over."""

    code = "LOCK_LOST"
    status = 409
    retryable = True


class LockNotFound(NotFoundError):
    """The repository is not locked."""

    code = "LOCK_NOT_FOUND"


class RedisUnavailable(RepoSyncError):
    """Redis cannot be reached or fails. Syncs continue without it."""

    code = "REDIS_UNAVAILABLE"
    status = 503
    retryable = True


class RunCancelled(RepoSyncError):
    """The run was cancelled on request."""

    code = "RUN_CANCELLED"
    status = 409


class DeletionBlocked(RepoSyncError):
    """The deletion brake: a run would remove too much from the index, which is unchanged until a person approves.
    `facts`: what an approval is for."""

    code = "DELETION_BLOCKED"
    status = 409

    facts: Mapping[str, Any] = MappingProxyType({})


class IndexHeld(RepoSyncError):
    """The index was rolled back or its change was paused, and the configured location is a different one now."""

    code = "INDEX_HELD"
    status = 409


class GateClosed(RepoSyncError):
    """The new version answers the questions of the quality gate worse than the live one."""

    code = "INDEX_GATE_CLOSED"
    status = 409


CANNOT_HERE = frozenset({RepositoryNotFound.code, SecretMissing.code, SourceElsewhere.code})
"""Reasons for returning a run that a different process may be able to execute."""


class DefinitionChanged(RepoSyncError):
    """The definition of the repository changed during the run; its result is not published."""

    code = "SUPERSEDED"
    status = 409
