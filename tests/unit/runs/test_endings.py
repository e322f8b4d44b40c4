"""What an attempt leads to, for each reason of its end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from reposync.errors import (
    DefinitionChanged,
    DeletionBlocked,
    EmbeddingUnavailable,
    LockHeld,
    LockLost,
    RepositoryLeft,
    RepositoryNotFound,
    RepoSyncError,
    RunCancelled,
    RunDefect,
    SecretMissing,
    SourceDenied,
    SourceElsewhere,
    SourceUnavailable,
)
from reposync.runs.endings import ExecutionPolicy, ending_after, ending_of
from reposync.store.endings import Block, Ending, Fail, Finish, HandBack, Retry
from reposync.store.run import Run
from reposync.store.status import RunStatus, RunTrigger
from reposync.sync.progress import FILES_FAILED, Outcome

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAEMON = ExecutionPolicy(retry_seconds=10.0, retry_max_seconds=600.0)
ALONE = ExecutionPolicy(own_requests=1, elsewhere=False)
"""A command without workers beside it."""
BESIDE = ExecutionPolicy(own_requests=1)
"""A command beside workers."""
FACTS = {"commit": "c" * 40, "planned": {"vanished": 30}, "losses": {"vanished": 30}, "indexed": 40}


def run(attempt: int = 1, handed_back: int = 0, **columns: object) -> Run:
    times = {"queued_at": NOW, "not_before": NOW, "started_at": NOW}
    who = {"id": "1", "repository_id": "2", "repository": "payments", "status": RunStatus.RUNNING}
    how = {"trigger": RunTrigger.HTTP, "priority": 0, "attempt": attempt, "handed_back": handed_back, "max_attempts": 3}
    return Run.model_construct(**{**times, **who, **how, **columns})


def refused() -> RepoSyncError:
    error = DeletionBlocked("30 of 40 files would be lost.")
    error.facts = FACTS
    return error


def waits(seconds: float, kind: type[SourceUnavailable | EmbeddingUnavailable] = SourceUnavailable) -> RepoSyncError:
    return kind("429", retry_after_seconds=seconds)


UNABLE = {"error_code": SecretMissing.code, "waits_since": NOW - timedelta(seconds=901)}
NOT_YET = {"error_code": SourceElsewhere.code, "waits_since": NOW - timedelta(seconds=899)}

# With the random number 0. The codes and messages are those of the reasons.
TABLE: dict[str, tuple[RepoSyncError, Run, ExecutionPolicy, Ending]] = {
    "a deletion brake": (refused(), run(), DAEMON, Block(brake=FACTS)),
    "a deletion brake in a command": (refused(), run(), ALONE, Block(brake=FACTS)),
    "a new definition": (DefinitionChanged("anew"), run(), DAEMON, HandBack()),
    "a cancellation": (RunCancelled("by zoe"), run(), DAEMON, Finish(status=RunStatus.CANCELLED)),
    "a repository that left": (RepositoryLeft("left"), run(), DAEMON, Finish(status=RunStatus.CANCELLED)),
    "a lock": (LockHeld("pod-9"), run(), DAEMON, HandBack(delay_seconds=5.0)),
    "a lock, often": (LockLost("pod-9"), run(attempt=9), DAEMON, HandBack(delay_seconds=60.0)),
    "a lock in a command": (LockHeld("pod-9"), run(), ALONE, Fail(own_requests=1, delay_seconds=2.0)),
    "a secret": (SecretMissing("TOKEN"), run(), DAEMON, HandBack(delay_seconds=5.0)),
    "a secret, not yet for long": (SecretMissing("TOKEN"), run(**NOT_YET), DAEMON, HandBack(delay_seconds=5.0)),
    "a secret that nobody has": (SecretMissing("TOKEN"), run(**UNABLE), DAEMON, Fail()),
    "a folder that nobody has": (SourceElsewhere("here"), run(**UNABLE), DAEMON, Fail()),
    "a secret after another failure": (
        SecretMissing("TOKEN"),
        run(**{**UNABLE, "error_code": LockHeld.code}),
        DAEMON,
        HandBack(delay_seconds=5.0),
    ),
    "a secret in a command beside workers": (SecretMissing("TOKEN"), run(), BESIDE, HandBack(delay_seconds=5.0)),
    "a secret in a command alone": (SecretMissing("TOKEN"), run(), ALONE, Fail(own_requests=1, delay_seconds=2.0)),
    "a file not applied yet": (RepositoryNotFound("payments"), run(), DAEMON, HandBack(delay_seconds=5.0)),
    "a server that asks to wait": (waits(600.0), run(), DAEMON, HandBack(delay_seconds=600.0)),
    "a server that asks for a year": (waits(3e7), run(), DAEMON, HandBack(delay_seconds=0.9 * 3600.0)),
    "a server that asks for less than the pause": (waits(31.0), run(attempt=5), DAEMON, HandBack(delay_seconds=80.0)),
    "a server that asks for a moment": (waits(25.0), run(), DAEMON, Retry(delay_seconds=25.0)),
    "a server that asks a command to wait": (waits(60.0), run(), ALONE, Fail(own_requests=1, delay_seconds=60.0)),
    "an embedding server": (waits(0.0, EmbeddingUnavailable), run(), DAEMON, Retry(delay_seconds=5.0)),
    "a failure, again": (SourceUnavailable("503"), run(attempt=3, handed_back=1), DAEMON, Retry(delay_seconds=10.0)),
    "a failure, often": (SourceUnavailable("503"), run(attempt=99), DAEMON, Retry(delay_seconds=300.0)),
    "a failure in a command": (SourceUnavailable("503"), run(), ALONE, Fail(own_requests=1, delay_seconds=2.0)),
    "a failure of another run in a command": (
        SourceUnavailable("503"),
        run(),
        replace(ALONE, own_requests=0),
        Fail(own_requests=0, delay_seconds=2.0),
    ),
    "a failure that a person watches": (SourceUnavailable("503"), run(), ExecutionPolicy(), Fail()),
    "a refused token": (SourceDenied("401"), run(), DAEMON, Fail()),
    "a defect": (RunDefect("TypeError"), run(), DAEMON, Retry(delay_seconds=5.0)),
}


@pytest.mark.parametrize(("reason", "of", "policy", "ending"), TABLE.values(), ids=TABLE)
def test_a_reason_leads_to_an_ending(reason: RepoSyncError, of: Run, policy: ExecutionPolicy, ending: Ending) -> None:
    assert ending_of(reason, of, policy, 0.0) == replace(ending, code=reason.code, message=str(reason))


@pytest.mark.parametrize(
    ("outcome", "policy", "ending"),
    [
        (Outcome(notice="Nothing changed."), DAEMON, Finish(None, "Nothing changed.")),
        (
            Outcome(FILES_FAILED, "3 files", 3),
            DAEMON,
            Retry(FILES_FAILED, "3 files", delay_seconds=5.0, at_last=RunStatus.COMPLETED),
        ),
        (Outcome(FILES_FAILED, "3 files", 3), ALONE, Finish(FILES_FAILED, "3 files")),
    ],
    ids=["unchanged", "with files that failed", "in a command"],
)
def test_work_that_is_done_completes_the_run_or_tries_its_failed_files_again(
    outcome: Outcome, policy: ExecutionPolicy, ending: Ending
) -> None:
    assert ending_after(outcome, run(), policy, 0.0) == ending


def test_runs_that_failed_together_do_not_come_back_together() -> None:
    def delay(reason: RepoSyncError, chance: float) -> float:
        ending = ending_of(reason, run(), DAEMON, chance)
        assert isinstance(ending, Retry | HandBack)
        return ending.delay_seconds

    assert [delay(SourceUnavailable("503"), chance) for chance in (0.0, 0.5, 1.0)] == [5.0, 7.5, 10.0]
    assert [delay(waits(600.0), chance) for chance in (0.0, 1.0)] == pytest.approx([600.0, 660.0])
    assert delay(waits(1e9), 1.0) == pytest.approx(3600.0)
