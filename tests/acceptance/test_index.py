"""`reposync index`: what a person sees and does while the settings of an index change."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

CONFIGURATION = """
embedding: {{provider: openai, url: "{url}", model: {model}, dimensions: 64}}
index: {{keep_retired: {keep}}}
defaults: {{chunk: {{size: {size}, overlap: 80}}}}
repositories:
  - {{name: payments, path: "{path}"}}
"""
CODE = b"".join(b"def handler_%d(request):\n    return request.session.token\n\n" % number for number in range(40))


class Owner:
    """A person with one registered repository."""

    def __init__(self, person: Person, repository: GitRepository, embeddings: EmbeddingServer) -> None:
        self.person, self.repository, self.embeddings = person, repository, embeddings
        repository.commit({"billing/sessions.py": CODE, "README.md": b"# Payments\n"})

    def serves(self, model: str) -> None:
        self.embeddings.model = model

    def configures(self, *, model: str = "test/words", size: int = 400, keep: str = "24h") -> None:
        reported = {"url": self.embeddings.url, "path": self.repository.path}
        self.person.applies(CONFIGURATION.format(model=model, size=size, keep=keep, **reported))

    def states(self) -> list[tuple[str, int]]:
        (found,) = self.person.asks("index", "status")["items"]
        every = [found["live"], found["building"], *found["retired"]]
        return [(each["state"], each["number"]) for each in every if each is not None]


@pytest.fixture
def owner(person: Person, repository: GitRepository, embeddings: EmbeddingServer) -> Owner:
    owner = Owner(person, repository, embeddings)
    owner.configures()
    return owner


def test_the_status_names_the_model_the_chunks_and_the_commit_that_are_searched(owner: Owner) -> None:
    person = owner.person
    assert "nothing yet" in person.types("index", "status").stdout
    person.types("sync")

    reported = person.asks("index", "status")
    (found,) = reported["items"]
    assert person.asks("index", "status", "payments") == found
    live = found["live"]
    assert (live["number"], live["provider"], live["model"]) == (1, "openai", "test/words")
    assert (live["chunk_size"], live["chunk_overlap"], live["files"]) == (400, 80, 2)
    assert live["commit"] == owner.repository.head()
    assert (found["building"], found["progress"], found["retired"]) == (None, None, [])
    (change,) = reported["collections"]
    assert change["repositories"] == {"done": 1, "building": 0, "waiting": 0, "unknown": 0}
    shown = person.types("index", "status").stdout
    for words in ("payments", "live", "openai: test/words", "400/80", owner.repository.head()[:10], live["physical"]):
        assert words in shown
    assert "repositories on" not in shown, "nothing changes"


def test_settings_that_are_set_again_find_the_version_that_they_made(owner: Owner) -> None:
    person = owner.person
    person.types("sync")
    owner.configures(size=1600)
    person.types("sync")
    assert owner.states() == [("live", 2), ("retired", 1)]
    assert "removed in 23 h" in person.types("index", "status").stdout
    owner.embeddings.forget()

    owner.configures()
    person.types("sync")

    assert owner.states() == [("live", 1), ("retired", 2)]
    assert owner.embeddings.inputs == []


def test_the_progress_of_a_change_is_displayed(owner: Owner) -> None:
    person = owner.person
    person.types("sync")
    owner.configures(model="test/other")
    assert "0 of 1 repositories on openai: test/other (1 waiting)" in person.types("index", "status").stdout
    (change,) = person.asks("index", "status")["collections"]
    assert change["repositories"]["waiting"] == 1
    assert change["chunks_former"] > 0

    owner.serves("test/other")
    with owner.embeddings.holding():
        process = person.starts("sync")
        owner.embeddings.wait_for_waiting(1)
        reported = person.asks("index", "status")
        shown = person.types("index", "status").stdout
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)

    (found,) = reported["items"]
    assert (found["live"]["model"], found["building"]["model"]) == ("test/words", "test/other")
    assert found["progress"]["run"] is not None
    assert found["progress"]["files_total"] == 2
    assert reported["collections"][0]["repositories"]["building"] == 1
    assert "0 of about 2 files built" in shown
    assert "building" in shown
