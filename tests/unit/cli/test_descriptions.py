"""What a person reads of one run and of one repository."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from reposync.catalog.overview import Overview
from reposync.cli.descriptions import repository_lines, run_lines
from reposync.cli.output import Code, Line
from reposync.operations.runs import Brake, RunAttempt, RunDetail, RunProblem, RunRequest

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN = {
    **dict.fromkeys(RunDetail.model_fields),
    **{"id": "82bac88e-37c4-48c2-ab4b-3e3ef0bd2abb", "repository": "billing", "status": "completed"},
    **{"trigger": "webhook", "asked_by": ["push of ann", "bob"], "worker": "pod-1"},
    **{"queued_at": THEN, "started_at": THEN, "duration_seconds": 8.0, "elapsed_seconds": 308.0, "attempt": 2},
    **{
        "commit_before": "a" * 40,
        "commit_after": "b" * 40,
        "commit_page": "https://gitlab.example.com/billing/-/commit/",
    },
    **dict.fromkeys(("files_deleted", "files_skipped", "files_failed", "chunks_reused", "new_secrets"), 0),
    **{"files_processed": 12, "chunks_embedded": 40, "problem_counts": {}, "requests": [], "attempts": []},
}


def words(lines: Any) -> list[str]:
    def text(line: Line) -> str:
        return click.unstyle(line.text if isinstance(line, Code) else str(line))

    return [" ".join(text(line).split()) for line in lines]


def run(**others: Any) -> list[str]:
    problems = others.pop("problems", [])
    return words(run_lines(RunDetail.model_construct(**RUN | others), problems))


def test_a_run_is_told_in_eight_lines_without_what_is_empty() -> None:
    first, *facts = run()

    assert first == "billing: completed"
    assert facts == [
        "run 82bac88e-37c4-48c2-ab4b-3e3ef0bd2abb",
        "commit aaaaaaaaaa -> bbbbbbbbbb https://gitlab.example.com/billing/-/commit/" + "b" * 40,
        "change 12 files stored, 40 chunks embedded",
        facts[3],
        "who webhook by push of ann and 1 more, executed by pod-1",
    ]
    assert facts[3].startswith("time started 2026-01-02 03:04:05 UTC (")
    assert facts[3].endswith("took 8.00 s in 2 attempts, 5 min 8 s from start to end")


@pytest.mark.parametrize(
    ("status", "command"),
    [
        ("blocked", "`reposync runs approve 82bac88e`"),
        ("failed", "`reposync runs retry 82bac88e`"),
        ("cancelled", "`reposync runs retry 82bac88e`"),
        ("running", "`reposync runs watch 82bac88e`"),
        ("queued", "`reposync runs watch 82bac88e`"),
    ],
)
def test_a_run_that_is_not_completed_names_the_next_command(status: str, command: str) -> None:
    told = run(status=status, error_code="SOURCE_ERROR", error_message="It is\x1b gone.")

    assert next(line for line in told if line.startswith("next ")).startswith(f"next {command}")
    assert "problem SOURCE_ERROR: It is\\x1b gone." in told


def test_a_blocked_run_names_the_commit_that_it_stopped_at() -> None:
    told = run(status="blocked", commit_after=None, commit_page=None, brake=Brake(commit="c" * 40))

    assert "commit aaaaaaaaaa -> cccccccccc" in told


def test_several_attempts_and_requests_are_lines_of_their_own() -> None:
    counts = dict.fromkeys(RunAttempt.model_fields, 0)
    lost = {"attempt": 1, "worker": "pod-1", "started_at": THEN, "ended_at": THEN + timedelta(seconds=3), "times": 288}
    lost |= {"outcome": "released", "error_code": "LOCK_HELD", "error_message": "It is locked."}
    ask = dict.fromkeys(RunRequest.model_fields) | {
        "trigger": "http",
        "asked_by": "bob",
        "asked_at": THEN,
        "full": True,
    }
    told = run(
        attempts=[RunAttempt.model_construct(**counts | lost)],
        requests=[RunRequest.model_construct(**ask), RunRequest.model_construct(**ask | {"full": False})],
    )

    assert "1 released after 3.00 s, 288 times pod-1 LOCK_HELD: It is locked." in told
    assert [line.endswith(" full") for line in told if line.startswith("http bob 2026-01-02 03:04:05 UTC")] == [
        True,
        False,
    ]


def test_the_files_that_failed_or_were_skipped_follow_with_their_reasons() -> None:
    files = [
        RunProblem(path="a\n.py", reason="failed", detail="Not read."),
        RunProblem(path="b", reason="binary", detail="It is."),
    ]
    told = run(problems=files, problem_counts={"failed": 1, "binary": 3}, files_failed=1)

    assert told[0] == "billing: completed with 1 file failed"
    assert told[-4:] == [
        "failed or skipped:",
        "failed a\\n.py Not read.",
        "binary b It is.",
        "... and 2 more (--limit)",
    ]
    assert "next `reposync sync billing` tries the failed files again" in told


def test_a_repository_is_told_by_what_is_indexed_and_how_far_it_is_behind() -> None:
    row = dict.fromkeys(Overview.__dataclass_fields__) | {
        **{"name": "billing", "location": "https://git.example.com/billing.git", "origin": "config", "state": "active"},
        **{"origin_file": "/etc/repositories.yaml", "collection": "code", "schedule": "every 6 hours"},
        **{"cron_expression": "0 */6 * * *", "timezone": "UTC", "last_commit": "b" * 40, "head_commit": "c" * 40},
        **{"behind_since": datetime.now(UTC) - timedelta(minutes=12, seconds=9), "last_sync_at": THEN},
        **{
            "files": 1_041,
            "chunks": 2_000,
            "skipped": 0,
            "failed": 2,
            "last_run": "82bac88e-37c4",
            "last_status": "blocked",
        },
    }
    told = words(repository_lines(Overview(**row), [THEN]))

    assert told[:2] == [
        "billing: active",
        "source https://git.example.com/billing.git; from registry file /etc/repositories.yaml",
    ]
    assert told[2].startswith("commit bbbbbbbbbb, behind cccccccccc for 12 min, last sync 2026-01-02 03:04:05 UTC (")
    assert told[3:] == [
        "index 1,041 files, 2,000 chunks, 2 failed, in collection code",
        "schedule every 6 hours (0 */6 * * *, UTC)",
        "missed 2026-01-02 03:04:05 UTC",
        "last run blocked 82bac88e",
        "next `reposync runs approve 82bac88e` if the deletion is right",
    ]
