"""What a sync says when it has ended."""

from __future__ import annotations

from typing import Any

import pytest

from reposync.cli.output import summary, summary_line
from reposync.store.run import COUNTS, Run
from reposync.sync.brake import read_brake

COMMIT = "9c8b7a6f" * 5


def run(**figures: Any) -> Run:
    every: dict[str, Any] = dict.fromkeys(Run.model_fields)
    counts = dict.fromkeys(COUNTS, 0)
    told = {"repository": "payments", "status": "completed", "commit_after": COMMIT, "duration_seconds": 2.0}
    return Run.model_construct(**every | counts | told | figures)


@pytest.mark.parametrize(
    ("figures", "said", "colour"),
    [
        ({}, "payments: completed at 9c8b7a6f9c: nothing to do, in 2.00 s", None),
        ({"files_failed": 1}, "payments: completed with 1 file failed at 9c8b7a6f9c: nothing to do, in 2.00 s", "red"),
        (
            {"files_failed": 1_203, "files_processed": 4},
            "payments: completed with 1,203 files failed at 9c8b7a6f9c: 4 files stored, in 2.00 s",
            "red",
        ),
        ({"status": "failed", "error_message": "It is gone."}, "payments: failed: It is gone.", "red"),
    ],
)
def test_files_that_failed_are_said_before_all_else_and_in_red(
    figures: dict[str, Any], said: str, colour: str | None
) -> None:
    assert summary(run(**figures)) == said
    assert summary_line(run(**figures)).startswith("\x1b[31m" if colour else "payments")


def test_what_a_run_was_blocked_for_is_said_with_its_commit_and_its_counts() -> None:
    facts = {"commit": COMMIT, "planned": {"vanished": 40}, "losses": {"vanished": 40, "unreadable": 2}, "indexed": 43}

    brake = read_brake(facts)

    assert brake is not None
    assert brake.in_words() == (
        "42 of the 43 indexed files at commit 9c8b7a6f9c: 40 are not in the commit, 2 cannot be read"
    )
    assert read_brake(run().brake) is None
