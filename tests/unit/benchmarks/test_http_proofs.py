"""What the load of requests is held against finds what coalescing must not do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.http.proofs import Commits, SyncRequest, read_journal, violations
from reposync.store.run import Run
from reposync.store.status import RunStatus


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def run(identity: str, queued: float, started: float | None, commit: str | None = "c1", **changes: Any) -> Run:
    every: dict[str, Any] = dict.fromkeys(Run.model_fields)
    every |= {"id": identity, "repository": "payments", "status": RunStatus.COMPLETED, "commit_after": commit}
    every |= {"queued_at": at(queued), "started_at": None if started is None else at(started)}
    return Run.model_construct(**every | changes)


COMMITS = Commits(["c1", "c2", "c3"], [0.0, 10.0, 20.0])
RUNS = [run("r1", 1, 3), run("r2", 4, 12, "c2"), run("r3", 12.5, 21, "c3")]
REQUESTS = [
    SyncRequest(0, 1.0, 1.1, 202, "r1"),
    SyncRequest(0, 2.0, 2.1, 202, "r1"),
    SyncRequest(0, 4.0, 4.1, 202, "r2"),
    SyncRequest(0, 11.0, 11.1, 202, "r2"),
    SyncRequest(0, 20.5, 20.6, 202, "r3"),
]


def test_what_is_right_is_found_right() -> None:
    assert violations(REQUESTS, RUNS, [COMMITS]) == []


@pytest.mark.parametrize(
    ("requests", "runs", "expected"),
    [
        ([*REQUESTS, SyncRequest(0, 5.0, 5.1, 503, "")], RUNS, "answer 503 with the unknown run ''"),
        ([*REQUESTS, SyncRequest(0, 5.0, 5.1, 202, "r9")], RUNS, "answer 202 with the unknown run 'r9'"),
        ([*REQUESTS, SyncRequest(0, 10.5, 10.6, 202, "r1")], RUNS, "run r1 took an older commit than was there"),
        (REQUESTS, [*RUNS, run("r4", 5, 22, "c3")], "run r4 was queued while r2 waited"),
        (REQUESTS, [*RUNS, run("r4", 30, 31, "c3")], "run r4 was not requested"),
        (
            REQUESTS,
            [*RUNS[:2], RUNS[2].model_copy(update={"status": RunStatus.FAILED, "error_message": "no"})],
            "run r3 is failed: no",
        ),
        (REQUESTS, [*RUNS[:2], RUNS[2].model_copy(update={"commit_after": None})], "run r3 is completed"),
    ],
)
def test_what_is_lost_or_doubled_is_found(requests: list[SyncRequest], runs: list[Run], expected: str) -> None:
    assert any(each.startswith(expected) for each in violations(requests, runs, [COMMITS])), violations(
        requests, runs, [COMMITS]
    )


def test_a_journal_is_read_back_with_answers_that_named_no_run(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("3 1.500000 2.250000 202 r1\n0 2.000000 2.500000 503 \n")

    assert read_journal(journal) == [SyncRequest(3, 1.5, 2.25, 202, "r1"), SyncRequest(0, 2.0, 2.5, 503, "")]
