"""All errors for users. The message says what failed and where; `remedy` says what to do.

`code` is stable (history, HTTP, JSON), `status` is the HTTP status, `exit_code` that of commands (see EXIT_CODES), and
`retryable` tells whether the run may be retried without a person's help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from reposync.next_steps import NextStep

NEXT_RUN = "The next run tries again."
"""The remedy of a failure of a server that repairs itself, if there is a next run."""

FAILED, MISUSED, NOT_FOUND, CONFLICT, INTERRUPTED = 1, 2, 3, 4, 130

EXIT_CODES = {
    0: "done",
    FAILED: "failed",
    MISUSED: "usage or configuration",
    NOT_FOUND: "what was named does not exist",
    CONFLICT: "not possible in its present state, or the name is ambiguous or taken",
    INTERRUPTED: "interrupted",
}
"""The exit codes of all commands. Scripts can distinguish a mistyped name (3) from a conflict (4)."""


class RepoSyncError(Exception):
    """An error that was not foreseen. Base of all errors."""

    code = "INTERNAL_ERROR"
    status = 500
    exit_code = FAILED
    retryable = False
    details: Mapping[str, Any] = MappingProxyType({})
    """For programs."""

    def __init_subclass__(
        cls, code: str = "", status: int = 0, exit_code: int = 0, retryable: bool | None = None, **others: Any
    ) -> None:
        super().__init_subclass__(**others)
        cls.code, cls.status, cls.exit_code = code or cls.code, status or cls.status, exit_code or cls.exit_code
        cls.retryable = cls.retryable if retryable is None else retryable

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        next_steps: Sequence[NextStep] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        """`remedy` holds for every front end; `next_steps` are said by each in its own words. `retry_after_seconds`:
        the wait that the failed server requests."""
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.next_steps = tuple(next_steps)
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message

    def redact(self, redact: Callable[[str], str]) -> None:
        """Apply `redact` to all text."""
        self.message = redact(self.message)
        if self.remedy is not None:
            self.remedy = redact(self.remedy)

    def without_traceback(self) -> Self:
        """For an error that is kept: the frames of its traceback, and of its causes, keep what they worked with."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


def error_classes() -> dict[str, type[RepoSyncError]]:
    """The class of each code that this process knows: the most general one."""
    classes: dict[str, type[RepoSyncError]] = {}
    pending = [RepoSyncError]
    for error_class in pending:
        classes.setdefault(error_class.code, error_class)
        pending += error_class.__subclasses__()
    return classes


def first_error(errors: ExceptionGroup[Exception]) -> Exception:
    """The error that ended a TaskGroup: the first leaf, in the order in which tasks failed; the others follow from it.

    For `except ExceptionGroup`: Python 3.11.2 wraps what is raised inside `except*` into a group again.
    """
    error = errors.exceptions[0]
    return first_error(error) if isinstance(error, ExceptionGroup) else error


class ConfigError(RepoSyncError, code="CONFIG_INVALID", status=422, exit_code=MISUSED):
    """The registry or a setting is wrong; nothing was started."""


class SecretMissing(ConfigError, code="SECRET_MISSING"):
    """This process lacks a secret that the repository's definition names; a different process may have it."""


class SecretRulesUnavailable(RepoSyncError, code="SECRET_RULES_UNAVAILABLE", status=500):
    """The rules that find secrets in code cannot be loaded; nothing is indexed without them."""


class SourceElsewhere(RepoSyncError, code="SOURCE_ELSEWHERE", status=409):
    """The folder is on a different machine."""


class RegistryConflict(ConfigError, code="REGISTRY_CONFLICT", status=409, exit_code=CONFLICT):
    """The registry file has the name of a repository, or the path of a group, that a command or a request over HTTP
    registered."""


class UsageError(RepoSyncError, code="USAGE", status=422, exit_code=MISUSED):
    """The request names something that does not exist or is not valid."""


class NotFoundError(UsageError, status=404, exit_code=NOT_FOUND):
    """The named object does not exist."""


class ConflictError(UsageError, status=409, exit_code=CONFLICT):
    """The state of an object does not allow the request."""


class RepositoryNotFound(NotFoundError, code="REPOSITORY_NOT_FOUND"):
    """No repository of that name is registered."""


class RepositoryLeft(RepositoryNotFound):
    """The repository was removed, or left the configuration, since the run was requested."""


class GroupNotFound(NotFoundError, code="GROUP_NOT_FOUND"):
    """No GitLab group of that path is registered."""


