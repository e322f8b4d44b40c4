"""A run as its row describes it."""

from __future__ import annotations

from datetime import UTC, datetime

from reposync.store.run import Ask, Run, RunRequest
from reposync.store.status import RunTrigger

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_a_request_that_a_newer_program_wrote_is_read_without_what_only_that_knows() -> None:
    entry = Ask(RunTrigger.HTTP, "token 1", full=True).entry(NOW) | {"reason": "a word of a newer program"}

    assert Run.model_construct(asked=[entry]).requests == [RunRequest("http", "token 1", NOW, full=True)]
