"""How figures and hostile names are shown."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.cli.output import short, summary
from reposync.store.run import COUNTS, Run
from reposync.words import ago, duration, escape_unprintable, roughly, with_unprintable


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


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.86, "a few seconds"),
        (38, "about 40 s"),
        (58, "about 1 min"),
        (131, "about 2 min"),
        (8_500, "about 2 h 30 min"),
    ],
)
def test_an_estimate_is_as_precise_as_it_can_be(seconds: float, said: str):
    assert roughly(seconds) == said


COMMIT = "9c8b7a6f" * 5


def run(**figures: Any) -> Run:
    every: dict[str, Any] = dict.fromkeys(Run.model_fields)
    counts = dict.fromkeys(COUNTS, 0)
    told = {"repository": "payments", "status": "completed", "commit_after": COMMIT, "duration_seconds": 2.0}
    told |= {"attempt": 1}
    return Run.model_construct(**every | counts | told | figures)


def test_failed_files_come_first_in_a_summary_and_are_red():
    told = "payments: completed with 1,203 files failed at 9c8b7a6f9c: 4 files stored, in 2.00 s"
    assert summary(run()) == "payments: completed at 9c8b7a6f9c: nothing to do, in 2.00 s"
    assert summary(run(files_failed=1_203, files_processed=4)) == click.style(told, fg="red")
    failed = run(status="failed", error_message="It is gone.")
    assert summary(failed) == click.style("payments: failed: It is gone.", fg="red")
