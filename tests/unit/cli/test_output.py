"""How figures and hostile names are shown."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.cli.output import short, summary
from reposync.store.run import COUNTS, Run
from reposync.sync.brake import read_brake
from reposync.words import ago, duration, escape_unprintable, with_unprintable


@given(st.text())
def test_nothing_that_is_shown_moves_the_cursor_or_turns_a_line_around(text: str):
    assert all(char.isprintable() for char in escape_unprintable(text))


@given(st.text().filter(lambda text: "\\" not in text))
def test_what_is_shown_of_a_text_leads_back_to_it(text: str):
    assert with_unprintable(escape_unprintable(text)) == text


def test_ordinary_names_are_shown_as_they_are():
    assert escape_unprintable("src/日本/ümlaut é.py") == "src/日本/ümlaut é.py"
    assert escape_unprintable("a\x1b[2J\nb") == "a\\x1b[2J\\nb"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (7_300, "2 h ago"), (200_000, "2 d ago"), (-5, "0 s ago")],
)
def test_how_long_ago(seconds: int, said: str):
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert ago(now - timedelta(seconds=seconds), now) == said
    assert (ago(None), short(None)) == ("never", "-")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "-"), (0.239, "0.24 s"), (9.999, "10.00 s"), (41.2, "41 s"), (59.7, "1 min 0 s"), (7_500, "2 h 5 min")],
)
def test_durations_in_words(seconds: float | None, said: str):
    assert duration(seconds) == said


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
def test_failed_files_come_first_in_a_summary_and_are_red(
    figures: dict[str, Any], said: str, colour: str | None
) -> None:
    assert summary(run(**figures)) == (click.style(said, fg=colour) if colour else said)


def test_what_a_run_was_blocked_for_is_displayed_with_its_commit_and_its_counts():
    facts = {"commit": COMMIT, "planned": {"vanished": 40}, "losses": {"vanished": 40, "unreadable": 2}, "indexed": 43}

    brake = read_brake(facts)

    words = "42 of the 43 indexed files at commit 9c8b7a6f9c: 40 are not in the commit, 2 cannot be read"
    assert brake is not None and brake.in_words() == words
    assert read_brake(None) is None
