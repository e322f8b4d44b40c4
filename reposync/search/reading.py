"""The text of an indexed file, from its chunks in the index: of the version that searches answer from."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from reposync.content.joining import JoinedText, has_lines_of_file, joined
from reposync.content.model import Chunk
from reposync.errors import FileIncomplete, FileNotIndexed, LinesNotFound, UsageError
from reposync.finding import count_masks
from reposync.next_steps import Sync, Verify
from reposync.search.absence import file_not_indexed
from reposync.search.documents import FileLines
from reposync.search.scope import TRIES, IndexParts, index_missing, version_of
from reposync.store.manifest import ManifestRow, Manifests
from reposync.symbol import merged, read_symbols
from reposync.sync.stored_points import is_count, own_text, stored_chunk
from reposync.vectors.port import CollectionMissing, StoredPoint
from reposync.words import url_of_lines, with_unprintable

# A run replaces the points of a batch of files, and then their rows in the manifest.
_WAIT_SECONDS: Final = 0.2
_LINES_OF_URL: Final = re.compile(r"#L[-\d]+$")


class ReadingParts(IndexParts, Protocol):
    manifests: Manifests


async def read_file(
    parts: ReadingParts, repository: str, path: str, start: int | None = None, end: int | None = None
) -> FileLines:
    """The file, or its lines `start` to `end`, as far as it has them; from 1, both included. `path` may have control
    characters as escapes, which is how paths are shown.

    Raises RepositoryNotFound, NothingIndexed, FileNotIndexed, LinesNotFound, UsageError for lines in the wrong order,
    FileIncomplete, and what index and store raise."""
    first = 1 if start is None else start
    if first < 1 or (end is not None and end < first):
        raise UsageError(f"There are no lines {first} to {end}.", remedy="Lines count from 1, and START is before END.")
    try:
        file = await _stored_file(parts, repository, path)
    except FileNotIndexed:
        shown, path = path, with_unprintable(path)
        if path == shown:
            raise
        file = await _stored_file(parts, repository, path)
    if first > file.total_lines:
        raise LinesNotFound(f"{path!r} has no line {first:,}.", remedy=f"It has {_lines(file.total_lines)}.")
    return file.lines(repository, path, first, min(end or file.total_lines, file.total_lines))


@dataclass(frozen=True, slots=True)
class _StoredFile:
    """All chunks of a file at one blob, in order, with the payload that each has."""

    chunks: Sequence[Chunk]
    payloads: Sequence[Mapping[str, Any]]
    whole: JoinedText
    outdated: bool

    @property
    def total_lines(self) -> int:
        return self.chunks[-1].end_line

    def lines(self, repository: str, path: str, start: int, end: int) -> FileLines:
        text, is_notebook = self.whole.text, not has_lines_of_file(self.chunks)
        is_whole = (start, end) == (1, self.total_lines)
        if is_notebook and not is_whole:
            first, *others = [number for number, each in enumerate(self.chunks) if start <= each.end_line]
            last = max([first, *(each for each in others if self.chunks[each].start_line <= end)])
            text = text[self.whole.starts[first] : self.whole.starts[last] + len(self.chunks[last].text)]
            start, end = self.chunks[first].start_line, self.chunks[last].end_line
        elif not is_whole:
            text = _cut(text, start, end)
        url = self.payloads[0].get("url")
        if isinstance(url, str):
            url = _LINES_OF_URL.sub("", url) if is_whole else url_of_lines(url, start, end)
        symbols = merged(symbol for each in self.payloads for symbol in read_symbols(each.get("symbols")))
        return FileLines(
            repository=repository,
            path=path,
            commit=str(self.payloads[0].get("commit")),
            language=self.payloads[0].get("language"),
            url=url,
            start_line=start,
            end_line=end,
            total_lines=self.total_lines,
            text=text,
            outdated=self.outdated,
            is_notebook=is_notebook,
            masked=count_masks(text),
            symbols=[each for each in symbols if each.start_line <= end and start <= each.end_line],
        )


async def _stored_file(parts: ReadingParts, repository: str, path: str) -> _StoredFile:
    now = await version_of(parts, repository)
    for attempt in range(1, TRIES + 1):
        physical, version, _ = now
        row = await parts.manifests.file(version, path)
        try:
            points = [point async for page in parts.index(physical).chunks(version, [path]) for point in page]
        except CollectionMissing as error:  # dropped after its last version was replaced
            if attempt == TRIES:
                raise index_missing("read") from error
            points = []
        file = await asyncio.to_thread(_complete, points, version, row)
        # The points of a version that was retired meanwhile may have been removed before they were read.
        now = await version_of(parts, repository)
        if now[:2] != (physical, version):
            continue
        if file is not None:
            return file
        if not points and (row is None or not row.chunks):
            raise await file_not_indexed(parts, version, repository, path, row)
        if attempt < TRIES:
            await asyncio.sleep(_WAIT_SECONDS)
    raise FileIncomplete(
        f"The index of {repository} has {path!r} incompletely, or changed by a different program.",
        next_steps=[Sync(repository, full=True), Verify(repository)],
    )


def _complete(points: Sequence[StoredPoint], version: str, row: ManifestRow | None) -> _StoredFile | None:
    """The file if it is proven to be complete; points that a different program wrote or changed do not count. Two blobs
    have points while a run replaces them: the newer one comes first."""
    of_blob: dict[str, dict[int, StoredPoint]] = {}
    for point in newest_first(each for each in points if _is_ours(each, version)):
        metadata = point.payload["metadata"]
        of_blob.setdefault(metadata["blob_sha"], {})[metadata["chunk_index"]] = point
    files = (_joined(blob_sha, found, row) for blob_sha, found in of_blob.items())
    return next(filter(None, files), None)


def newest_first(points: Iterable[StoredPoint]) -> list[StoredPoint]:
    """By the run that stored them."""

    def epoch(point: StoredPoint) -> int:
        found = point.payload["metadata"].get("epoch")
        return found if isinstance(found, int) else 0

    return sorted(points, key=epoch, reverse=True)


def _joined(blob_sha: str, found: Mapping[int, StoredPoint], row: ManifestRow | None) -> _StoredFile | None:
    if sorted(found) != list(range(len(found))):
        return None
    in_order = [found[number] for number in range(len(found))]
    chunks = [stored_chunk(each) for each in in_order]
    whole = joined(chunks)
    if whole is None:
        return None
    recorded = row if row is not None and row.blob_sha == blob_sha else None
    is_counted = recorded is not None and recorded.chunks == len(chunks) and whole.is_certain
    # Otherwise the blob's own name proves it, unless decoding changed the text.
    if not is_counted and _blob_sha(whole.text.encode(), len(blob_sha)) != blob_sha:
        return None
    payloads = [each.payload["metadata"] for each in in_order]
    return _StoredFile(chunks, payloads, whole, outdated=recorded is not None and recorded.is_outdated)


def _blob_sha(content: bytes, digits: int) -> str:
    # As `reposync.sources.objects`, whose git library takes 0.1 s to import.
    name = "sha256" if digits == 64 else "sha1"
    return hashlib.new(name, b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()


def _is_ours(point: StoredPoint, version: str) -> bool:
    if not own_text(point, version):
        return False
    metadata = point.payload["metadata"]
    numbers = (metadata.get(key) for key in ("chunk_index", "start_line", "end_line"))
    return isinstance(metadata["blob_sha"], str) and all(is_count(each) for each in numbers)


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def _cut(text: str, start: int, end: int) -> str:
    first = 0
    for _ in range(start - 1):
        first = text.index("\n", first) + 1
    last = first
    for _ in range(end - start + 1):
        last = text.find("\n", last) + 1 or len(text)
    return text[first:last]
