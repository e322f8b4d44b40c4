"""From a blob to chunks that are ready to embed: decode, parse, chunk, hash, sparse vectors. This is CPU work on what
strangers wrote: `content_worker` runs it, in a process of its own. So it imports little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from reposync.content.calls import calls_of_chunks
from reposync.content.documents import FileText, content_reason, cut, read_text
from reposync.content.joining import has_lines_of_file, joined
from reposync.content.model import Chunk, Skip, Skipped, content_hash
from reposync.content.secret_policy import SecretPolicy
from reposync.content.secrets import Finding, RulesUnavailable, SecretScanner
from reposync.content.symbols import OverBudget, names_of, symbols_of_chunks
from reposync.embedding.port import Matrix
from reposync.embedding.sparse import document_vector
from reposync.paths import path_text
from reposync.symbol import Symbol
from reposync.vectors.port import PointWrite

# Of CPU time, for one file; 1 MB of code takes 0.5 to 2.5 s. Parsers have a budget of their own (`content.symbols`),
# but for some nonsense they neither end nor report: Python's needs minutes for 1 MB of opening brackets.
FILE_SECONDS = 6.0

_HOLDS_SECRET = Skipped(Skip.SECRET, "holds a secret, and `secrets` says skip")


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
    symbols, because parsing it takes too long. `secrets`: that were found in it."""

    path: str
    mode: int
    sha: str
    size_bytes: int | None
    language: str | None = None
    chunks: tuple[PointWrite, ...] = ()
    skipped: Skipped | None = None
    is_over_budget: bool = False
    secrets: tuple[Finding, ...] = ()

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
    calls: Sequence[Sequence[str]] = ()
    vectors: Sequence[Matrix] = ()
    skipped: Skipped | None = None
    is_over_budget: bool = False
    secrets: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """`window`: of the static model in characters, to compute dense vectors too. `with_symbols`: False for a file whose
    definitions take too long to find. `seconds`: of CPU time for a file of up to 1 MB; for each further one as many."""

    files: Sequence[RawFile]
    settings: ContentSettings
    secrets: SecretPolicy
    window: int | None = None
    with_symbols: bool = True
    seconds: float = FILE_SECONDS


