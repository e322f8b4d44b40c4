from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reposync.embedding.windows import readable_windows, windows

TEXTS = st.text(alphabet="ab \n\té日", max_size=300)


@given(TEXTS, st.integers(1, 40))
def test_windows_cover_any_text_and_none_is_too_long(text: str, most: int) -> None:
    cut = windows(text, most)
    assert "".join(cut) == text
    assert all(1 <= len(window) <= most for window in cut)


@given(st.lists(st.text(alphabet="ab ", max_size=18), max_size=30))
def test_lines_that_fit_stay_whole(lines: list[str]) -> None:
    text = "".join(line + "\n" for line in lines)
    assert all(window.endswith("\n") for window in windows(text, 20))


@given(TEXTS, st.integers(1, 40))
def test_what_is_embedded_has_all_of_the_text_but_blanks(text: str, most: int) -> None:
    readable = readable_windows(text, most)
    assert "".join("".join(readable).split()) == "".join(text.split())
    assert readable
    assert all(1 <= len(window) <= most for window in readable)
    assert not any(window.isspace() for window in readable[1:])


def test_a_long_line_is_cut_between_words() -> None:
    assert windows("alpha beta gamma", 12) == ["alpha beta ", "gamma"]
    assert windows("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_window_ends_where_something_ends() -> None:
    text = "def one():\n    first = 1\n    return first\n\n\ndef two():\n    second = 2\n    return second\n"
    assert windows(text, 70) == [text[:44], text[44:]]
    assert text[44:].startswith("def two")
