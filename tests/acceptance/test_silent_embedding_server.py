"""An embedding server that takes requests and does not answer: whoever waits knows for what."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Person
from tests.acceptance.test_command_line import BILLING
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

CONFIGURATION = """
embedding: {{provider: openai, url: "{url}", model: m, dimensions: 8, timeout_seconds: 7, attempts: 2}}
daemon: {{max_attempts: 1}}
repositories:
  - {{name: payments, path: "{path}"}}
"""


def test_the_terminal_says_what_it_waits_for_and_the_budget_ends_it(
    person: Person, repository: GitRepository, embeddings: EmbeddingServer
) -> None:
    repository.commit({"a.py": BILLING})
    person.applies(CONFIGURATION.format(url=embeddings.url, path=repository.path))

    with embeddings.holding():
        said = person.types("sync", exit_code=1)

    address = embeddings.url.removeprefix("http://")
    for attempt in ("1 of 2", "2 of 2"):
        assert f"waiting for the embedding server at {address}: attempt {attempt}" in said.stderr
    assert f"the embedding server at {embeddings.url}/v1/embeddings failed" in said.stdout
    assert "embedding.timeout_seconds" in said.stdout
    assert embeddings.most_at_once == 2, "requests"
