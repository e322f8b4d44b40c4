"""Repositories that no clock syncs, as people meet them at the command line."""

from __future__ import annotations

from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.repositories import GitRepository

REGISTRY = """
embedding: {{provider: openai, url: "{url}", model: test/words, dimensions: 64}}
repositories:
  - {{name: payments, path: "{path}", schedule: never}}
"""


def test_a_repository_that_is_never_due_is_synced_with_all_others_and_one_synced_by_path_is_not(
    person: Person, repository: GitRepository, embeddings: EmbeddingServer
) -> None:
    repository.commit({"a.py": b"x = 1\n"})
    by_hand = GitRepository.create(person.home / "scratch.git")
    by_hand.commit({"b.py": b"y = 2\n"})
    person.applies(REGISTRY.format(url=embeddings.url, path=repository.path))

    added = person.types("repos", "add", "second", "--path", str(repository.path), "--schedule", "never").stdout
    person.types("sync", str(by_hand.path))
    runs = person.asks("sync")
    listed = {each["name"]: (each["schedule"], each["cron_expression"]) for each in person.asks("repos", "list")}

    assert added == "second: registered, on request only\n"
    assert {(run["repository"], run["status"]) for run in runs} == {("payments", "completed"), ("second", "completed")}
    assert listed == dict.fromkeys(("payments", "second"), ("on request only", None)) | {"scratch": (None, None)}
    assert "on request only" in person.types("repos", "show", "payments").stdout
