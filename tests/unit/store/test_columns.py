"""Text of any origin as the databases take it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reposync.store.columns import path_key, sanitize_text

ANY_TEXT = st.text(st.characters(), max_size=50)
LONG_TEXT = st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=20), st.integers(1, 200))


@given(ANY_TEXT)
def test_stored_text_has_no_nul_and_can_be_encoded_and_is_ordinary_text_as_it_was(text: str) -> None:
    stored = sanitize_text(text)

    assert "\0" not in stored
    stored.encode()
    assert sanitize_text(stored) == stored
    if not any(each == "\0" or "\ud800" <= each <= "\udfff" for each in text):
        assert stored == text


@given(ANY_TEXT | LONG_TEXT)
def test_a_key_fits_into_an_index_entry_of_postgresql(path: str) -> None:
    # 2,704 bytes less the 36 of the other half of the key and some for the entry itself.
    assert len(path_key(path).encode()) <= 2_600


@given(st.text(min_size=1, max_size=4), st.integers(500, 530), st.text(max_size=5), st.text(max_size=5))
def test_different_paths_have_different_keys(piece: str, times: int, one: str, other: str) -> None:
    start = piece * times
    same = sanitize_text(start + one) == sanitize_text(start + other)

    assert (path_key(start + one) == path_key(start + other)) == same
    assert path_key(path_key(start)) != path_key(start) or len(sanitize_text(start)) <= 512
