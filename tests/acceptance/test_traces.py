"""What a receiver of traces gets of a daemon, if the standard variable names one."""

from pathlib import Path

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")


def test_a_run_and_a_search_are_traced(
    person: Person, pod: Pod, repository: GitRepository, embeddings: EmbeddingServer
) -> None:
    from tests.fixtures.trace_receiver import trace_receiver

    repository.commit({"a.py": b"def first(): pass\n"})
    person.configures(f"{embeddings.registry}repositories:\n  - {{name: app, path: '{repository.path}'}}\n")
    with trace_receiver() as receiver:
        pod.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with pod:
            until(lambda: pod.gets("/api/v1/search?q=confidential").status_code == 200, details=pod.log_tail)
            until(lambda: receiver.named("run") and receiver.named("embedding"), details=pod.log_tail)

    (run,) = receiver.named("run")
    stages = {span.name for span in receiver.spans if span.parent_span_id == run.span_id}
    assert {"listing", "planning", "indexing", "reading", "embedding", "storing"} <= stages
    searches = {span.span_id for span in receiver.named("search")}
    assert any(span.parent_span_id in searches for span in receiver.named("embedding"))
    assert "confidential" not in str(receiver.spans)


def test_a_daemon_without_the_extra_says_what_to_install_and_runs(person: Person, pod: Pod, tmp_path: Path) -> None:
    person.configures("embedding: {provider: none}\n")
    # As if it were not installed; `opentelemetry` is a namespace, whose parts come from several folders.
    missing = tmp_path / "without" / "opentelemetry" / "sdk"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'opentelemetry.sdk'\")\n")
    pod.environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": str(missing.parents[1])}
    with pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)

    assert any("pip install reposync[otel]" in line["event"] for line in pod.lines)
