"""From a blob to a document: decode, detect, chunk.

Of a Jupyter notebook the cells are indexed, without outputs, attachments and metadata. Its JSON is walked token by
token and not parsed into objects: that gives the line of the file for each line of a cell, and deep nesting or a number
of a million digits does no harm.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Final

from reposync.content.decoding import decode
from reposync.content.detection import data_reason, generated_reason
from reposync.content.languages import language_of
from reposync.content.model import Document, Skip, Skipped


@dataclass(frozen=True, slots=True)
class FileText:
    """A decoded file. `lines[n]`: the line of the file of line n of the text, which is that of the cells of a notebook;
    None: they are the same."""

    text: str
    language: str | None
    lines: list[int] | None = None


def read_text(path: bytes, content: bytes | None, size_bytes: int, *, max_file_bytes: int) -> FileText | Skipped:
    """`content` is None if it was too large to fetch. Raises nothing for any `path` and `content`."""
    if content is None or size_bytes > max_file_bytes:
        return Skipped(Skip.TOO_LARGE, f"{size_bytes:,} bytes, the limit is {max_file_bytes:,}")
    text = decode(content)
    if isinstance(text, Skipped):
        return text
    language = language_of(path, text)
    cells = notebook_cells(text) if path.lower().endswith(b".ipynb") else None
    file = FileText(text, language) if cells is None else FileText(cells.text, language, cells.lines)
    return file if file.text else Skipped(Skip.EMPTY, "a notebook without code and text")


def content_reason(file: FileText) -> Skipped | None:
    """Why a file is not indexed whose content says that it is generated, minified or data."""
    return generated_reason(file.text, file.language) or data_reason(file.text, file.language)


def cut(
    file: FileText, *, chunk_size: int = 7000, chunk_overlap: int = 1500, keep_generated: bool = False
) -> Document | Skipped:
    """The chunks of a file, or why it has none. `keep_generated` indexes the file even if its content says that it is
    generated, minified or data. Lines of a chunk are those of the file, also of a notebook. Chunk texts hold neither
    NUL nor lone surrogates. Raises ValueError for impossible sizes, and nothing for any file."""
    from reposync.content.chunking import chunk_text  # langchain takes 0.3 s to import

    text, language, lines = file.text, file.language, file.lines
    if not keep_generated and (skipped := content_reason(file)) is not None:
        return skipped
    chunks = chunk_text(text, language, chunk_size, chunk_overlap)
    if lines is not None:
        chunks = tuple(
            replace(each, start_line=lines[each.start_line - 1], end_line=lines[each.end_line - 1]) for each in chunks
        )
    return Document(language, chunks)


def make_document(
    path: bytes,
    content: bytes | None,
    size_bytes: int,
    *,
    chunk_size: int = 7000,
    chunk_overlap: int = 1500,
    max_file_bytes: int = 1_000_000,
    keep_generated: bool = False,
) -> Document | Skipped:
    """`read_text` and `cut`."""
    file = read_text(path, content, size_bytes, max_file_bytes=max_file_bytes)
    if isinstance(file, Skipped):
        return file
    return cut(file, chunk_size=chunk_size, chunk_overlap=chunk_overlap, keep_generated=keep_generated)


# Notebooks -----------------------------------------------------------------------------------------------------------

_SPACE: Final = r"[ \t\r\n]*+"
_TOKEN: Final = re.compile(
    r"(?P<open>[\[{])|(?P<close>[\]}])"
    rf'|"(?P<string>[^"\\]*+(?:\\.[^"\\]*+)*+)"(?P<colon>{_SPACE}:)?+'
    r"|[ \t\r\n,+\-.\w]++"  # scalars, commas and space are skipped in one step
)
_CLOSING: Final = {"[": "]", "{": "}"}

_CELLS: Final = frozenset({("", "cells", ""), ("", "worksheets", "", "cells", "")})
"""Paths of a cell: keys from the top, "" in a list. nbformat 4, and 3 with its worksheets."""
_SOURCE: Final = frozenset({"source", "input"})  # nbformat 3 calls the source of a code cell "input"
_DEEPEST: Final = 6

_INLINE_IMAGE: Final = re.compile(r"(\bdata:[\w.+/-]{1,80};base64,)[A-Za-z0-9+/=]{100,}")
"""Colab stores a picture that was pasted into a text as a data URI."""
_NOT_STORABLE: Final = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Cells:
    """`text`: the cells in order, separated by a blank line. `lines[n]`: the file's line, from 1, of its line n."""

    text: str
    lines: list[int]


def notebook_cells(text: str) -> Cells | None:
    """The cells of a notebook; None if the text is not the JSON of a notebook. Never raises; linear."""
    walk = _walk(text)
    if walk is None:
        return None
    parts: list[str] = []
    lines: list[int] = []
    for cell in walk:
        source = "".join(piece for piece, _ in cell)
        if not source.strip():
            continue
        for piece, line in cell:
            lines += [line] * piece.count("\n")
        last = cell[-1][1]
        missing = 1 if source.endswith("\n") else 2
        lines += [last] * missing
        parts.append(_INLINE_IMAGE.sub(r"\1", source) + "\n" * missing)
    joined = _NOT_STORABLE.sub("\N{REPLACEMENT CHARACTER}", "".join(parts))
    return Cells(joined, lines)


_Cell = list[tuple[str, int]]
"""Strings of a cell's source, and the line of the file where each starts."""


def _walk(text: str) -> list[_Cell] | None:
    keys: list[str] = []  # of each open container, "" in a list
    closing: list[str] = []  # the bracket that closes each
    key = ""
    near: tuple[str, ...] = ()  # the keys, () far below any cell's source
    cells: list[_Cell] | None = None
    at, line, counted = 0, 1, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        if bracket := token["open"]:
            keys.append(key)
            closing.append(_CLOSING[bracket])
            key = ""
            near = tuple(keys) if len(keys) <= _DEEPEST else ()
            if near in {("", "cells"), ("", "worksheets", "", "cells")}:
                cells = cells or []
            elif near in _CELLS and cells is not None:
                cells.append([])
        elif bracket := token["close"]:
            if not closing or closing.pop() != bracket:
                return None
            keys.pop()
            key = ""
            near = tuple(keys) if len(keys) <= _DEEPEST else ()
        elif token["colon"]:
            key = token["string"]
        elif token["string"] is not None and cells and _in_source(near, key):
            line, counted = line + text.count("\n", counted, at), at
            try:
                cells[-1].append((json.loads(token[0]), line))
            except ValueError:  # an escape that JSON does not have
                return None
        at = token.end()
    return None if closing else cells


def _in_source(near: tuple[str, ...], key: str) -> bool:
    if near in _CELLS:
        return key in _SOURCE
    return near[:-1] in _CELLS and near[-1] in _SOURCE
