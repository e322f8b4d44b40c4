"""An embedding server that takes requests and does not answer, or a byte at a time: whoever waits knows for what."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Person
from tests.acceptance.test_command_line import BILLING
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

CONFIGURATION = """
embedding: {{provider: openai, url: "http://{address}", model: m, dimensions: 8, {budget}}}
daemon: {{max_attempts: 1}}
repositories:
  - {{name: payments, path: "{path}"}}
"""


class SilentServer:
    """Accepts connections. `drip` is sent on each again and again, a piece every tenth of a second."""

    def __init__(self, drip: bytes = b"") -> None:
        self._drip = drip
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.connections = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        open_: list[socket.socket] = []
        self._listening.settimeout(0.1)
        while not self._stopped.is_set():
            try:
                taken, _ = self._listening.accept()
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" if self._drip else b"")
                open_.append(taken)
                self.connections += 1
            except OSError:
                for each in open_[:] if self._drip else ():
                    try:
                        each.sendall(self._drip)
                    except OSError:
                        open_.remove(each)
                        each.close()
        for each in (*open_, self._listening):
            each.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.fixture(params=[b"", b" "], ids=["hangs", "trickles"])
def silent(request: pytest.FixtureRequest) -> Iterator[SilentServer]:
    server = SilentServer(request.param)
    yield server
    server.stop()


def test_the_terminal_says_what_it_waits_for_and_the_budget_ends_it(
    person: Person, repository: GitRepository, silent: SilentServer
) -> None:
    repository.commit({"a.py": BILLING})
    budget = "timeout_seconds: 7, attempts: 2"
    person.applies(CONFIGURATION.format(address=silent.address, path=repository.path, budget=budget))

    said = person.types("sync", exit_code=1)

    for attempt in ("1 of 2", "2 of 2"):
        assert f"waiting for the embedding server at {silent.address}: attempt {attempt}" in said.stderr
    assert f"the embedding server at http://{silent.address}/v1/embeddings failed" in said.stdout
    assert "embedding.timeout_seconds" in said.stdout
    assert silent.connections == 2


def test_a_run_of_a_daemon_shows_what_it_waits_for_to_its_watchers(
    person: Person, repository: GitRepository, silent: SilentServer, tmp_path: Path
) -> None:
    repository.commit({"a.py": BILLING})
    home = tmp_path / "pod"
    home.mkdir()
    text = CONFIGURATION.format(address=silent.address, path=repository.path, budget="timeout_seconds: 600")
    (home / "repositories.yaml").write_text(text)
    waiting = f"the embedding server at {silent.address}: attempt 1 of 3"
    with Pod("waits", home) as pod:

        def progress() -> object:
            runs = pod.gets("/api/v1/runs").json().get("items", [])
            run = pod.gets(f"/api/v1/runs/{runs[0]['id']}").json() if runs else {}
            return (run.get("progress") or {}).get("waiting_for") == waiting

        until(progress, timeout_seconds=120, details=pod.log_tail)
        person.environment |= {"REPOSYNC_STATE_DIR": str(home / "state")}
        (run,) = person.asks("history")
        assert f"waiting for {waiting}" in person.types("runs", "show", run["id"]).stdout
        with person.starts("runs", "watch", run["id"]) as following:
            assert following.stderr is not None
            assert any(f"waiting for {waiting}" in line for line in following.stderr)
            following.terminate()
        person.types("runs", "cancel", run["id"])
