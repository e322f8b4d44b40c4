from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reposync.content.documents import make_document, notebook_cells
from reposync.content.model import Chunk, Document, Skip, Skipped

PICTURE = base64.b64encode(random.Random(1).randbytes(450_000)).decode()


def code(*lines: str, outputs: list[Any] | None = None) -> dict[str, Any]:
    return {
        "cell_type": "code", "execution_count": 1, "metadata": {"secret": 1}, "outputs": outputs or [],
        "source": list(lines),
    }  # fmt: skip


def markdown(*lines: str, **more: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": list(lines), **more}


def written(*cells: dict[str, Any], indent: int | None = 1) -> str:
    """As nbformat writes it: a line of JSON for each line of a cell."""
    whole = {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=indent, ensure_ascii=False, sort_keys=True) + "\n"


def made(text: str, **options: int) -> Document:
    document = make_document(b"a/Analysis.ipynb", text.encode(), len(text), **options)  # type: ignore[arg-type]
    assert isinstance(document, Document)
    return document


def plot(picture: str = PICTURE) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"image/png": picture, "text/plain": ["<Figure size 640x480>"]}}


def test_cells_follow_one_another_without_outputs_attachments_and_metadata() -> None:
    text = written(
        markdown("# Title\n", "\n", "Some text."),
        code("x = 1\n", "print(x)", outputs=[{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]),
        code(),
        markdown("![](attachment:a.png)", attachments={"a.png": {"image/png": PICTURE}}),
    )
    cells = notebook_cells(text)
    assert cells is not None
    assert cells.text == "# Title\n\nSome text.\n\nx = 1\nprint(x)\n\n![](attachment:a.png)\n\n"


def test_lines_are_those_of_the_file() -> None:
    text = written(
        markdown("# Title\n", "\n", "Some text."),
        code("x = 1\n", "print(x)", outputs=[plot("abc"), {"output_type": "stream", "text": ["x = 1\n"] * 500}]),
        code("y = 'a\\u00e9\"'\n", "print(y)"),
    )
    of_file = text.split("\n")
    cells = notebook_cells(text)
    assert cells is not None
    assert len(cells.lines) == cells.text.count("\n")
    for number, line in zip(cells.lines, cells.text.split("\n"), strict=False):
        if line:
            assert json.dumps(line, ensure_ascii=False)[1:-1] in of_file[number - 1]
    last = made(text, chunk_size=30, chunk_overlap=0).chunks[-1]
    assert of_file[last.start_line - 1].strip().startswith('"y = ')
    assert "print(y)" in of_file[last.end_line - 1]


def test_a_cell_may_be_one_string_and_the_format_an_old_one() -> None:
    assert made(json.dumps({"cells": [{"source": "a\nb"}]})).chunks[0].text == "a\nb\n\n"
    old = {"nbformat": 3, "worksheets": [{"cells": [{"input": ["a = 1"], "outputs": [{"input": "no"}]}]}]}
    assert made(json.dumps(old)).chunks[0].text == "a = 1\n\n"


def test_what_no_database_stores_is_replaced() -> None:
    text = '{"cells":[{"source":["a\\ud800b\\u0000c\\ud83d\\ude00"]}]}'
    assert made(text).chunks[0].text == "a\ufffdb\ufffdc😀\n\n"


def test_only_cells_at_the_top_level_are_cells() -> None:
    inside = {"application/json": {"cells": [{"source": "not this"}]}, "source": ["nor this"]}
    text = written(code("x = 1", outputs=[{"output_type": "display_data", "data": inside}]))
    assert made(text).chunks[0].text == "x = 1\n\n"


def test_two_lines_of_code_and_a_plot_make_one_chunk() -> None:
    text = written(code("import pandas\n", "df = pandas.read_csv('x.csv')", outputs=[plot()]))
    assert [chunk.text for chunk in made(text).chunks] == ["import pandas\ndf = pandas.read_csv('x.csv')\n\n"]


def test_a_picture_pasted_into_a_text_goes_and_the_text_stays() -> None:
    text = written(markdown("# Title\n", f"![a](data:image/png;base64,{PICTURE})\n", "Some text."))
    assert made(text).chunks[0].text == "# Title\n![a](data:image/png;base64,)\nSome text.\n\n"


def test_a_notebook_without_text_is_empty() -> None:
    for text in (written(), written(code(outputs=[plot()]), markdown(" \n"))):
        document = make_document(b"a.ipynb", text.encode(), len(text))
        assert document == Skipped(Skip.EMPTY, "a notebook without code and text")


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"cells": [',
        '{"cells": [}]',
        '{"cells": [{"source": ["\\x"]}]}',
        '{"a": 1}',
        "[]",
        '"',
        '{"cells": ["',
    ],
)
def test_what_is_no_notebook_is_read_as_any_text(text: str) -> None:
    assert notebook_cells(text) is None
    assert made(text).chunks == (Chunk(text, 1, 1),)


@pytest.mark.parametrize(
    "strange", ["[" * 200_000, '{"cells":' * 50_000, "1" * 200_000, "-" + "9" * 200_000 + "e9", '"' * 199_999, "\\" * 9]
)
def test_no_nesting_no_number_and_no_quote_breaks_it(strange: str) -> None:
    for text in (strange, '{"cells": [{"source": ["a = 1"], "outputs": [' + strange + "]}]}"):
        document = make_document(b"a.ipynb", text.encode(), len(text))
        assert not isinstance(document, Skipped) or document.reason is Skip.DATA


LINES = st.lists(st.text(max_size=20).map(lambda line: line.replace("\n", "") + "\n"), max_size=5)


@given(st.lists(LINES, max_size=6), st.sampled_from([None, 1, 4]), st.booleans())
def test_every_line_of_every_cell_is_there_and_lines_ascend(
    sources: list[list[str]], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps({"cells": [code(*lines) for lines in sources]}, indent=indent, ensure_ascii=ascii_only)
    cells = notebook_cells(text)
    assert cells is not None
    expected = ["".join(lines) + "\n" for lines in sources if "".join(lines).strip()]
    assert cells.text == "".join(expected).replace("\0", "\ufffd")
    assert cells.lines == sorted(cells.lines)
    assert len(cells.lines) == cells.text.count("\n")
    assert not cells.lines or 1 <= cells.lines[0] <= cells.lines[-1] <= text.count("\n") + 1


@given(st.text(alphabet='[]{}":,\\ \n1au\ud800cellsource', max_size=200), st.booleans())
def test_nothing_makes_it_fail(text: str, inside: bool) -> None:
    whole = '{"cells":[{"source":["' + text + '"]}]}' if inside else text
    content = whole.encode("utf-8", "surrogatepass")
    document = make_document(b"a.ipynb", content, len(content), chunk_size=20, chunk_overlap=5)
    if isinstance(document, Skipped):
        assert document.reason is not Skip.FAILED
        return
    for chunk in document.chunks:
        chunk.text.encode()
        assert "\0" not in chunk.text
        assert 1 <= chunk.start_line <= chunk.end_line
