"""Searches of whole files: the lines of files of the live versions that a search wants, each once.

The chunks of a file are joined before they are searched, so that a line is whole wherever it was cut. What a search
reads is bounded by time, characters and lines, and its answer says which of these ended it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, TypeVar

from reposync.content.model import Chunk
from reposync.embedding.sparse import terms_vector
from reposync.finding import count_masks
from reposync.search.documents import MatchingFile, MatchingFiles, MatchingLine
from reposync.search.passages import Passage, passages_of
from reposync.search.pattern import Pattern, TimeIsUp
from reposync.search.reading import ReadingParts
from reposync.search.scope import TRIES, Scope, index_missing, nothing_indexed, scope_of, with_inactive
from reposync.search.searching import canonical
from reposync.store.index_queries import MAX_KEYS, LiveVersion, live_versions, stored_files
from reposync.supervision import in_thread, together
from reposync.symbol import Symbol, read_symbols
from reposync.sync.stored_points import is_count, stored_chunk
from reposync.vectors.hybrid_search import path_patterns
from reposync.vectors.port import CollectionMissing, IndexQuery, StoredPoint
from reposync.wildmatch import PathPatterns
from reposync.words import url_of_lines

MAX_SECONDS: Final = 5.0
_MAX_CHARS: Final = 500_000_000
"""The characters of texts that are read in one search."""
_MAX_KEPT_CHARS: Final = 8_000_000
"""The characters of matching files that are kept, for the lines around the matches."""
# Chunks in one step of reading, which are joined in memory: few first, because the limit may be reached with them.
_FIRST_STEP, _LONGEST_STEP = 64, 512


class StoredFile(NamedTuple):
    """A file as its points have it: its chunks, and the metadata of each of them."""

    path: str
    chunks: Sequence[Chunk]
    metadata: Sequence[Mapping[str, Any]]

    @property
    def symbols(self) -> list[Symbol]:
        return [symbol for each in self.metadata for symbol in read_symbols(each.get("symbols"))]


@dataclass(frozen=True, slots=True)
class Asked:
    """What every search of files is asked for. `most_lines`: where it stops to read."""

    pattern: Pattern
    path_glob: str | None
    language: str | None
    glob: PathPatterns | None
    most_lines: int
    deadline: float
    keeps_chunks: bool

    @classmethod
    def of(
        cls,
        pattern: Pattern,
        *,
        path_glob: str | None,
        language: str | None,
        most_lines: int,
        max_seconds: float,
        keeps_chunks: bool,
    ) -> Asked:
        """Raises UsageError for a bad glob or language."""
        known = canonical(language) if language else None
        deadline = time.monotonic() + max_seconds
        return cls(pattern, path_glob, known, path_patterns(path_glob), most_lines, deadline, keeps_chunks)

    async def query(self) -> IndexQuery:
        """Of all that the filters select. The thread imports numpy, which a search of nothing does without."""
        return await in_thread(lambda: IndexQuery(terms_vector(()), path_glob=self.path_glob, language=self.language))


@dataclass(slots=True)
class FileSearch(ABC):
    """One search. `pattern`: what is marked in the lines that are found."""

    _parts: ReadingParts
    _asked: Asked
    _chunks: dict[tuple[str, str], StoredFile] = field(default_factory=dict)
    _kept_chars: int = 0
    _files: dict[tuple[str, str], MatchingFile] = field(default_factory=dict)
    _stopped: str | None = None
    _searched: int = 0
    _chars: int = 0
    _lines: int = 0

    @abstractmethod
    async def _read(self, versions: Sequence[LiveVersion], scope: Scope) -> None:
        """Search the files of these versions that may match, by `_search`. Raises CollectionMissing."""

    @abstractmethod
    def _lines_of(self, version: LiveVersion, file: StoredFile, most: int) -> Sequence[MatchingLine]:
        """The first `most` lines of the file that match. Raises TimeIsUp."""

    @abstractmethod
    def _too_many(self) -> str:
        """Why it stopped after `most_lines`, in a sentence."""

    async def continue_in(self, versions: Sequence[LiveVersion], scope: Scope) -> None:
        """Search these versions as well. Raises CollectionMissing."""
        try:
            async with asyncio.timeout(self._asked.deadline - time.monotonic()):
                await self._read(versions, scope)
        except (TimeoutError, TimeIsUp):
            took = f"{self._searched:,} files were searched in the time for one search"
            self._stopped = f"{took}; {self._narrower()}."

    def _narrower(self) -> str:
        return "narrow it by path or repository"

    def keep(self, versions: Sequence[LiveVersion]) -> None:
        """Forget what was found in other versions."""
        live = {each.id for each in versions}
        self._files = {key: found for key, found in self._files.items() if key[0] in live}
        self._lines = sum(len(each.matches) for each in self._files.values())

    async def found(self) -> MatchingFiles:
        outdated = await self._parts.manifests.outdated(list(self._files))
        files = [replace(each, outdated=key in outdated) for key, each in self._files.items()]
        files.sort(key=lambda each: (each.repository, each.path))
        return self._answer(MatchingFiles(files, self._stopped is None, self._stopped, self._searched))

    def _answer(self, found: MatchingFiles) -> MatchingFiles:
        """What is shown of that."""
        return found

    def passages(self) -> Mapping[tuple[str, str], Sequence[Passage]]:
        return {
            (file.repository, file.path): passages_of(
                self._asked.pattern,
                self._chunks[key].chunks,
                self._chunks[key].symbols,
                [each.line for each in file.matches],
            )
            for key, file in self._files.items()
            if key in self._chunks
        }

    async def _listed(self, version: LiveVersion, paths: Set[str]) -> AsyncIterator[Mapping[str, int]]:
        matching = await self._of_glob(sorted(paths))
        for start in range(0, len(matching), MAX_KEYS):
            some = matching[start : start + MAX_KEYS]
            yield await stored_files(self._parts.database, version.id, paths=some, language=self._asked.language)

    async def _others(self, version: LiveVersion, without: Set[str]) -> AsyncIterator[Mapping[str, int]]:
        after = ""
        while page := await stored_files(self._parts.database, version.id, language=self._asked.language, after=after):
            after = next(reversed(page))
            matching = set(await self._of_glob([path for path in page if path not in without]))
            yield {path: chunks for path, chunks in page.items() if path in matching}

    async def _of_glob(self, paths: Sequence[str]) -> Sequence[str]:
        glob = self._asked.glob
        if glob is None:
            return paths
        return await in_thread(lambda: [path for path in paths if glob.match(path) is not None])

    async def _search(self, version: LiveVersion, pages: AsyncIterator[Mapping[str, int]]) -> None:
        index = self._parts.index(version.collection)
        most = _FIRST_STEP
        async for page in pages:
            for step in _steps(page, most):
                if self._stopped is not None:
                    return
                most = min(2 * most, _LONGEST_STEP)
                points = [point async for some in index.chunks(version.id, step) for point in some]
                await in_thread(partial(self._search_points, version, points))
                self._searched += len(step)

    def _search_points(self, version: LiveVersion, points: Sequence[StoredPoint]) -> None:
        """Raises TimeIsUp."""
        most = self._asked.most_lines
        for file in _files_of(points):
            metadata = file.metadata[0]
            # One more than is returned, to know whether there are more.
            lines = self._lines_of(version, file, most + 1 - self._lines)
            matches = [_with_url(each, metadata.get("url")) for each in lines[: most - self._lines]]
            self._lines += len(lines)
            if matches:
                # The points of a repository that was renamed have its former name until its next run.
                self._files[version.id, file.path] = MatchingFile(
                    version.repository,
                    file.path,
                    metadata.get("language"),
                    str(metadata.get("commit")),
                    False,
                    matches,
                    sum(count_masks(each.text) for each in matches),
                )
                self._keep((version.id, file.path), file)
            self._chars += sum(len(each.text) for each in file.chunks)
            if self._lines > most:
                self._stopped = self._too_many()
                return
            if self._chars > _MAX_CHARS:
                self._stopped = f"{self._chars:,} characters were searched; narrow it by path or repository."
                return

    def _keep(self, key: tuple[str, str], file: StoredFile) -> None:
        if self._asked.keeps_chunks and self._kept_chars < _MAX_KEPT_CHARS:
            self._chunks[key] = file
            self._kept_chars += sum(len(each.text) for each in file.chunks)


Searched = TypeVar("Searched", bound=FileSearch)


async def carried_out(search: Searched, parts: ReadingParts, repositories: Sequence[str]) -> Searched:
    """The search after it has read all live versions. Raises RepositoryNotFound, NothingIndexed, and what index and
    store raise."""
    scope = await scope_of(parts, repositories)
    versions = await live_versions(parts.database, repositories, inactive=with_inactive(parts))
    if not versions:
        raise nothing_indexed()
    # An embedded engine starts now: that is no part of the search.
    await together(*(parts.index(each).spec() for each in {version.collection for version in versions}))
    done: Sequence[LiveVersion] = ()
    for attempt in range(1, TRIES + 1):
        try:
            await search.continue_in([each for each in versions if each not in done], scope)
            done = versions
        except CollectionMissing as error:  # dropped after its last version was replaced
            if attempt == TRIES:
                raise index_missing() from error
            done = ()
        # The points of a version that was retired meanwhile may have been removed before they were read.
        before, scope = scope, await scope_of(parts, repositories)
        if done and before.lasts(scope):
            break
        versions = await live_versions(parts.database, repositories, inactive=with_inactive(parts))
        done = [each for each in done if each in versions]
        search.keep(done)
    return search


def _steps(files: Mapping[str, int], chunks: int) -> Iterator[Sequence[str]]:
    """Files with about so many chunks together, more each time."""
    step: list[str] = []
    count = 0
    for path, number in files.items():
        if step and count + number > chunks:
            yield step
            step, count, chunks = [], 0, min(2 * chunks, _LONGEST_STEP)
        step.append(path)
        count += number
    if step:
        yield step


def _files_of(points: Sequence[StoredPoint]) -> Iterator[StoredFile]:
    """By path. Two blobs have points while a run replaces them: the newer one counts. Points that a different program
    wrote do not."""
    files: dict[str, dict[int, tuple[int, StoredPoint]]] = {}
    for point in points:
        metadata, text = point.payload.get("metadata"), point.payload.get("page_content")
        numbers = ("chunk_index", "start_line", "end_line", "epoch")
        if not isinstance(metadata, dict) or not all(is_count(metadata.get(key)) for key in numbers):
            continue
        if not isinstance(text, str) or not text or not isinstance(metadata.get("path"), str):
            continue
        of_file = files.setdefault(metadata["path"], {})
        epoch, number = metadata["epoch"], metadata["chunk_index"]
        if number not in of_file or of_file[number][0] < epoch:
            of_file[number] = epoch, point
    for path, of_file in sorted(files.items()):
        newest = max(epoch for epoch, _ in of_file.values())
        mine = [of_file[number][1] for number in sorted(of_file) if of_file[number][0] == newest]
        yield StoredFile(path, [stored_chunk(each) for each in mine], [each.payload["metadata"] for each in mine])


def first_lines(text: str, starts: Sequence[int]) -> list[int]:
    """The line of the text, from 0, in which each chunk starts."""
    return list(accumulate(text.count("\n", before, start) for before, start in pairwise([0, *starts])))


def line_of_file(line: int, first_lines: Sequence[int], chunks: Sequence[Chunk]) -> int:
    """From 1. A notebook's text has other lines than its file: then one near it, of the same chunk."""
    number = bisect_right(first_lines, line) - 1
    return min(chunks[number].start_line + line - first_lines[number], chunks[number].end_line)


def _with_url(line: MatchingLine, url: object) -> MatchingLine:
    return replace(line, url=url_of_lines(url, line.line, line.end_line) if isinstance(url, str) else None)
