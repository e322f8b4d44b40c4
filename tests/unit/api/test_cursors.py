from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reposync.errors import UsageError
from reposync.operations.fields import MAX_CURSOR_CHARS, cursor_after, key_before
from reposync.store.columns import path_key


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_cursor_leads_back_to_where_its_page_ended(key: str) -> None:
    assert key_before(cursor_after(key)) == key


@given(st.text(max_size=2_000))
def test_the_cursor_of_any_file_is_one_that_is_taken(path: str) -> None:
    cursor = cursor_after(path_key(path))

    assert len(cursor) <= MAX_CURSOR_CHARS
    assert key_before(cursor) == path_key(path)


@given(st.text())
def test_rubbish_is_refused_or_harmless(cursor: str) -> None:
    try:
        key = key_before(cursor)
    except UsageError as error:
        assert "next_cursor" in str(error)
    else:
        assert "\0" not in key
        key.encode()
