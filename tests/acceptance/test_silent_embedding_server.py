"""An embedding server that takes requests and does not answer: whoever waits knows for what."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.acceptance.conftest import Person
from tests.acceptance.test_command_line import BILLING
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

CONFIGURATION = """
embedding: {{provider: openai, url: "http://{address}", model: m, dimensions: 8, {budget}}}
daemon: {{max_attempts: 1}}
repositories:
  - {{name: payments, path: "{path}"}}
"""


class SilentServer:
    """Accepts connections."""

    def __init__(self) -> None:
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
            with contextlib.suppress(TimeoutError):
                open_.append(self._listening.accept()[0])
                self.connections += 1
        for each in (*open_, self._listening):
            each.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    server = SilentServer()
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
