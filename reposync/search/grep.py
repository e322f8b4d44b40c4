"""Exact and regular-expression search over what is indexed: the lines of the files of the live versions.

The index narrows it first. The terms that every match must have (`required_words`) lead to few files; if nothing is
certain, files that are likely to match are read before the others. A match is never lost by that. The chunks of a file
are joined before they are searched, so that a line is whole wherever it was cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from reposync.content.joining import joined
from reposync.content.model import Chunk
from reposync.embedding.sparse import query_vector, terms_vector
from reposync.search.documents import MatchingFiles, MatchingLine
from reposync.search.file_search import (
    MAX_SECONDS,
    Asked,
    FileSearch,
    StoredFile,
    carried_out,
    first_lines,
    line_of_file,
)
from reposync.search.pattern import Pattern
from reposync.search.reading import ReadingParts
from reposync.search.scope import Scope
from reposync.store.index_queries import LiveVersion
from reposync.supervision import in_thread, together
from reposync.vectors.collection import WORDS_SCHEMA
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexQuery

MAX_LIMIT: Final = 1_000

_MOST_CLAUSES: Final = 4
"""That the index is asked for; each is one query."""
_MOST_CANDIDATES: Final = 10_000
"""Chunks of one answer of the index, without texts: 2 MB. A term that more chunks have narrows nothing."""
_FEW: Final = 500
"""Chunks that are soon read: a term that no more have needs no other one."""
_MOST_LIKELY: Final = 500
# A cut may go through a word if a line has no space in so many characters, and cuts are made at every 64th. With such
# an overlap one of the chunks has the whole word, of at most 128.
_LEAST_OVERLAP, _LEAST_SIZE = 200, 400


async def grep(parts: ReadingParts, pattern: str, **options: Any) -> MatchingFiles:
    """The first `limit` lines that match. `options`: of `searched`, which says what it raises."""
    return await (await searched(parts, pattern, **options)).found()


async def searched(
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
    keeps_chunks: bool = False,
) -> _PatternSearch:
    """A search for the first `limit` lines that match, carried out. `pattern`: RE2's syntax, or a text if it is
    `fixed`. It matches within a line unless it names a line break.

    Raises UsageError for a bad pattern, glob or language, RepositoryNotFound, NothingIndexed, and what index and store
    raise."""
    compiled = await in_thread(lambda: Pattern(pattern, fixed=fixed, ignore_case=ignore_case))
    asked = Asked.of(
        compiled,
        path_glob=path_glob,
        language=language,
        most_lines=min(limit, MAX_LIMIT),
        max_seconds=max_seconds,
        keeps_chunks=keeps_chunks,
    )
    return await carried_out(_PatternSearch(parts, asked), parts, repositories)


class _PatternSearch(FileSearch):
    async def _read(self, versions: Sequence[LiveVersion], scope: Scope) -> None:
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

    def _answer(self, found: MatchingFiles) -> MatchingFiles:
        if found.stopped is None and self._asked.pattern.has_cut_lines:
            return replace(found, is_complete=False, stopped="Lines too long for this pattern were searched in parts.")
        return found

    def _lines_of(self, version: LiveVersion, file: StoredFile, most: int) -> Sequence[MatchingLine]:
        return list(_lines(self._asked.pattern, file.chunks, most, self._asked.deadline))

    def _too_many(self) -> str:
        limit = self._asked.most_lines
        more = "there may be more: narrow it by path or repository, or raise the limit"
        first = "This is the first line" if limit == 1 else f"These are the first {limit:,} lines"
        return f"{first} that {'was' if limit == 1 else 'were'} found; {more}."

    def _narrower(self) -> str:
        return "narrow it by path or repository, or put \\b around a name"

    # Which files --------------------------------------------------------------------------------------------------

    async def _narrowed(self, versions: Sequence[LiveVersion], scope: Scope) -> Mapping[str, Set[str]]:
        """Paths by version, of versions whose other files certainly do not match."""
        clauses = sorted(self._asked.pattern.required.clauses, key=lambda each: -min(map(len, each)))[:_MOST_CLAUSES]
        narrowed: dict[str, set[str]] = {}
        collections = groupby(sorted(versions, key=lambda each: each.collection), lambda each: each.collection)
        for collection, each in collections:
            ids = {version.id for version in each if _can_be_narrowed(version)}
            if not ids or not clauses:
                continue
            query = scope.limited(await self._asked.query(), collection, set())
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
        answers = await together(
            *(index.files_with_terms(replace(most, sparse=terms_vector(clause))) for clause in clauses)
        )
        complete = [set(files) for files, are_all in answers if are_all]
        return set.intersection(*complete) if complete else None

    async def _likely(self, versions: Sequence[LiveVersion], scope: Scope) -> Mapping[str, Set[str]]:
        """Paths by version, of files that have words of the pattern."""
        vector = query_vector(self._asked.pattern.required.literals)
        likely: dict[str, set[str]] = {}
        if not len(vector.indices):
            return likely
        for collection in sorted({each.collection for each in versions}):
            query = replace(
                scope.limited(await self._asked.query(), collection, set()), sparse=vector, limit=_MOST_LIKELY
            )
            for version, path in (await self._parts.index(collection).files_with_terms(query))[0]:
                likely.setdefault(version, set()).add(path)
        return likely


def _can_be_narrowed(version: LiveVersion) -> bool:
    """Whether the terms of its points are known, and each word is whole in some chunk."""
    content = version.settings.get("content") or {}
    overlap, size = content.get("chunk_overlap") or 0, content.get("chunk_size") or 0
    return (version.settings.get("schema") or 0) >= WORDS_SCHEMA and overlap >= _LEAST_OVERLAP and size >= _LEAST_SIZE


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
    firsts: list[int] = []
    for match in pattern.lines(text, most, deadline):
        firsts = firsts or first_lines(text, starts)
        line, last = (line_of_file(each, firsts, chunks) for each in (match.line, match.last_line))
        yield MatchingLine(line, last, match.column, match.text, None)
