"""The text that chunks were cut from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from reposync.content.chunking import chunk_text
from reposync.content.documents import make_document, notebook_cells
from reposync.content.joining import has_lines_of_file, joined
from reposync.content.model import Chunk, Document
from tests.unit.content.test_chunking import LANGUAGES, sizes, texts

NOT_EMPTY = texts.filter(bool)


def without_starts(chunks: Sequence[Chunk]) -> list[Chunk]:
    """As programs before 0.2 stored them."""
    return [replace(each, start_index=None) for each in chunks]


@given(NOT_EMPTY, st.sampled_from(LANGUAGES), sizes())
@example("\n\r\n" * 60, "python", (17, 5))
@example("x" * 1000, None, (100, 20))
@example("0, " * 400, None, (150, 149))
def test_the_chunks_of_any_text_are_the_text(
    text: str, language: str | None, size_and_overlap: tuple[int, int]
) -> None:
    chunks = chunk_text(text, language, *size_and_overlap)

    whole = joined(chunks)

    assert whole is not None
    assert (whole.text, whole.is_certain) == (text, True)
    assert all(text.startswith(each.text, start) for each, start in zip(chunks, whole.starts, strict=True))
    assert has_lines_of_file(chunks)


@given(NOT_EMPTY, st.sampled_from(LANGUAGES), sizes())
def test_the_text_of_chunks_that_do_not_know_their_starts_is_the_text_or_uncertain(
    text: str, language: str | None, size_and_overlap: tuple[int, int]
) -> None:
    chunks = chunk_text(text, language, *size_and_overlap)

    whole = joined(without_starts(chunks))

    assert whole is not None
    assert whole.text == text or not whole.is_certain


def test_ordinary_code_needs_no_starts() -> None:
    text = "".join(f"def function_{n}(argument):\r\n    return argument + {n}\r\n\r\n" for n in range(500))
    whole = joined(without_starts(chunk_text(text, "python", 700, 150)))
    assert whole is not None
    assert (whole.text, whole.is_certain) == (text, True)


@given(NOT_EMPTY, sizes(), st.data())
def test_a_chunk_that_is_missing_between_others_is_noticed(
    text: str, size_and_overlap: tuple[int, int], data: st.DataObject
) -> None:
    chunks = list(chunk_text(text, None, *size_and_overlap))
    if len(chunks) > 2:
        missing = data.draw(st.integers(0, len(chunks) - 2))
        is_covered = missing and chunks[missing + 1].start_index <= len(chunks[missing - 1].text) + (
            chunks[missing - 1].start_index
        )
        del chunks[missing]
        whole = joined(chunks)
        assert whole is None or (is_covered and whole.text == text)


def test_chunks_of_different_texts_are_not_joined() -> None:
    one = chunk_text("one line\n" * 50, None, 100, 30)
    other = chunk_text("a different\n" * 50, None, 100, 30)
    assert joined([one[0], *other[1:]]) is None
    assert joined([one[0], replace(one[1], start_line=40, end_line=49), *one[2:]]) is None


def test_a_notebook_is_the_text_of_its_cells_and_its_lines_are_those_of_the_file() -> None:
    cells = [{"cell_type": "code", "source": [f"x = {n}\n", "print(x)\n", "x"], "outputs": []} for n in range(40)]
    content = json.dumps({"cells": cells, "nbformat": 4}, indent=1)
    document = make_document(b"a.ipynb", content.encode(), len(content), chunk_size=120, chunk_overlap=40)
    assert isinstance(document, Document)
    read = notebook_cells(content)
    assert read is not None

    whole = joined(document.chunks)

    assert whole is not None
    assert (whole.text, has_lines_of_file(document.chunks)) == (read.text, False)
