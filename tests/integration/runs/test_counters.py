"""Each counter means what its help says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reposync.clock import elapsed_seconds
from reposync.errors import LeaseLost
from reposync.runs.endings import ExecutionPolicy
from reposync.runs.execution import Execution
from reposync.runs.redis_locks import RedisLocks
from reposync.runs.reporting import Observer
from reposync.store.database import Database
from reposync.store.endings import Retry
from reposync.store.history import RunHistory
from reposync.store.run import RunFigures
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics
from tests.fixtures.clocks import DatabaseTime, database_time  # noqa: F401
from tests.fixtures.redis_server import RedisServer, redis_server  # noqa: F401
from tests.integration.runs.test_execution import Writes
from tests.integration.store.conftest import Store


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(version="1")


@pytest.fixture
def observer(metrics: Metrics) -> Observer:
    return Observer(metrics, Health())


@pytest.fixture
async def database(database_time: DatabaseTime) -> AsyncIterator[Database]:  # noqa: F811
    async with await database_time.open() as opened:
        yield opened


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    """0 for a series that was never counted."""
    samples = (
        sample for family in text_string_to_metric_families(metrics.render()[0].decode()) for sample in family.samples
    )
    return sum(
        sample.value
        for sample in samples
        if sample.name == f"reposync_{name}" and labels.items() <= sample.labels.items()
    )


async def test_every_sync_that_begins_without_redis_counts_and_no_other_does(
    database: Database,
    metrics: Metrics,
    observer: Observer,
    redis_server: RedisServer,  # noqa: F811
) -> None:
    locks = RedisLocks(redis_server.url, RunHistory(database), observer=observer)
    try:
        redis_server.stop()
        for number in range(3):
            async with locks.guard(await Store(database).running(f"repository-{number}")):
                pass
        assert counted(metrics, "lock_unavailable_total") == 3
        assert counted(metrics, "lock_wait_seconds_count") == 0

        redis_server.start()
        async with locks.guard(await Store(database).running(trigger=RunTrigger.HTTP)):
            pass
        assert counted(metrics, "lock_unavailable_total") == 3
        assert counted(metrics, "lock_wait_seconds_count") == 1
        assert counted(metrics, "lock_losses_total") == 0
    finally:
        await locks.close()


@pytest.mark.parametrize("after", ["a pause before the next attempt", "another worker executed it"])
async def test_a_run_has_waited_since_it_was_due_or_its_last_worker_was_gone(
    database: Database,
    metrics: Metrics,
    observer: Observer,
    database_time: DatabaseTime,  # noqa: F811
    after: str,
) -> None:
    store = Store(database)
    run = await store.running()
    if after.startswith("a pause"):
        await store.runs.end(run, Retry("SOURCE_UNAVAILABLE", "GitLab answered 503.", delay_seconds=600.0))
        await database_time.set(630.0)
    else:
        await database_time.set(7_200.0)
        await store.runs.heartbeat(run, 60.0)
        await database_time.set(7_290.0)

    again = await store.claimed("pod-2:1:bbbbbb")
    await Execution(store.runs, again, None, ExecutionPolicy(60.0), observer).perform(Writes().make)

    assert again.attempt == 2
    assert 25.0 <= counted(metrics, "queue_wait_seconds_sum") < 600.0
    assert counted(metrics, "queue_wait_seconds_count") == 1


async def test_an_attempt_whose_claim_was_answered_after_its_lease_writes_nothing_and_counts_where_it_is_found(
    database: Database, metrics: Metrics, observer: Observer
) -> None:
    runs = Runs(database, on_lost=observer.attempt_lost)
    run, work = await Store(database).running(trigger=RunTrigger.HTTP), Writes()
    # The answer was held up on its way, or the process was frozen before it read it.
    frozen_since = elapsed_seconds() - 60.0
    policy = ExecutionPolicy(60.0, retry_seconds=10.0)
    execution = Execution(runs, run, None, policy, observer, claimed_since=frozen_since)
    with pytest.raises(LeaseLost):
        await execution.perform(work.make)
    assert work.written == 0
    assert counted(metrics, "lock_losses_total") == 0
    assert counted(metrics, "lock_wait_seconds_count") == 0, "there is no Redis"
    await runs.heartbeat(run, 60.0, figures=RunFigures(files_processed=7))
    await runs.expire(run)

    assert await runs.claim("pod-2:1:bbbbbb", 60.0) is not None

    assert counted(metrics, "runs_total", status="lost", trigger="http") == 1
    assert counted(metrics, "runs_total") == 1
    assert counted(metrics, "run_duration_seconds_count", trigger="http") == 0, "the run goes on"
    assert counted(metrics, "files_total", outcome="processed") == 7


async def test_a_run_is_measured_when_it_ends_with_all_its_attempts(
    database: Database, metrics: Metrics, observer: Observer
) -> None:
    store = Store(database)
    await store.runs.end(
        await store.running(trigger=RunTrigger.HTTP),
        Retry("SOURCE_UNAVAILABLE", "503", delay_seconds=-1.0),
    )

    await Execution(store.runs, await store.claimed(), None, ExecutionPolicy(60.0), observer).perform(Writes().make)

    (run,) = await store.history.runs()
    assert run.status == "completed" and run.attempt == 2
    for figure in ("duration", "elapsed"):
        assert counted(metrics, f"run_{figure}_seconds_count", trigger="http") == 1
        assert counted(metrics, f"run_{figure}_seconds_sum") == pytest.approx(run.document[f"{figure}_seconds"])