class GroupExists(ConflictError, code="GROUP_EXISTS"):
    """The group is registered in a different case, or its path is that of groups of several servers."""


class GroupReadOnly(ConflictError, code="GROUP_READ_ONLY"):
    """The group is defined in the registry file, and is changed there."""


class RepositoryExists(ConflictError, code="REPOSITORY_EXISTS"):
    """The name is taken."""


class RepositoryReadOnly(ConflictError, code="REPOSITORY_READ_ONLY"):
    """It is defined in the registry file or by a group, and is changed there."""


class RepositoryChanged(UsageError, code="REPOSITORY_CHANGED", status=412, exit_code=CONFLICT):
    """It was changed since it was read; nothing was written."""


class RepositoryInactive(ConflictError, code="REPOSITORY_INACTIVE"):
    """It left the registry; its index is unchanged."""


class SourceNotAllowed(UsageError, code="SOURCE_NOT_ALLOWED", status=403):
    """The operator does not allow such sources over HTTP."""


class NothingIndexed(UsageError, code="NOTHING_INDEXED", exit_code=CONFLICT):
    """The repository, or every repository, has no index yet."""


class NoQuestions(UsageError, code="NO_QUESTIONS", exit_code=CONFLICT):
    """The history of the repository has no commit that can be a question."""


class ReplayFailed(RepoSyncError, code="REPLAY_FAILED", status=502):
    """A past commit could not be indexed for an evaluation; the real index is not affected."""


class FileNotIndexed(NotFoundError, code="FILE_NOT_INDEXED"):
    """The index has nothing of this file: it is skipped, or not in the commit."""


class LinesNotFound(UsageError, code="LINES_NOT_FOUND"):
    """The file has fewer lines."""


class RunNotFound(NotFoundError, code="RUN_NOT_FOUND"):
    """No run has that id."""


class RunAmbiguous(ConflictError, code="RUN_AMBIGUOUS"):
    """Several runs have an id with this prefix."""


class RunStateConflict(ConflictError, code="RUN_STATE_CONFLICT"):
    """The state of the run does not allow the request."""


# Sources


class SourceError(RepoSyncError, code="SOURCE_ERROR", status=502):
    """A source of files answered unexpectedly."""


class SourceUnavailable(SourceError, code="SOURCE_UNAVAILABLE", status=503, retryable=True):
    """Network failure, time-out, 5xx or rate limit: a later retry may succeed."""


class SourceDenied(SourceError, code="SOURCE_DENIED"):
    """401 or 403: the token or its permissions must be corrected."""


class SourceGone(SourceError, code="SOURCE_GONE"):
    """404: the project is missing or hidden from this token. The index is never deleted for it."""


class BranchNotFound(SourceError, code="BRANCH_NOT_FOUND"):
    """The repository exists, the branch does not."""


class RepositoryEmpty(SourceError, code="REPOSITORY_EMPTY"):
    """The repository has no commit yet."""


class SourceCorrupt(SourceError, code="SOURCE_CORRUPT", retryable=True):
    """Content that does not hash to its blob sha, a contradictory listing, or a truncated answer."""


# Access by GitLab's rights


class RightsUnavailable(RepoSyncError, code="RIGHTS_UNAVAILABLE", status=503, retryable=True):
    """GitLab did not say what the reader may see, and its last answer is too old."""


class ReaderRefused(RepoSyncError, code="UNAUTHENTICATED", status=401):
    """No valid credential: none was sent, it is unknown, or GitLab does not accept it."""


class TooManyUnknownTokens(RepoSyncError, code="TOO_MANY_UNKNOWN_TOKENS", status=429, retryable=True):
    """Too many tokens that nobody knows yet were sent, by this client or by all."""


# Embedding


class EmbeddingError(RepoSyncError, code="EMBEDDING_ERROR", status=502):
    """The embedding model or server refused a request or returned an invalid answer (wrong count, wrong dimension)."""


class EmbeddingUnavailable(EmbeddingError, code="EMBEDDING_UNAVAILABLE", status=503, retryable=True):
    """The embedding server cannot be reached or is overloaded."""


class EmbeddingAnswerUnreadable(EmbeddingError, code="EMBEDDING_ANSWER_UNREADABLE", retryable=True):
    """The server did not answer JSON: the page of a proxy is temporary, a wrong address is not."""


class EmbeddingInputRefused(EmbeddingError, code="EMBEDDING_INPUT_REFUSED"):
    """The model refuses this text. It becomes a problem of its file and never ends a run."""


