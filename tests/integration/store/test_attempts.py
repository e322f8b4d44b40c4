"""The timeline of a run: who tried it, how each try ended, and what all of them did together."""

from __future__ import annotations

from itertools import pairwise

import pytest

from reposync.errors import LockHeld, RepoSyncError, SecretMissing
from reposync.store.run import YIELDING, Released, Run, RunFigures
from reposync.store.run_state import MAX_ATTEMPTS
from reposync.store.status import LOST, RELEASED, YIELDED, RunStatus
from tests.integration.store.conftest import ON_EVERY_DATABASE, Store


@pytest.fixture
def database_kind() -> str:
    """Nothing here depends on the database."""
    return "sqlite"


SOME = RunFigures(files_processed=1, files_deleted=2, files_skipped=3, chunks_embedded=4, chunks_reused=5)
MORE = RunFigures(files_processed=10, files_deleted=20, files_skipped=30, chunks_embedded=40, chunks_reused=50)
COUNTS = ("files_processed", "files_deleted", "files_skipped", "chunks_embedded", "chunks_reused")


def counts(of: object) -> tuple[int, ...]:
    return tuple(getattr(of, name) for name in COUNTS)


async def outcomes(store: Store, run: Run) -> list[tuple[int, str, str | None]]:
    attempts = await store.runs.attempts(run.id)
    for earlier, later in pairwise(attempts):
        assert earlier.ended_at is not None and earlier.started_at <= earlier.ended_at <= later.started_at
    return [(each.attempt, each.worker, each.outcome) for each in attempts]


async def test_both_attempts_of_a_run_whose_first_worker_was_killed_are_shown(store: Store) -> None:
    run = await store.running(worker="pod-1")
    assert await outcomes(store, run) == [(1, "pod-1", None)]
    await store.runs.heartbeat(run, 60.0, figures=SOME)
    taken = await store.taken_over(run, worker="pod-2")
    await store.runs.heartbeat(taken, 60.0, figures=RunFigures(files_processed=9))

    done = await store.runs.finish(taken, RunStatus.COMPLETED, MORE)

    assert await outcomes(store, run) == [(1, "pod-1", LOST), (2, "pod-2", RunStatus.COMPLETED)]
    first, second = await store.runs.attempts(run.id)
    assert first.ended_at == second.started_at
    assert (counts(first), counts(second)) == (counts(SOME), counts(MORE)), "its heartbeats are all that is known of it"
    assert counts(done) == (11, 22, 33, 44, 55)


async def test_a_run_that_is_handed_back_shows_whether_its_worker_stopped_or_yielded(
    store: Store,
) -> None:
    run = await store.running(worker="pod-1")
    await store.runs.release(run, SOME)
    run = await store.claimed("pod-2")
    await store.runs.release(run, SOME, YIELDING)
    run = await store.claimed("pod-3")

    done = await store.runs.finish(run, RunStatus.COMPLETED, SOME)

    assert await outcomes(store, run) == [(1, "pod-1", RELEASED), (2, "pod-2", YIELDED), (3, "pod-3", "completed")]
    assert counts(done) == (3, 6, 9, 12, 15)


async def looked_at(
    store: Store, reason: RepoSyncError, worker: str = "pod-1", figures: RunFigures | None = None
) -> Run:
    """A worker claims the run and hands it back for `reason`."""
    return await store.runs.release(await store.claimed(worker), figures, Released(reason=reason))


@ON_EVERY_DATABASE
async def test_a_lock_that_others_hold_for_long_is_one_attempt_however_often_it_is_looked_at(store: Store) -> None:
    await store.queued()
    first = await looked_at(store, LockHeld("pod-9 holds it."))
    for worker in ("pod-1", "pod-2") * 10:
        run = await looked_at(store, LockHeld(f"pod-9 holds it, {worker} says."), worker)

    (attempt,) = await store.runs.attempts(run.id)
    assert (attempt.attempt, attempt.times, attempt.outcome) == (1, 21, RELEASED)
    assert attempt.started_at == first.started_at
    assert attempt.ended_at is not None and run.started_at is not None and attempt.ended_at >= run.started_at
    assert (attempt.worker, attempt.error_message) == ("pod-2", "pod-9 holds it, pod-2 says.")

    # What counts and what does not is as before.
    assert (run.attempt, run.failures, run.max_attempts) == (21, 0, MAX_ATTEMPTS + 21)
    done = await store.runs.finish(await store.claimed("pod-3"), RunStatus.COMPLETED, SOME)
    assert await outcomes(store, run) == [(1, "pod-2", RELEASED), (22, "pod-3", "completed")]
    assert (done.failures, counts(done)) == (1, counts(SOME))


async def test_workers_that_cannot_for_different_reasons_share_a_row_a_reason(store: Store) -> None:
    await store.queued()
    for _ in range(10):
        run = await looked_at(store, SecretMissing("GITLAB_TOKEN is not set."), "pod-1")
        run = await looked_at(store, LockHeld("pod-9 holds it."), "pod-2")

    attempts = await store.runs.attempts(run.id)

    assert [(each.worker, each.error_code, each.times) for each in attempts] == [
        ("pod-1", "SECRET_MISSING", 10),
        ("pod-2", "LOCK_HELD", 10),
    ]


async def test_the_attempt_of_a_run_whose_repository_was_removed_ends_with_it(store: Store) -> None:
    run = await store.running(worker="pod-1")
    await store.runs.heartbeat(run, 60.0, figures=SOME)

    await store.repositories.remove("payments")

    assert await outcomes(store, run) == [(1, "pod-1", RunStatus.CANCELLED)]
    (attempt,) = await store.runs.attempts(run.id)
    assert attempt.ended_at is not None and attempt.error_code == "REPOSITORY_REMOVED"
    assert counts(await store.runs.get(run.id)) == counts(SOME)
