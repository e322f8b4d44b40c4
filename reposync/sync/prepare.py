"""From a blob to chunks that are ready to embed: decode, chunk, hash, sparse vectors. CPU work, run in a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reposync.content.documents import content_hash, make_document
from reposync.content.model import Skip, Skipped
from reposync.embedding.port import SparseVector
from reposync.embedding.sparse import document_vector
from reposync.sources.paths import path_text


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """How files become chunks; a change of any of them means that every file is chunked again."""

    chunk_size: int
    chunk_overlap: int
    max_file_bytes: int


@dataclass(frozen=True, slots=True)
class RawFile:
    """One path with its blob's content (None: over the limit). `keep_generated`: the rules want it even where its
    content says that it is generated. `unreadable`: why the source has no content for it."""

    path: bytes
    mode: int
    sha: str
    size_bytes: int
    content: bytes | None
    keep_generated: bool = False
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    text: str
    start_line: int
    end_line: int
    content_hash: str
    sparse: SparseVector


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A file as it will be stored: its chunks, or why it has none."""

    path: str
    mode: int
    sha: str
    size_bytes: int
    language: str | None
    chunks: tuple[PreparedChunk, ...]
    skipped: Skipped | None


def prepare(files: Sequence[RawFile], settings: ContentSettings) -> list[PreparedFile]:
    """One answer a file, in order. One bad file never spoils the others: whatever goes wrong becomes its reason."""
    prepared = []
    for file in files:
        if file.unreadable is not None:
            prepared.append(failed_file(file, file.unreadable))
            continue
        try:
            prepared.append(_prepare(file, settings))
        except Exception as error:  # noqa: BLE001 - hostile content must not end a run; the reason reaches the history
            prepared.append(failed_file(file, f"could not be processed: {type(error).__name__}"))
    return prepared


def failed_file(file: RawFile, detail: str) -> PreparedFile:
    """A file that could not be processed; the next run tries it again."""
    skipped = Skipped(Skip.FAILED, detail)
    return PreparedFile(path_text(file.path), file.mode, file.sha, file.size_bytes, None, (), skipped)


def failed(file: PreparedFile, detail: str) -> PreparedFile:
    """The same for a file that was prepared, but cannot be embedded."""
    return replace(file, language=None, chunks=(), skipped=Skipped(Skip.FAILED, detail))


def _prepare(file: RawFile, settings: ContentSettings) -> PreparedFile:
    path = path_text(file.path)
    document = make_document(
        file.path,
        file.content,
        file.size_bytes,
        chunk_size=settings.chunk_size,
        chunk_overlap=settings.chunk_overlap,
        max_file_bytes=settings.max_file_bytes,
        keep_generated=file.keep_generated,
    )
    if isinstance(document, Skipped):
        return PreparedFile(path, file.mode, file.sha, file.size_bytes, None, (), document)
    chunks = tuple(
        PreparedChunk(
            chunk.text,
            chunk.start_line,
            chunk.end_line,
            content_hash(chunk.text),
            document_vector(chunk.text, path=path),
        )
        for chunk in document.chunks
    )
    return PreparedFile(path, file.mode, file.sha, file.size_bytes, document.language, chunks, None)
