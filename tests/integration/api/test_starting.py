"""The first seconds of a daemon: it says that it is starting, and blames its database only once that did not answer."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx

from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import Pod, until
from tests.integration.api.serving import code

LISTED = "/api/v1/repositories"


def pod(tmp_path: Path, **environment: str) -> Pod:
    home = tmp_path / "pod"
    home.mkdir()
    (home / "repositories.yaml").write_text("embedding: {provider: none}\n")
    return Pod("laptop", home, environment)


def test_a_daemon_reports_starting_and_then_its_missing_database(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        waiting = pod(tmp_path, REPOSYNC_DATABASE_URL=f"postgresql://reposync@127.0.0.1:{port}/reposync")
        with waiting as started, httpx.Client(base_url=str(started.url), timeout=PATIENCE_SECONDS) as client:
            answers: list[httpx.Response] = []

            def has_asked() -> bool:
                answers.append(client.get(LISTED))
                return code(answers[-1]) == (503, "STORE_UNAVAILABLE")

            until(has_asked, details=started.log_tail)
            ready = client.get("/readyz")

    assert {code(each) for each in answers[:-1]} <= {(503, "STARTING")}
    assert answers[-1].json()["error"]["message"].startswith("The daemon waits for its database.")
    assert (ready.status_code, ready.json()["status"]) == (503, "down")
