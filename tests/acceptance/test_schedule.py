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


def test_a_repository_whose_schedule_is_never_is_synced_with_all_others_and_shown_as_what_it_is(
    person: Person, repository: GitRepository, embeddings: EmbeddingServer
) -> None:
    repository.commit({"a.py": b"x = 1\n"})
    person.applies(REGISTRY.format(url=embeddings.url, path=repository.path))

    (run,) = person.asks("sync")
    (listed,) = person.asks("repos", "list")

    assert (run["repository"], run["status"]) == ("payments", "completed")
    assert (listed["schedule"], listed["cron_expression"], listed["next_due_at"]) == ("on request only", None, None)
    assert "on request only" in person.types("repos", "show", "payments").stdout


def test_a_repository_that_was_added_with_never_is_registered_and_one_that_was_synced_by_path_is_not(
    person: Person, repository: GitRepository, embeddings: EmbeddingServer
) -> None:
    repository.commit({"a.py": b"x = 1\n"})
    by_hand = GitRepository.create(person.home / "scratch.git")
    by_hand.commit({"b.py": b"y = 2\n"})
    person.applies(REGISTRY.partition("repositories:")[0].format(url=embeddings.url))

    added = person.types("repos", "add", "payments", "--path", str(repository.path), "--schedule", "never").stdout
    person.types("sync", str(by_hand.path))
    runs = person.asks("sync")

    assert added == "payments: registered, on request only\n"
    assert [run["repository"] for run in runs] == ["payments"]
    shown = {each["name"]: each["schedule"] for each in person.asks("repos", "list")}
    assert shown == {"payments": "on request only", "scratch": None}