# Index


class VectorIndexError(RepoSyncError, code="INDEX_ERROR", status=502):
    """Qdrant refused a request or returned an invalid answer."""


class IndexUnavailable(VectorIndexError, code="INDEX_UNAVAILABLE", status=503, retryable=True):
    """Qdrant, or the embedded engine, cannot be reached."""


class IndexAnswerUnreadable(VectorIndexError, code="INDEX_ANSWER_UNREADABLE", retryable=True):
    """The answer is not Qdrant's: the page of a proxy is temporary, a wrong address is not."""


class IndexMismatch(VectorIndexError, code="INDEX_MISMATCH", status=409):
    """The collection was created for a different embedding model, dimension, windowing or schema."""


class IndexChanged(VectorIndexError, code="INDEX_CHANGED", status=409, retryable=True):
    """Points disappeared during a run: a different program deletes in the collection."""


class IndexUnsupported(VectorIndexError, code="INDEX_UNSUPPORTED", status=501):
    """The embedded engine, or this version or strict mode of a Qdrant server, does not support this."""


class FileIncomplete(VectorIndexError, code="FILE_INCOMPLETE", status=409):
    """Points of the file are missing in the index, or were changed by a different program."""


# Store and runs


class StoreUnavailable(RepoSyncError, code="STORE_UNAVAILABLE", status=503, retryable=True):
    """The database cannot be reached, or its schema does not fit this version."""


class StatementRefused(StoreUnavailable):
    """The database refused a statement for an unexpected reason."""


class DatabaseForeign(ConfigError, code="DATABASE_FOREIGN"):
    """The database holds tables of a different program, and none of reposync; nothing was written."""


class ClockSkewed(RepoSyncError, code="CLOCK_SKEWED", status=503):
    """This machine's clock differs from the database's."""


class Starting(StoreUnavailable, code="STARTING"):
    """The daemon is starting; it answers in a moment."""


class LeaseLost(RepoSyncError, code="LEASE_LOST", status=409):
    """A different worker took over the run; this one writes nothing more."""


class RunDefect(RepoSyncError, retryable=True):
    """A background task of the run failed: its heartbeat, or the watchdog of its lock."""


class SearchBusy(RepoSyncError, code="SEARCH_BUSY", status=503, retryable=True):
    """More searches are waiting than can be answered in time."""


class SearchTimeout(RepoSyncError, code="SEARCH_TIMEOUT", status=504, retryable=True):
    """The embedding model and the index took too long together."""


class NotSearchableYet(RepoSyncError, code="NOT_SEARCHABLE_YET", status=504):
    """The commit was not searchable within `timeout`; `details` has the current state."""

    def __init__(self, message: str, details: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.details = details


class TooManyWatchers(RepoSyncError, code="TOO_MANY_WATCHERS", status=503, retryable=True):
    """This pod serves no further watcher."""


class LockHeld(RepoSyncError, code="LOCK_HELD", status=409, exit_code=CONFLICT, retryable=True):
    """The repository's Redis lock is held by a different process, which seems to be alive."""


class LockLost(RepoSyncError, code="LOCK_LOST", status=409, retryable=True):
    """The repository's Redis lock could not be renewed in time, or was taken over."""


class LockNotFound(NotFoundError, code="LOCK_NOT_FOUND"):
    """The repository is not locked."""


class RedisUnavailable(RepoSyncError, code="REDIS_UNAVAILABLE", status=503, retryable=True):
    """Redis cannot be reached or fails. Syncs continue without it."""


class RunCancelled(RepoSyncError, code="RUN_CANCELLED", status=409):
    """The run was cancelled on request."""


class DeletionBlocked(RepoSyncError, code="DELETION_BLOCKED", status=409):
    """The deletion brake: a run would remove too much from the index, which is unchanged until a person approves."""

    facts: Mapping[str, Any] = MappingProxyType({})
    """What an approval is for: the commit, and how many files would be lost."""


class DefinitionChanged(RepoSyncError, code="SUPERSEDED", status=409):
    """The definition of the repository changed during the run; its result is not published."""


CANNOT_HERE = frozenset({RepositoryNotFound.code, SecretMissing.code, SourceElsewhere.code})
"""Reasons for returning a run that a different process may be able to execute."""

LOCKED = frozenset({LockHeld.code, LockLost.code})
"""Reasons for returning a run that say nothing about whether this process could execute it."""
