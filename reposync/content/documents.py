"""A blob to a document: decoded, looked through, cut into chunks. Never raises, whatever the bytes are."""

from __future__ import annotations

import hashlib

from reposync.content.decoding import decode
from reposync.content.generated import generated_reason
from reposync.content.languages import language_of
from reposync.content.model import Document, Skip, Skipped


def content_hash(text: str) -> str:
    """32 hex digits of the text's SHA-256: equal texts are embedded once, wherever they stand."""
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

    `content` is None where it was not fetched for its size. `keep_generated` (see `PathRules.keeps_generated`) takes
    the file even where its content says that it is generated or minified. Chunk texts hold neither NUL nor lone
    surrogates. Never raises for any `path` and `content`: what was not foreseen is Skip.FAILED.
    """
    if content is None or size_bytes > max_file_bytes:
        return Skipped(Skip.TOO_LARGE, f"{size_bytes:,} bytes, the limit is {max_file_bytes:,}")
    try:
        return _document(path, content, chunk_size, chunk_overlap, keep_generated)
    except Exception as error:  # noqa: BLE001 - one file that a library chokes on must not end the whole run
        # The type alone: the message of an error may quote the file.
        return Skipped(Skip.FAILED, f"could not be read as text ({type(error).__name__})")


def _document(
    path: bytes, content: bytes, chunk_size: int, chunk_overlap: int, keep_generated: bool
) -> Document | Skipped:
    from reposync.content.chunking import chunk_text  # langchain takes 0.3 s to import

    text = decode(content)
    if isinstance(text, Skipped):
        return text
    language = language_of(path, text)
    if not keep_generated and (skipped := generated_reason(text, language)) is not None:
        return skipped
    return Document(language, chunk_text(text, language, chunk_size, chunk_overlap))
