"""From a blob to a document: decode, detect, chunk. Never raises, whatever the bytes are."""

from __future__ import annotations

import hashlib

from reposync.content.decoding import decode
from reposync.content.detection import data_reason, generated_reason
from reposync.content.languages import language_of
from reposync.content.model import Chunk, Document, Skip, Skipped
from reposync.content.notebooks import Cells, is_notebook, notebook_cells


def content_hash(text: str) -> str:
    """32 hex digits of the text's SHA-256: equal texts are embedded once, in whatever files they are."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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
    """The chunks of one file, or why it has none.

    `content` is None if it was too large to fetch. `keep_generated` (see `PathRules.keeps_generated`) indexes the file
    even if its content says that it is generated, minified or data. The text of a notebook is the sources of its cells;
    lines of a chunk are those of the file. Chunk texts hold neither NUL nor lone surrogates. Never raises for any
    `path` and `content`: an unexpected error is Skip.FAILED.
    """
    if content is None or size_bytes > max_file_bytes:
        return Skipped(Skip.TOO_LARGE, f"{size_bytes:,} bytes, the limit is {max_file_bytes:,}")
    try:
        return _document(path, content, chunk_size, chunk_overlap, keep_generated)
    except Exception as error:  # noqa: BLE001 - one file must not end the whole run
        # Only the type: the message of an error may quote the file.
        return Skipped(Skip.FAILED, f"could not be read as text ({type(error).__name__})")


def _document(
    path: bytes, content: bytes, chunk_size: int, chunk_overlap: int, keep_generated: bool
) -> Document | Skipped:
    from reposync.content.chunking import chunk_text  # langchain takes 0.3 s to import

    text = decode(content)
    if isinstance(text, Skipped):
        return text
    language = language_of(path, text)
    cells = notebook_cells(text) if is_notebook(path) else None
    if cells is not None:
        text = cells.text
    if not text:
        return Skipped(Skip.EMPTY, "a notebook without code and text")
    if not keep_generated and (skipped := generated_reason(text, language) or data_reason(text, language)) is not None:
        return skipped
    chunks = chunk_text(text, language, chunk_size, chunk_overlap)
    return Document(language, chunks if cells is None else _in_file(chunks, cells))


def _in_file(chunks: tuple[Chunk, ...], cells: Cells) -> tuple[Chunk, ...]:
    """`chunks` of the cells' text, with the lines of the notebook's file."""
    lines = cells.lines
    return tuple(Chunk(each.text, lines[each.start_line - 1], lines[each.end_line - 1]) for each in chunks)
