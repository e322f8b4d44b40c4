"""From a blob to chunks that are ready to embed: decode, parse, chunk, hash, sparse vectors. This is CPU work on what
strangers wrote: `content_worker` runs it, in a process of its own. So it imports little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from reposync.content.documents import FileText, cut, read_text
from reposync.content.model import Chunk, Skip, Skipped, content_hash
from reposync.content.symbols import OverBudget, definitions, symbols_of_chunks
from reposync.embedding.port import Matrix
from reposync.embedding.sparse import document_vector
from reposync.paths import path_text
from reposync.symbol import Symbol
from reposync.vectors.port import PointWrite


@dataclass(frozen=True, slots=True)
class ContentSettings:
    """How files become chunks; if any of these changes, every file is chunked again."""

    chunk_size: int
    chunk_overlap: int
    max_file_bytes: int


@dataclass(frozen=True, slots=True)
class RawFile:
    """A path with the content of its blob (None: over the limit). `keep_generated`: see `PathRules.keeps_generated`.
    `unreadable`: why the source has no content for it."""

    path: bytes
    mode: int
    sha: str
    size_bytes: int
    content: bytes | None
    keep_generated: bool = False
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A file with the points of its chunks, or why it has none. Dense vectors that are not computed here are added when
    it is embedded, links when it is stored. `size_bytes`: None if its path alone decided. `is_over_budget`: it has no
    symbols, because parsing it takes too long."""

    path: str
    mode: int
    sha: str
    size_bytes: int | None
    language: str | None = None
    chunks: tuple[PointWrite, ...] = ()
    skipped: Skipped | None = None
    is_over_budget: bool = False

    @property
    def is_failed(self) -> bool:
        """It could not be read, processed or embedded; the next run tries it again."""
        return self.skipped is not None and self.skipped.reason is Skip.FAILED

    def failed(self, detail: str) -> PreparedFile:
        return replace(self, language=None, chunks=(), skipped=Skipped(Skip.FAILED, detail))


@dataclass(frozen=True, slots=True)
class Content:
    """What the content of a file becomes, whatever its path. `vectors`: of the chunks, if they are computed here."""

    chunks: Sequence[Chunk] = ()
    symbols: Sequence[Sequence[Symbol]] = ()
    vectors: Sequence[Matrix] = ()
    skipped: Skipped | None = None
    is_over_budget: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """`window`: of the static model in characters, to compute dense vectors too. `with_symbols`: False for a file whose
    definitions take too long to find."""

    files: Sequence[RawFile]
    settings: ContentSettings
    window: int | None = None
    with_symbols: bool = True


@dataclass(slots=True)
class Preparation:
    """Prepares one file after the other. Files with equal content follow each other, also from job to job, and are
    parsed once: `contents` has what the last blob became, by all that decides it."""

    contents: dict[tuple[object, ...], Content] = field(default_factory=dict)

    def prepare(
        self, file: RawFile, settings: ContentSettings, window: int | None = None, *, with_symbols: bool = True
    ) -> PreparedFile:
        """A failure becomes the skip reason of the file."""
        prepared = PreparedFile(path_text(file.path), file.mode, file.sha, file.size_bytes)
        if file.unreadable is not None:
            return prepared.failed(file.unreadable)
        try:
            text = read_text(file.path, file.content, file.size_bytes, max_file_bytes=settings.max_file_bytes)
            if isinstance(text, Skipped):
                return replace(prepared, skipped=text)
            content = self._content(file, text, settings, window, with_symbols=with_symbols)
            if content.skipped is not None:
                return replace(prepared, skipped=content.skipped)
            return _with_points(prepared, text.language, content)
        except Exception as error:  # noqa: BLE001 - one hostile file must not end a run
            # Only the type: the message of an error may quote the file.
            return prepared.failed(f"could not be processed: {type(error).__name__}")

    def _content(
        self, file: RawFile, text: FileText, settings: ContentSettings, window: int | None, *, with_symbols: bool
    ) -> Content:
        key = file.sha, text.language, file.keep_generated, text.lines is not None, settings, window, with_symbols
        if key not in self.contents:
            if not any(known[0] == file.sha for known in self.contents):
                self.contents.clear()
            content = _parsed(file, text, settings, with_symbols=with_symbols)
            if window is not None:
                content = replace(content, vectors=_vectors(content.chunks, window))
            self.contents[key] = content
        return self.contents[key]


def _parsed(file: RawFile, text: FileText, settings: ContentSettings, *, with_symbols: bool) -> Content:
    document = cut(
        text,
        chunk_size=settings.chunk_size,
        chunk_overlap=settings.chunk_overlap,
        keep_generated=file.keep_generated,
    )
    if isinstance(document, Skipped):
        return Content(skipped=document)
    try:
        if with_symbols:
            found = definitions(text.text, document.language)
            return Content(document.chunks, symbols_of_chunks(found, document.chunks, text.lines))
    except (OverBudget, MemoryError):
        pass
    return Content(document.chunks, [()] * len(document.chunks), is_over_budget=True)


def _vectors(chunks: Sequence[Chunk], window: int) -> list[Matrix]:
    # Imported here: an embedding server's files need no table.
    from reposync.embedding.word_table import load_table

    table = load_table()
    return [table.matrix(chunk.text, window) for chunk in chunks]


def _with_points(prepared: PreparedFile, language: str | None, content: Content) -> PreparedFile:
    points = tuple(
        PointWrite(
            number,
            chunk.text,
            chunk.start_line,
            chunk.end_line,
            content_hash(chunk.text),
            url=None,
            dense=dense,
            sparse=document_vector(chunk.text, path=prepared.path, names=[each.name for each in symbols]),
            symbols=symbols,
            start_index=chunk.start_index,
        )
        for number, (chunk, symbols, dense) in enumerate(
            zip(content.chunks, content.symbols, content.vectors or repeat(None), strict=False)
        )
    )
    return replace(prepared, language=language, chunks=points, is_over_budget=content.is_over_budget)
