"""A newer program shares the database: HTTP and pages show its words as they are."""

from __future__ import annotations

from datetime import UTC, datetime

from reposync.app.daemon import Daemon, Roles
from reposync.config.loading import load_registry
from reposync.store.index_queries import version_summaries
from reposync.store.run import RunProblem
from reposync.store.status import RunTrigger
from reposync.store.tables import PROBLEMS, REPOSITORIES, RUNS, VERSIONS, VersionState
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics
from reposync.telemetry.redaction import Secrets
from tests.fixtures.newer_rows import OUTCOME, REASON, STATE, STATUS, TRIGGER, newer
from tests.integration.api.rest import Rest


async def page(rest: Rest, path: str) -> str:
    answer = await rest.client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_a_run_that_a_newer_program_wrote_is_shown_as_it_is(rest: Rest) -> None:
    run = await rest.run("payments")
    await rest.ended(run.id, problems=[RunProblem("secret.bin", "binary", "It is not text.")])
    database, brake = rest.app.database, {"kind": "quota", "limit": 3}
    await newer(database, RUNS.c.id, run.id, status=STATUS, trigger=TRIGGER, brake=brake)
    attempts = [entry | {"outcome": OUTCOME} for entry in (await rest.history.get(run.id)).attempts]
    await newer(database, RUNS.c.id, run.id, attempts=attempts)
    await newer(database, PROBLEMS.c.run_id, run.id, reason=REASON)

    (listed,) = (await rest.get("/runs"))["items"]
    assert (listed["status"], listed["trigger"]) == (STATUS, TRIGGER)
    detail = await rest.get(f"/runs/{run.id}")
    assert (detail["status"], detail["trigger"], detail["attempts"][0]["outcome"]) == (STATUS, TRIGGER, OUTCOME)
    assert detail["problem_counts"] == {REASON: 1}
    assert detail["brake"] is None, "a brake of a kind that nobody here knows"
    assert (await rest.get("/repositories/payments"))["last_status"] == STATUS
    for path in ("/runs", "/runs?repository=payments", "/repositories/payments", f"/runs/{run.id}", "/"):
        assert STATUS in await page(rest, path), path
    full_moon = datetime(2126, 3, 1, 12, tzinfo=UTC)
    moon = {"cron_expression": "@full-moon", "next_due_at": full_moon}
    await newer(database, REPOSITORIES.c.name, "payments", **moon)
    shown = await rest.get("/repositories/payments")
    assert (shown["schedule"], shown["next_due_at"]) == ("@full-moon", "2126-03-01T12:00:00Z")
    for path in ("/", "/repositories/payments"):
        assert "@full-moon" in await page(rest, path), path
    assert OUTCOME in await page(rest, f"/runs/{run.id}?tab=attempts")
    assert REASON in await page(rest, f"/runs/{run.id}?tab=skipped")
    assert TRIGGER in await page(rest, "/runs")
    assert (await rest.answers("POST", f"/runs/{run.id}/cancel", 200))["status"] == STATUS
    assert await rest.refusal("POST", f"/runs/{run.id}/retry", 409) == "RUN_STATE_CONFLICT"
    for words in ({"status": STATUS}, {"trigger": TRIGGER}):
        assert await rest.refusal("GET", "/runs", 422, params=words) == "REQUEST_INVALID"
    async with rest.client.stream("GET", f"/api/v1/runs/{run.id}/events") as events:
        assert STATUS in (await events.aread()).decode(), "it is over, so the stream ends"


async def test_an_index_of_a_newer_program_is_shown_and_counted(rest: Rest) -> None:
    run = await rest.run("payments", RunTrigger.COMMAND)
    claimed = await rest.claimed(run.id)
    settings = {
        "source": "s",
        "branch": None,
        "physical": "code",
        "schema": 1,
        "spec": {"provider": "none", "model": "m", "dimension": 0, "window_chars": None, "pooling": "mean"},
        "content": {"chunk_size": 7000, "chunk_overlap": 1400, "max_file_bytes": 1000000, "strategy": "syntax"},
    }
    places = {"collection": "code", "physical": "code", "settings_key": "k", "settings": settings}
    await rest.app.versions.add(claimed, VersionState.BUILDING, **places)
    await newer(rest.app.database, VERSIONS.c.repository_id, claimed.repository_id, state=STATE)

    shown = await rest.get("/repositories/payments/index")

    assert [each["state"] for each in shown["retired"]] == [STATE]
    assert shown["retired"][0]["chunk_size"] == 7000
    assert STATE in await page(rest, "/repositories/payments")
    assert [version.state for version in await version_summaries(rest.app.database)] == [STATE]


async def test_the_metrics_of_a_daemon_are_refreshed_whatever_a_newer_program_wrote(rest: Rest) -> None:
    run = await rest.run("payments")
    await newer(rest.app.database, RUNS.c.id, run.id, status=STATUS, trigger=TRIGGER)
    metrics, settings = Metrics(version="1"), rest.app.configuration.settings
    daemon = Daemon(settings, load_registry(settings.config_path), Roles(), metrics, Health(), Secrets())
    daemon.app = rest.app

    await daemon.refresh_metrics()
    metrics.attempt_ended(OUTCOME, TRIGGER)

    shown = metrics.render()[0].decode()
    assert 'reposync_queue_runs{status="queued"} 0' in shown
    assert f'reposync_runs_total{{status="{OUTCOME}",trigger="{TRIGGER}"}} 1' in shown
