"""Exact and regular-expression search over what is indexed: the lines of the files of the live versions.

The index narrows it first. The terms that every match must have (`required_words`) lead to few files; if nothing is
certain, files that are likely to match are read before the others. A match is never lost by that. The chunks of a file
are joined before they are searched, so that a line is whole wherever it was cut.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any, Final

from reposync.content.joining import joined
from reposync.content.model import Chunk
from reposync.embedding.sparse import query_vector, terms_vector
from reposync.finding import count_masks
from reposync.search.documents import MatchingFile, MatchingFiles, MatchingLine
from reposync.search.pattern import Pattern, TimeIsUp
from reposync.search.reading import ReadingParts
from reposync.search.scope import TRIES, Scope, index_missing, nothing_indexed, scope_of, with_inactive
from reposync.search.searching import canonical
from reposync.store.index_queries import MAX_KEYS, LiveVersion, live_versions, stored_files
from reposync.supervision import in_thread
from reposync.sync.stored_points import is_count, stored_chunk
from reposync.vectors.collection import WORDS_SCHEMA
from reposync.vectors.hybrid_search import path_patterns
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import CollectionMissing, IndexQuery, StoredPoint
from reposync.wildmatch import PathPatterns
from reposync.words import url_of_lines

MAX_LIMIT: Final = 1_000
MAX_SECONDS: Final = 5.0
_MAX_CHARS: Final = 500_000_000
"""Of texts that are read in one search."""

_MOST_CLAUSES: Final = 4
"""That the index is asked for; each is one query."""
_MOST_CANDIDATES: Final = 10_000
"""Chunks of one answer of the index, without texts: 2 MB. A term that more chunks have narrows nothing."""
_FEW: Final = 500
"""Chunks that are soon read: a term that no more have needs no other one."""
_MOST_LIKELY: Final = 500
# Chunks in one step of reading, which are joined in memory: few first, because the limit may be reached with them.
_FIRST_STEP, _LONGEST_STEP = 64, 512
# A cut may go through a word if a line has no space in so many characters, and cuts are made at every 64th. With such
# an overlap one of the chunks has the whole word, of at most 128.
_LEAST_OVERLAP, _LEAST_SIZE = 200, 400


async def grep(
    parts: ReadingParts,
    pattern: str,
    *,
    repositories: Sequence[str] = (),
    path_glob: str | None = None,
    language: str | None = None,
    fixed: bool = False,
    ignore_case: bool = False,
    limit: int = 100,
    max_seconds: float = MAX_SECONDS,
) -> MatchingFiles:
    """The first `limit` lines that match. `pattern`: RE2's syntax, or a text if it is `fixed`. It matches within a line
    unless it names a line break.

    Raises UsageError for a bad pattern, glob or language, RepositoryNotFound, NothingIndexed, and what index and store
    raise."""
    compiled = await in_thread(lambda: Pattern(pattern, fixed=fixed, ignore_case=ignore_case))
    filters: dict[str, Any] = {"path_glob": path_glob, "language": canonical(language) if language else None}
    glob = path_patterns(path_glob)
    scope = await scope_of(parts, repositories)
    versions = await live_versions(parts.database, repositories, inactive=with_inactive(parts))
    if not versions:
        raise nothing_indexed()
    # An embedded engine starts now: that is no part of the search.
    await asyncio.gather(*(parts.index(each).spec() for each in {version.collection for version in versions}))
    query = await in_thread(lambda: IndexQuery(terms_vector(()), **filters))
    search = _Search(parts, compiled, query, glob, min(limit, MAX_LIMIT), time.monotonic() + max_seconds)
    searched: Sequence[LiveVersion] = ()
    for attempt in range(1, TRIES + 1):
        try:
            await search.continue_in([each for each in versions if each not in searched], scope)
            searched = versions
        except CollectionMissing as error:  # dropped after its last version was replaced
            if attempt == TRIES:
                raise index_missing() from error
            searched = ()
        # The points of a version that was retired meanwhile may have been removed before they were read.
        before, scope = scope, await scope_of(parts, repositories)
        if searched and before.lasts(scope):
            break
        versions = await live_versions(parts.database, repositories, inactive=with_inactive(parts))
        searched = [each for each in searched if each in versions]
        search.keep(searched)
    return await search.found()


@dataclass(slots=True)
class _Search:
    _parts: ReadingParts
    _pattern: Pattern
    _query: IndexQuery
    _glob: PathPatterns | None
    _limit: int
    _deadline: float
    _files: dict[tuple[str, str], MatchingFile] = field(default_factory=dict)
    _stopped: str | None = None
    _searched: int = 0
    _chars: int = 0
    _lines: int = 0

    async def continue_in(self, versions: Sequence[LiveVersion], scope: Scope) -> None:
        """Search these versions as well. Raises CollectionMissing."""
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                narrowed = await self._narrowed(versions, scope)
                for version in versions:
                    certain = narrowed.get(version.id)
                    if certain is not None:
                        await self._search(version, self._listed(version, certain))
                # Nothing is certain about the others.
                rest = [each for each in versions if each.id not in narrowed]
                likely = await self._likely(rest, scope) if rest else {}
                for version in rest:
                    await self._search(version, self._listed(version, likely.get(version.id, set())))
                for version in rest:
                    await self._search(version, self._others(version, likely.get(version.id, set())))
        except (TimeoutError, TimeIsUp):
            took = f"{self._searched:,} files were searched in the time for one search"
            self._stopped = f"{took}; narrow it by path or repository, or put \\b around a name."

    def keep(self, versions: Sequence[LiveVersion]) -> None:
        """Forget what was found in other versions."""
        live = {each.id for each in versions}
        self._files = {key: found for key, found in self._files.items() if key[0] in live}
        self._lines = sum(len(each.matches) for each in self._files.values())

    async def found(self) -> MatchingFiles:
        outdated = await self._parts.manifests.outdated(list(self._files))
        files = [replace(each, outdated=key in outdated) for key, each in self._files.items()]
        files.sort(key=lambda each: (each.repository, each.path))
        stopped = self._stopped
        if stopped is None and self._pattern.has_cut_lines:
            stopped = "Lines too long for this pattern were searched in parts."
        return MatchingFiles(files, stopped is None, stopped, self._searched)

    # Which files --------------------------------------------------------------------------------------------------

    async def _narrowed(self, versions: Sequence[LiveVersion], scope: Scope) -> Mapping[str, Set[str]]:
        """Paths by version, of versions whose other files certainly do not match."""
        clauses = sorted(self._pattern.required.clauses, key=lambda each: -min(map(len, each)))[:_MOST_CLAUSES]
        narrowed: dict[str, set[str]] = {}
        collections = groupby(sorted(versions, key=lambda each: each.collection), lambda each: each.collection)
        for collection, each in collections:
            ids = {version.id for version in each if _can_be_narrowed(version)}
            if not ids or not clauses:
                continue
            query = scope.limited(self._query, collection, set())
            files = await self._files_of_all(clauses, self._parts.index(collection), query)
            if files is not None:
                narrowed |= {version: set[str]() for version in ids}
                for version, path in files:
                    if version in ids:
                        narrowed[version].add(path)
        return narrowed

    async def _files_of_all(
        self, clauses: Sequence[frozenset[str]], index: QdrantIndex, query: IndexQuery
    ) -> Set[tuple[str, str]] | None:
        """Files with a term of each of the clauses that narrow anything, or of one that few have."""
        for clause in clauses:
            files, are_all = await index.files_with_terms(replace(query, sparse=terms_vector(clause), limit=_FEW))
            if are_all:
                return set(files)
        most = replace(query, limit=_MOST_CANDIDATES)
        answers = await asyncio.gather(
            *(index.files_with_terms(replace(most, sparse=terms_vector(clause))) for clause in clauses)
        )
        complete = [set(files) for files, are_all in answers if are_all]
        return set.intersection(*complete) if complete else None

    async def _likely(self, versions: Sequence[LiveVersion], scope: Scope) -> Mapping[str, Set[str]]:
        """Paths by version, of files that have words of the pattern."""
        vector = query_vector(self._pattern.required.literals)
        likely: dict[str, set[str]] = {}
        if not len(vector.indices):
            return likely
        for collection in sorted({each.collection for each in versions}):
            query = replace(scope.limited(self._query, collection, set()), sparse=vector, limit=_MOST_LIKELY)
            for version, path in (await self._parts.index(collection).files_with_terms(query))[0]:
                likely.setdefault(version, set()).add(path)
        return likely

    async def _listed(self, version: LiveVersion, paths: Set[str]) -> AsyncIterator[Mapping[str, int]]:
        matching = await self._of_glob(sorted(paths))
        for start in range(0, len(matching), MAX_KEYS):
            some = matching[start : start + MAX_KEYS]
            yield await stored_files(self._parts.database, version.id, paths=some, language=self._query.language)

    async def _others(self, version: LiveVersion, without: Set[str]) -> AsyncIterator[Mapping[str, int]]:
        after = ""
        while page := await stored_files(self._parts.database, version.id, language=self._query.language, after=after):
            after = next(reversed(page))
            matching = set(await self._of_glob([path for path in page if path not in without]))
            yield {path: chunks for path, chunks in page.items() if path in matching}

    async def _of_glob(self, paths: Sequence[str]) -> Sequence[str]:
        glob = self._glob
        if glob is None:
            return paths
        return await in_thread(lambda: [path for path in paths if glob.match(path) is not None])

    # What is in them ----------------------------------------------------------------------------------------------

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
        for path, metadata, chunks in _files_of(points):
            # One more than is returned, to know whether there are more.
            lines = list(_lines(self._pattern, chunks, self._limit + 1 - self._lines, self._deadline))
            matches = [_with_url(each, metadata.get("url")) for each in lines[: self._limit - self._lines]]
            self._lines += len(lines)
            if matches:
                language, commit = metadata.get("language"), str(metadata.get("commit"))
                # The points of a repository that was renamed have its former name until its next run.
                found = MatchingFile(
                    version.repository,
                    path,
                    language,
                    commit,
                    False,
                    matches,
                    sum(count_masks(each.text) for each in matches),
                )
                self._files[version.id, path] = found
            self._chars += sum(len(each.text) for each in chunks)
            if self._lines > self._limit:
                self._stop_at_limit()
                return
            if self._chars > _MAX_CHARS:
                self._stopped = f"{self._chars:,} characters were searched; narrow it by path or repository."
                return

    def _stop_at_limit(self) -> None:
        more = "there may be more: narrow it by path or repository, or raise the limit"
        first = "This is the first line" if self._limit == 1 else f"These are the first {self._limit:,} lines"
        self._stopped = f"{first} that {'was' if self._limit == 1 else 'were'} found; {more}."


def _can_be_narrowed(version: LiveVersion) -> bool:
    """Whether the terms of its points are known, and each word is whole in some chunk."""
    content = version.settings.get("content") or {}
    overlap, size = content.get("chunk_overlap") or 0, content.get("chunk_size") or 0
    return (version.settings.get("schema") or 0) >= WORDS_SCHEMA and overlap >= _LEAST_OVERLAP and size >= _LEAST_SIZE


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


def _files_of(points: Sequence[StoredPoint]) -> Iterator[tuple[str, Mapping[str, Any], Sequence[Chunk]]]:
    """By path: the metadata of one of its points, and its chunks. Two blobs have points while a run replaces them: the
    newer one counts. Points that a different program wrote do not."""
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
        yield path, mine[0].payload["metadata"], [stored_chunk(each) for each in mine]


def _lines(pattern: Pattern, chunks: Sequence[Chunk], most: int, deadline: float) -> Iterator[MatchingLine]:
    """By line, each once."""
    whole = joined(chunks)
    if whole is not None:
        yield from _lines_of(pattern, whole.text, whole.starts, chunks, most, deadline)
        return
    # A chunk is missing, because a run or a different program removes it: each is searched for itself.
    found: dict[int, MatchingLine] = {}
    for each in chunks:
        for line in _lines_of(pattern, each.text, [0], [each], most, deadline):
            found.setdefault(line.line, line)
    yield from [found[line] for line in sorted(found)][:most]


def _lines_of(
    pattern: Pattern, text: str, starts: Sequence[int], chunks: Sequence[Chunk], most: int, deadline: float
) -> Iterator[MatchingLine]:
    """`starts`: of the chunks in the text."""
    first_lines: list[int] = []
    for match in pattern.lines(text, most, deadline):
        first_lines = first_lines or _first_lines(text, starts)
        line, last = (_line_of_file(each, first_lines, chunks) for each in (match.line, match.last_line))
        yield MatchingLine(line, last, match.column, match.text, None)


def _first_lines(text: str, starts: Sequence[int]) -> list[int]:
    """The line of the text, from 0, in which each chunk starts."""
    return list(accumulate(text.count("\n", before, start) for before, start in pairwise([0, *starts])))


def _line_of_file(line: int, first_lines: Sequence[int], chunks: Sequence[Chunk]) -> int:
    """From 1. A notebook's text has other lines than its file: then one near it, of the same chunk."""
    number = bisect_right(first_lines, line) - 1
    return min(chunks[number].start_line + line - first_lines[number], chunks[number].end_line)


def _with_url(line: MatchingLine, url: object) -> MatchingLine:
    return replace(line, url=url_of_lines(url, line.line, line.end_line) if isinstance(url, str) else None)
