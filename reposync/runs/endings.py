"""What an attempt leads to, by its reason: the policy of retries as one pure function."""

from __future__ import annotations

from dataclasses import dataclass

from reposync.config.sections import DaemonConfig
from reposync.errors import (
    CANNOT_HERE,
    DefinitionChanged,
    DeletionBlocked,
    LockHeld,
    LockLost,
    RepositoryLeft,
    RepoSyncError,
    RunCancelled,
)
from reposync.outgoing import IN_PLACE_SECONDS, LONGEST_WAIT_SECONDS
from reposync.store.endings import Block, Ending, Fail, Finish, HandBack, Retry
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.sync.progress import Outcome

# Pauses before the next try while a different worker holds the lock.
LOCK_PAUSES_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
# Pause before a different worker tries a run that this process cannot execute, and when it fails because none can.
CANNOT_HERE_SECONDS = 5.0
NOBODY_CAN_SECONDS = 900.0
# Pause before a worker retries a run that failed in a command.
ELSEWHERE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    """How a process executes runs."""

    lease_seconds: float = DaemonConfig().lease_seconds
    retry_seconds: float | None = None
    """None: a failure is final, because a person watches and decides."""
    retry_max_seconds: float = 600.0
    own_requests: int | None = None
    """In a command: see `Fail`."""
    elsewhere: bool = True
    """There are other workers, which may be able to execute what this process cannot."""

    def pause_after(self, failures: int, chance: float) -> float | None:
        """Exponential back-off; half of it is random, so that runs that failed together are not retried together."""
        if self.retry_seconds is None:
            return None
        longest = min(self.retry_max_seconds, self.retry_seconds * 2.0 ** min(max(failures, 1) - 1, 30))
        return longest * (0.5 + chance / 2)


def ending_of(reason: RepoSyncError, run: Run, policy: ExecutionPolicy, chance: float) -> Ending:
    """How an attempt at `run` ends because of `reason`, which is not LeaseLost: a run that a different worker has gets
    no ending. `chance`: a random number from 0 to 1."""
    code, message = reason.code, str(reason)
    asked_pause = min(reason.retry_after_seconds or 0.0, LONGEST_WAIT_SECONDS)
    pause = policy.pause_after(run.failures, chance)
    match reason:
        case DeletionBlocked():
            return Block(code, message, brake=reason.facts)
        case DefinitionChanged():  # it begins again with the new one
            return HandBack(code, message)
        case RunCancelled() | RepositoryLeft():
            return Finish(code, message, status=RunStatus.CANCELLED)
        case LockHeld() | LockLost() if pause is not None:  # the run did not fail, its turn has not come
            locked = LOCK_PAUSES_SECONDS[min(run.attempt, len(LOCK_PAUSES_SECONDS)) - 1]
            return HandBack(code, message, delay_seconds=locked)
        case _ if code in CANNOT_HERE and policy.elsewhere:
            if nobody_could(run):
                return Fail(code, message)
            return HandBack(code, message, delay_seconds=CANNOT_HERE_SECONDS)
        case _ if asked_pause > IN_PLACE_SECONDS and pause is not None:
            # Random, so that runs that were asked together to wait do not come back together.
            longer, longest = 1.0 + chance / 10, 0.9 + chance / 10
            delay = max(pause, min(asked_pause * longer, LONGEST_WAIT_SECONDS * longest))
            return HandBack(code, message, delay_seconds=delay)
        case _ if policy.own_requests is not None:  # a daemon may reach a source that this machine cannot
            delay = max(ELSEWHERE_SECONDS, asked_pause)
            return Fail(code, message, own_requests=policy.own_requests, delay_seconds=delay)
        case _ if pause is not None and reason.retryable:
            return Retry(code, message, delay_seconds=max(pause, asked_pause))
        case _:
            return Fail(code, message)


def nobody_could(run: Run) -> bool:
    """Whether no process could execute the run, for so long that it fails."""
    if run.error_code not in CANNOT_HERE or run.waits_since is None or run.started_at is None:
        return False
    return (run.started_at - run.waits_since).total_seconds() > NOBODY_CAN_SECONDS


def ending_after(outcome: Outcome, run: Run, policy: ExecutionPolicy, chance: float) -> Ending:
    """The ending of an attempt that did its work. Files that could not be read are tried again while attempts are
    left."""
    pause = policy.pause_after(run.failures, chance) if outcome.files_failed else None
    if pause is None or outcome.code is None:
        return Finish(outcome.code, outcome.notice)
    return Retry(outcome.code, outcome.notice, delay_seconds=pause, at_last=RunStatus.COMPLETED)