@dataclass(frozen=True, slots=True)
class StoredText:
    """The chunks of a file, as the index has them."""

    path: bytes
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Rescanned:
    """`texts`: of the chunks, with masks."""

    texts: tuple[str, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanJob:
    files: Sequence[StoredText]
    secrets: SecretPolicy
    max_file_bytes: int = 1_000_000
    seconds: float = FILE_SECONDS


@dataclass(frozen=True, slots=True)
class TextJob:
    """Short texts, such as paths, in groups: each group counts as one file."""

    files: Sequence[tuple[str, ...]]
    secrets: SecretPolicy
    max_file_bytes: int = 1_000_000
    seconds: float = FILE_SECONDS


@dataclass(slots=True)
class Preparation:
    """Prepares one file after the other. Files with equal content follow each other, also from job to job, and are
    parsed once: `contents` has what the last blob became, by all that decides it."""

    scanner: SecretScanner = field(default_factory=SecretScanner)
    contents: dict[tuple[object, ...], Content] = field(default_factory=dict)

    def prepare(
        self,
        file: RawFile,
        settings: ContentSettings,
        secrets: SecretPolicy,
        window: int | None = None,
        *,
        with_symbols: bool = True,
    ) -> PreparedFile:
        """A failure becomes the skip reason of the file. Raises RulesUnavailable."""
        prepared = PreparedFile(path_text(file.path), file.mode, file.sha, file.size_bytes)
        if file.unreadable is not None:
            return prepared.failed(file.unreadable)
        try:
            text = read_text(file.path, file.content, file.size_bytes, max_file_bytes=settings.max_file_bytes)
            if isinstance(text, Skipped):
                return replace(prepared, skipped=text)
            content = self._content(file, text, settings, secrets, window, with_symbols=with_symbols)
            prepared = replace(prepared, secrets=content.secrets)
            if content.skipped is not None:
                return replace(prepared, skipped=content.skipped)
            return _with_points(prepared, text.language, content)
        except RulesUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one hostile file must not end a run
            # Only the type: the message of an error may quote the file.
            return prepared.failed(f"could not be processed: {type(error).__name__}")

    def rescan(self, file: StoredText, secrets: SecretPolicy) -> Rescanned:
        """As a whole, as far as its chunks are of one text: a secret may go over their borders. Raises
        RulesUnavailable."""
        texts = tuple(chunk.text for chunk in file.chunks)
        if (whole := joined(file.chunks)) is None:
            scans = [self.scanner.scan(text, secrets) for text in texts]
            lines = [chunk.start_line for chunk in file.chunks]
            found = [
                replace(finding, line=first + finding.line - 1)
                for first, scanned in zip(lines, scans, strict=True)
                for finding in scanned.findings
            ]
            return Rescanned(tuple(scanned.text for scanned in scans), tuple(found))
        scanned = self.scanner.scan(whole.text, secrets)
        masked = [scanned.text[at : at + len(text)] for at, text in zip(whole.starts, texts, strict=True)]
        has_lines = has_lines_of_file(file.chunks)
        places = [] if has_lines else [whole.text.count("\n", 0, at) + 1 for at in whole.starts]
        findings = (
            finding if has_lines else replace(finding, line=_line_near(finding.line, places, file.chunks))
            for finding in scanned.findings
        )
        return Rescanned(tuple(masked), tuple(findings))

    def _content(
        self,
        file: RawFile,
        text: FileText,
        settings: ContentSettings,
        secrets: SecretPolicy,
        window: int | None,
        *,
        with_symbols: bool,
    ) -> Content:
        rules, has_cells = secrets.rules_of(file.path), text.lines is not None
        key = file.sha, text.language, file.keep_generated, has_cells, settings, rules, window, with_symbols
        if key not in self.contents:
            if not any(known[0] == file.sha for known in self.contents):
                self.contents.clear()
            content = self._parsed(file, text, settings, secrets if rules else None, with_symbols)
            if window is not None:
                content = replace(content, vectors=_vectors(content.chunks, window))
            self.contents[key] = content
        return self.contents[key]

    def _parsed(
        self,
        file: RawFile,
        text: FileText,
        settings: ContentSettings,
        secrets: SecretPolicy | None,
        with_symbols: bool,
    ) -> Content:
        """`secrets`: None if the file is not scanned."""
        if not file.keep_generated and (reason := content_reason(text)) is not None:
            return Content(skipped=reason)
        found: tuple[Finding, ...] = ()
        if secrets is not None:
            scanned = self.scanner.scan(text.text, secrets)
            found = in_file(scanned.findings, text.lines)
            if scanned.is_skipped:
                return Content(skipped=_HOLDS_SECRET, secrets=found)
            text = replace(text, text=scanned.text)
        size, overlap = settings.chunk_size, settings.chunk_overlap
        document = cut(text, chunk_size=size, chunk_overlap=overlap, keep_generated=True)
        if isinstance(document, Skipped):
            return Content(skipped=document, secrets=found)
        try:
            if with_symbols:
                names = names_of(text.text, document.language)
                symbols = symbols_of_chunks(names.definitions, document.chunks, text.lines)
                return Content(document.chunks, symbols, calls_of_chunks(names.calls, document.chunks), secrets=found)
        except (OverBudget, MemoryError):
            pass
        nothing = [()] * len(document.chunks)
        return Content(document.chunks, nothing, nothing, is_over_budget=True, secrets=found)


def _line_near(line: int, places: Sequence[int], chunks: Sequence[Chunk]) -> int:
    """The first line of the chunk that has this line of the text; `places`: the lines of the text where chunks
    start."""
    number = max(index for index, first in enumerate(places) if first <= line)
    return chunks[number].start_line


def in_file(findings: Sequence[Finding], lines: Sequence[int] | None) -> tuple[Finding, ...]:
    """With the lines of the file; see `FileText`."""
    if lines is None:
        return tuple(findings)
    return tuple(replace(each, line=lines[min(each.line, len(lines)) - 1]) for each in findings)


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
            calls=calls,
        )
        for number, (chunk, symbols, calls, dense) in enumerate(
            zip(content.chunks, content.symbols, content.calls, content.vectors or repeat(None), strict=False)
        )
    )
    return replace(prepared, language=language, chunks=points, is_over_budget=content.is_over_budget)
