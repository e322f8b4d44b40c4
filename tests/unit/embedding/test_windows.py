from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.embedding.port import Matrix, WindowRows
from reposync.embedding.windows import embed_windows, readable_windows, windows

TEXTS = st.text(alphabet="ab \n\té日", max_size=300)


@given(TEXTS, st.integers(1, 40))
def test_windows_cover_any_text_and_none_is_too_long(text: str, most: int) -> None:
    cut = windows(text, most)
    assert "".join(cut) == text
    assert all(1 <= len(window) <= most for window in cut)


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


class CountingModel:
    """The vector of a window is its length; each is noted."""

    def __init__(self) -> None:
        self.embedded: list[str] = []

    async def __call__(self, texts: Sequence[str], done: Callable[[int], None]) -> list[Matrix]:
        self.embedded += texts
        done(len(texts))
        return [np.full((1, 4), len(text), np.float32) for text in texts]


async def test_equal_windows_are_embedded_once_and_known_ones_not_at_all() -> None:
    model, rows = CountingModel(), WindowRows()
    rows.add("known", np.zeros((1, 4), np.float32))
    first, second = await embed_windows([["a", "known", "bb"], ["bb", "a"]], rows, model)
    assert model.embedded == ["a", "bb"]
    assert (first[:, 0].tolist(), second[:, 0].tolist()) == ([1, 0, 2], [2, 1])
    assert (rows.embedded, rows.reused) == (2, 3)
    await embed_windows([["bb", "known"]], rows, model)
    assert model.embedded == ["a", "bb"]


async def test_the_shares_that_are_reported_are_together_all() -> None:
    model, rows, shares = CountingModel(), WindowRows(), list[float]()
    rows.add("known", np.zeros((1, 4), np.float32))
    for texts in ([["a", "known"], ["bb", "a", "ccc"]], [["known"]], [["dddd"]]):
        shares.clear()
        await embed_windows(texts, rows, model, shares.append)
        assert sum(shares) == pytest.approx(1)


async def test_vectors_of_windows_take_bounded_memory_and_the_latest_used_stay() -> None:
    model, rows = CountingModel(), WindowRows(max_bytes=3 * 330)
    await embed_windows([["a", "b", "c"]], rows, model)
    await embed_windows([["a"], ["d"]], rows, model)
    assert rows.known("abcd").keys() == {"a", "c", "d"}
    (matrix,) = await embed_windows([[str(number) for number in range(50)]], rows, model)
    assert matrix.shape == (50, 4), "a text of more windows than are kept gets all its vectors"
