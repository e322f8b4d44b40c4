from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reposync.content.chunking import chunk_spans, chunk_text

LANGUAGES = [None, "python", "typescript", "c", "html", "markdown", "rst", "latex", "visualbasic", "haskell", "yaml"]

# Text out of what separators are made of, so that every branch of the splitter is met.
PIECES = [
    "\n", "\n\n", "\r\n", "\r", "\f", " ", "\t", "a", "word", "\nclass ", "\ndef ", "\n# ", "<div", "```\n", "===\n",
    "$", "漢字", "\U0001f600", "e\u0301", "x" * 40, " " * 40, "\n" * 40, "\u2028", "\x0b", "\x85",
]  # fmt: skip
texts = st.one_of(st.text(max_size=400), st.lists(st.sampled_from(PIECES), max_size=120).map("".join))


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(st.integers(1, 150))
    return size, draw(st.integers(0, size - 1))


def line_at(text: str, offset: int) -> int:
    """Counted one by one, on purpose not as the code under test counts."""
    line = 1
    for character in text[:offset]:
        if character == "\n":
            line += 1
    return line


@given(texts, st.sampled_from(LANGUAGES), sizes())
@example("\n\r\n" * 60, "python", (17, 5))
@example("a" + " " * 500 + "b", None, (100, 20))
def test_chunks_cover_all_of_any_text_within_the_size_and_know_their_lines(
    text: str, language: str | None, size_and_overlap: tuple[int, int]
) -> None:
    size, overlap = size_and_overlap
    spans = chunk_spans(text, language, size, overlap)
    chunks = chunk_text(text, language, size, overlap)

    assert [chunk.text for chunk in chunks] == [text[start:end] for start, end in spans]
    assert all(0 < end - start <= size for start, end in spans)
    if text:
        assert spans[0][0] == 0
        assert spans[-1][1] == len(text)
    for (start, end), (next_start, next_end) in pairwise(spans):
        assert start < next_start <= end < next_end
        assert end - next_start <= overlap
    for chunk, (start, end) in zip(chunks, spans, strict=True):
        assert (chunk.start_line, chunk.end_line) == (line_at(text, start), line_at(text, end - 1))

    rebuilt, covered = "", 0
    for start, end in spans:
        rebuilt += text[max(start, covered) : end]
        covered = end
    assert rebuilt == text
    assert chunk_text(text, language, size, overlap) == chunks


def test_chunks_of_code_start_at_the_beginning_of_a_line() -> None:
    text = "".join(f"def function_{n}(argument):\n    return argument + {n}\n\n\n" for n in range(1000))
    lines = text.split("\n")
    for newline in ("\n", "\r\n"):
        for chunk in chunk_text(text.replace("\n", newline), "python"):
            first = chunk.text.split(newline)[0]
            assert first == lines[chunk.start_line - 1]
            assert chunk.text.endswith(newline)
            assert len(chunk.text) <= 7000


def test_a_class_is_cut_before_its_first_line_not_after() -> None:
    text = "import os\n" * 400 + "".join(
        f"\nclass Thing{n}:\n" + "    def method(self):\n        return 1\n\n" * 100 for n in range(4)
    )
    starts = [chunk.text.split("\n")[0] for chunk in chunk_text(text, "python")]
    for n in range(4):
        assert f"class Thing{n}:" in starts


def test_a_title_of_restructuredtext_stays_with_its_section() -> None:
    text = "".join(f"Title {n}\n=======\n\n{'Some words about it. ' * 200}\n\n" for n in range(4))
    starts = [chunk.text.split("\n")[0] for chunk in chunk_text(text, "rst")]
    assert {f"Title {n}" for n in range(4)} <= set(starts)


def test_a_short_head_before_a_long_part_makes_no_chunk_of_its_own() -> None:
    text = "import os\n\n" + "class A:\n" + "    x = 1\n" * 650 + "\nclass B:\n" + "    y = 2\n" * 900
    assert len(chunk_text(text, "python")) == 3
    assert chunk_text(text, "python")[0].text.startswith("import os\n\nclass A:")


def test_white_space_between_two_words_makes_no_chunk_of_white_space() -> None:
    text = "a" * 50 + "\n" * 90 + "b" * 50
    assert not any(chunk.text.isspace() for chunk in chunk_text(text, None, 100, 0))


MEGABYTE = 1_000_000


@pytest.mark.parametrize("language", [None, "html", "visualbasic"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * MEGABYTE, id="no separator"),
        pytest.param("\n" * MEGABYTE, id="only line breaks"),
        pytest.param(" " * MEGABYTE, id="only spaces"),
        pytest.param("\r\n" * (MEGABYTE // 2), id="only CRLF"),
        pytest.param("a " * (MEGABYTE // 2), id="short words"),
        pytest.param(json.dumps({f"key{n}": n for n in range(60_000)}), id="60,000 keys on one line"),
        pytest.param("\nPublic" + " " * MEGABYTE, id="a separator's beginning"),
    ],
)
def test_a_megabyte_of_anything_is_cut(text: str, language: str | None) -> None:
    """langchain's own merging takes minutes for some of these: the suite's time-out is the assertion."""
    spans = chunk_spans(text, language, 7000, 1500)
    assert spans[-1][1] == len(text)
    assert len(spans) < 2 * len(text) / 5000


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (100, 100), (100, -1), (-5, 0)])
def test_sizes_that_make_no_sense_are_refused(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="overlap"):
        chunk_text("text", None, size, overlap)
