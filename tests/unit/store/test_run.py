"""States of a run and the cursor of a page."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.errors import UsageError
from reposync.store.run import parse_cursor


def test_a_cursor_names_a_moment_and_a_run() -> None:
    assert parse_cursor("20260301T120000.000123Z_abc") == (datetime(2026, 3, 1, 12, 0, 0, 123, tzinfo=UTC), "abc")


@given(st.text())
def test_rubbish_is_no_cursor(text: str) -> None:
    with pytest.raises(UsageError, match="cursor"):
        parse_cursor(text)
