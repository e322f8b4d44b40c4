"""From a blob to chunks that are ready to embed: decode, parse, chunk, hash, sparse vectors. This is CPU work on what
strangers wrote: `content_worker` runs it, in a process of its own. So it imports little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from reposync.content.documents import FileText, cut, read_text
from reposync.content.joining import has_lines_of_file, joined, with_starts
from reposync.content.model import Chunk, Skip, Skipped, content_hash
from reposync.content.symbols import OverBudget, definitions, symbols_of_chunks
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
class StoredFile:
    """A file whose chunks are known. `symbols`: of each chunk; None: its definitions are found again."""

    path: str
    mode: int
    sha: str
    size_bytes: int
    language: str | None
    chunks: Sequence[Chunk]
    symbols: Sequence[Sequence[Symbol]] | None = None


@dataclass(frozen=True, slots=True)
class PreparedFile:
    """A file with the points of its chunks, or why it has none. Their dense vectors are added when it is embedded, and
    their links when it is stored. `size_bytes`: None if its path alone decided. `is_over_budget`: it has no symbols,
    because parsing it takes too long. `is_exact`: a stored file has the symbols that its content gives."""

    path: str
    mode: int
    sha: str
    size_bytes: int | None
    language: str | None = None
    chunks: tuple[PointWrite, ...] = ()
    skipped: Skipped | None = None
    is_over_budget: bool = False
    is_exact: bool = True

    @property
    def is_failed(self) -> bool:
        """It could not be read, processed or embedded; the next run tries it again."""
        return self.skipped is not None and self.skipped.reason is Skip.FAILED

    def failed(self, detail: str) -> PreparedFile:
        return replace(self, language=None, chunks=(), skipped=Skipped(Skip.FAILED, detail))


@dataclass(frozen=True, slots=True)
class Content:
    """What the content of a file becomes, whatever its path."""

    chunks: Sequence[Chunk] = ()
    symbols: Sequence[Sequence[Symbol]] = ()
    skipped: Skipped | None = None
    is_over_budget: bool = False


Contents = dict[tuple[str, str | None, bool, bool], Content]
"""Of one blob: by its sha, language, whether generated content is kept, and whether it is a notebook."""


@dataclass(frozen=True, slots=True)
class Job:
    """`contents`: of the last file that was prepared before: equal content is parsed once, and equal files follow each
    other. `with_symbols`: False for a file whose definitions take too long to find."""

    files: Sequence[RawFile | StoredFile]
    settings: ContentSettings
    contents: Contents = field(default_factory=dict)
    with_symbols: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """The first files of a job, at least one. `contents`: of the last of them; `parsed`: how many were parsed."""

    files: list[PreparedFile]
    contents: Contents
    parsed: int


def prepare(
    job: Job, *, begin: Callable[[], object] = lambda: None, is_late: Callable[[], bool] = lambda: False
) -> Answer:
    """The files of `job` in order, until `is_late`. A failure of one file becomes its skip reason and does not affect
    the others. `begin` is called before each."""
    preparation = _Preparation(job, dict(job.contents))
    files: list[PreparedFile] = []
    for file in job.files:
        begin()
        files.append(preparation.prepare(file))
        if is_late():
            break
    return Answer(files, preparation.contents, preparation.parsed)


@dataclass(slots=True)
class _Preparation:
    job: Job
    contents: Contents
    parsed: int = 0

    def prepare(self, file: RawFile | StoredFile) -> PreparedFile:
        path = file.path if isinstance(file, StoredFile) else path_text(file.path)
        prepared = PreparedFile(path, file.mode, file.sha, file.size_bytes)
        if isinstance(file, RawFile) and file.unreadable is not None:
            return prepared.failed(file.unreadable)
        try:
            if isinstance(file, StoredFile):
                return self._stored(file, prepared)
            return self._raw(file, prepared)
        except Exception as error:  # noqa: BLE001 - one hostile file must not end a run
            # Only the type: the message of an error may quote the file.
            return prepared.failed(f"could not be processed: {type(error).__name__}")

    def _raw(self, file: RawFile, prepared: PreparedFile) -> PreparedFile:
        settings = self.job.settings
        text = read_text(file.path, file.content, file.size_bytes, max_file_bytes=settings.max_file_bytes)
        if isinstance(text, Skipped):
            return replace(prepared, skipped=text)
        key = file.sha, text.language, file.keep_generated, text.lines is not None
        if key not in self.contents:
            if not any(known[0] == file.sha for known in self.contents):
                self.contents.clear()
            self.contents[key] = self._content(text, keep_generated=file.keep_generated)
        content = self.contents[key]
        if content.skipped is not None:
            return replace(prepared, skipped=content.skipped)
        return _with_points(prepared, text.language, content)

    def _content(self, text: FileText, *, keep_generated: bool) -> Content:
        size, overlap = self.job.settings.chunk_size, self.job.settings.chunk_overlap
        document = cut(text, chunk_size=size, chunk_overlap=overlap, keep_generated=keep_generated)
        if isinstance(document, Skipped):
            return Content(skipped=document)
        return self._parsed(text.text, document.language, document.chunks, text.lines)

    def _parsed(self, text: str, language: str | None, chunks: Sequence[Chunk], lines: Sequence[int] | None) -> Content:
        self.parsed += 1
        try:
            if self.job.with_symbols:
                found = definitions(text, language)
                return Content(chunks, symbols_of_chunks(found, chunks, lines))
        except (OverBudget, MemoryError):
            pass
        return Content(chunks, [()] * len(chunks), is_over_budget=True)

    def _stored(self, file: StoredFile, prepared: PreparedFile) -> PreparedFile:
        chunks = with_starts(file.chunks)
        if file.symbols is not None:
            return _with_points(prepared, file.language, Content(chunks, file.symbols))
        whole = joined(chunks) if chunks else None
        if whole is not None and whole.is_certain and has_lines_of_file(chunks):
            return _with_points(prepared, file.language, self._parsed(whole.text, file.language, chunks, None))
        # A notebook, or chunks of 0.1 that would fit elsewhere, too.
        contents = [self._parsed(each.text, file.language, [replace(each, start_index=0)], None) for each in chunks]
        symbols = [
            [_moved(symbol, chunk.start_line - 1) for symbol in content.symbols[0]]
            for chunk, content in zip(chunks, contents, strict=True)
        ]
        is_over_budget = any(each.is_over_budget for each in contents)
        content = Content(chunks, symbols, is_over_budget=is_over_budget)
        return replace(_with_points(prepared, file.language, content), is_exact=False)


def _moved(symbol: Symbol, lines: int) -> Symbol:
    return Symbol(symbol.name, symbol.kind, symbol.start_line + lines, symbol.end_line + lines)


def _with_points(prepared: PreparedFile, language: str | None, content: Content) -> PreparedFile:
    points = tuple(
        PointWrite(
            number,
            chunk.text,
            chunk.start_line,
            chunk.end_line,
            content_hash(chunk.text),
            url=None,
            dense=None,
            sparse=document_vector(chunk.text, path=prepared.path, names=[each.name for each in symbols]),
            symbols=symbols,
            start_index=chunk.start_index,
        )
        for number, (chunk, symbols) in enumerate(zip(content.chunks, content.symbols, strict=True))
    )
    return replace(prepared, language=language, chunks=points, is_over_budget=content.is_over_budget)
