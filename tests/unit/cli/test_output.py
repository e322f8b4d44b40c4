"""How figures and hostile names are shown."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.cli.output import short
from reposync.words import ago, duration, escape_unprintable


@given(st.text())
def test_nothing_that_is_shown_moves_the_cursor_or_turns_a_line_around(text: str):
    assert all(char.isprintable() for char in escape_unprintable(text))


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


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "-"), (0.239, "0.24 s"), (9.999, "10.00 s"), (41.2, "41 s"), (59.7, "1 min 0 s"), (7_500, "2 h 5 min")],
)
def test_durations_in_words(seconds: float | None, said: str):
    assert duration(seconds) == said


def test_what_is_missing_is_a_dash_or_never():
    assert (ago(None), short(None)) == ("never", "-")
