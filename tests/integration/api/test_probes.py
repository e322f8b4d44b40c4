import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from reposync.api.routes import probes
from reposync.errors import StoreUnavailable
from tests.integration.api.conftest import Daemon


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    async with daemon.client() as client:
        yield client


def metric_names(answer: httpx.Response) -> set[str]:
    assert answer.status_code == 200
    return {sample.name for family in text_string_to_metric_families(answer.text) for sample in family.samples}


async def test_healthz_answers_while_the_loop_lives_whatever_is_down(daemon: Daemon, client: httpx.AsyncClient) -> None:
    daemon.health.report("database", "down", "no route")
    answer = await client.get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert answer.headers["cache-control"] == "no-store"


async def test_readyz_has_status_reason_time_and_latency_of_each_dependency(
    daemon: Daemon, client: httpx.AsyncClient
) -> None:
    daemon.health.report("database", "ok", latency_seconds=0.0021)
    daemon.health.report("redis", "down", "Redis at cache:6379 refuses connections.")
    answer = await client.get("/readyz")

    assert answer.status_code == 200
    document = answer.json()
    assert document["status"] == "degraded"
    for component in document["components"].values():
        assert abs((datetime.now(UTC) - datetime.fromisoformat(component.pop("since"))).total_seconds()) < 60
    assert document["components"] == {
        "database": {"status": "ok", "reason": None, "latency_seconds": 0.0021},
        "redis": {"status": "down", "reason": "Redis at cache:6379 refuses connections.", "latency_seconds": None},
    }


async def test_readyz_is_503_while_the_database_is_down_and_200_when_it_is_back(
    daemon: Daemon, client: httpx.AsyncClient
) -> None:
    unseen = await client.get("/readyz")
    daemon.health.report("database", "ok")
    up = await client.get("/readyz")
    daemon.health.report("database", "down", "no route")
    down = await client.get("/readyz")

    assert [(each.status_code, each.json()["status"]) for each in (unseen, up, down)] == [
        (503, "starting"),
        (200, "ok"),
        (503, "down"),
    ]


async def test_metrics_are_refreshed_for_a_scrape_and_parse(daemon: Daemon, client: httpx.AsyncClient) -> None:
    async def refresh() -> None:
        daemon.metrics.freshness({'odd "name"\n': datetime.now(UTC)}, datetime.now(UTC))

    daemon.refresh = refresh
    daemon.health.report("database", "ok")
    daemon.metrics.count("ticks", "queued")
    answer = await client.get("/metrics")

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = metric_names(answer)
    assert {"reposync_ticks_total", "reposync_repository_freshness_seconds", "reposync_dependency_up"} <= names
    assert "reposync_build_info" in names


async def test_scrapes_in_quick_succession_ask_the_database_once(
    daemon: Daemon, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "FRESH_SECONDS", 3_600.0)
    for _ in range(3):
        await client.get("/metrics")

    assert daemon.refreshes == 1


async def test_without_the_database_the_metrics_of_the_pod_are_still_there(
    daemon: Daemon, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probes, "FRESH_SECONDS", -1.0)

    async def refresh() -> None:
        daemon.metrics.freshness({"api": datetime.now(UTC)}, datetime.now(UTC))

    async def fail() -> None:
        raise StoreUnavailable("The database db:5432 refuses connections.")

    daemon.refresh = refresh
    before = metric_names(await client.get("/metrics"))
    daemon.refresh = fail
    with caplog.at_level(logging.INFO):
        during = [metric_names(await client.get("/metrics")) for _ in range(3)]
        daemon.refresh = refresh
        after = metric_names(await client.get("/metrics"))

    fresh = "reposync_repository_freshness_seconds"
    assert [fresh in names for names in (before, *during, after)] == [True, False, False, False, True]
    assert all("reposync_ticks_total" in names for names in during)
    assert "The metrics lack the figures of the database" in caplog.text


async def test_a_database_that_hangs_holds_up_no_scrape_for_ever(
    daemon: Daemon, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "REFRESH_SECONDS", 0.05)
    cancelled = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    daemon.refresh = hang
    answers = await asyncio.gather(*(client.get("/metrics") for _ in range(5)))

    assert all("reposync_ticks_total" in metric_names(answer) for answer in answers)
    assert cancelled.is_set()
    # They came together: one question to the database, not five one after the other.
    assert daemon.refreshes == 1
