"""Where a name is called, in all that is indexed: the lines, each with a mark that says how sure it is that the call is
of a definition with this name. Never a graph: calls are compared by name, at the time of the answer.

Chunks have the names that are called in them, as a parser read them; so the index leads to the files of an answer, and
their texts to the lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

from reposync.content.joining import has_lines_of_file, joined
from reposync.search.call_lines import call_lines
from reposync.search.call_marks import Definition, FileImports
from reposync.search.documents import MARKS, Mark, MatchingFile, MatchingFiles, MatchingLine
from reposync.search.file_search import (
    MAX_SECONDS,
    Asked,
    FileSearch,
    StoredFile,
    carried_out,
    first_lines,
    line_of_file,
)
from reposync.search.pattern import Pattern, cut_around
from reposync.search.query import plain_name
from reposync.search.reading import ReadingParts
from reposync.search.scope import Scope, scope_of
from reposync.store.index_queries import LiveVersion
from reposync.supervision import in_thread, together
from reposync.symbol import read_names, read_symbols
from reposync.vectors.collection import CALLS_SCHEMA
from reposync.vectors.port import IndexQuery, Payload

LIMIT: Final = 200
_MOST_CANDIDATES: Final = 10_000
"""Chunks that call the name, without texts: 2 MB."""
_MOST_DEFINITIONS: Final = 1_000
"""Chunks that define it."""
_MOST_SITES: Final = 10_000
"""That are read, so that those of the answer are the best of them."""
_HOLDERS: Final = frozenset({"class", "enum", "interface", "struct", "trait", "type"})


async def usages(parts: ReadingParts, name: str, **options: Any) -> MatchingFiles:
    """The first `limit` lines that call the name, imported ones first. `options`: of `searched`, which says what it
    raises."""
    return await (await searched(parts, name, **options)).found()


async def searched(
    parts: ReadingParts,
    name: str,
    *,
    repositories: Sequence[str] = (),
    path_glob: str | None = None,
    language: str | None = None,
    limit: int = LIMIT,
    max_seconds: float = MAX_SECONDS,
    keeps_chunks: bool = False,
) -> CallSearch:
    """A search for the calls of a name, carried out. Qualifiers do not count: `Session::close()` is `close`. Raises
    UsageError for a bad name, glob or language, and otherwise as `grep.searched`."""
    name = plain_name(name, "usages")
    asked = Asked.of(
        await in_thread(lambda: Pattern.of_name(name)),
        path_glob=path_glob,
        language=language,
        most_lines=_MOST_SITES,
        max_seconds=max_seconds,
        keeps_chunks=keeps_chunks,
    )
    return await carried_out(CallSearch(parts, asked, _name=name, _limit=limit), parts, repositories)


@dataclass(slots=True, kw_only=True)
class CallSearch(FileSearch):
    _name: str
    _limit: int
    _definitions: Sequence[Definition] = ()
    _older: Set[str] = field(default_factory=set)

    async def _read(self, versions: Sequence[LiveVersion], scope: Scope) -> None:
        self._older = {each.repository for each in versions if (each.settings.get("schema") or 0) < CALLS_SCHEMA}
        files, self._definitions = await together(self._calling(scope), self._defining())
        first = {each.version for each in self._definitions}
        # Imports are likely there, and nothing is read after the time for a search.
        for version in sorted(versions, key=lambda each: each.id not in first):
            if paths := {path for of, path in files if of == version.id}:
                await self._search(version, self._listed(version, paths))

    async def _calling(self, scope: Scope) -> Set[tuple[str, str]]:
        """Files (version, path) with a chunk that calls the name."""
        files: set[tuple[str, str]] = set()
        query = replace(await self._asked.query(), calls=self._name, limit=_MOST_CANDIDATES)
        for collection in sorted(scope.collections):
            chunks, are_all = await self._parts.index(collection).chunks_of(scope.limited(query, collection, set()), [])
            files.update((each["repository_id"], each["path"]) for each in chunks)
            if not are_all:
                self._stopped = f"The first {len(chunks):,} places with this name were searched; {self._narrower()}."
        return files

    async def _defining(self) -> Sequence[Definition]:
        """Definitions of the name in all repositories, whatever the search is limited to."""
        query = IndexQuery((await self._asked.query()).sparse, symbol=self._name, limit=_MOST_DEFINITIONS)
        scope = await scope_of(self._parts)
        fields = [Payload.REPOSITORY, Payload.LANGUAGE, Payload.SYMBOLS]
        found: list[Definition] = []
        for collection in sorted(scope.collections):
            chunks, _ = await self._parts.index(collection).chunks_of(scope.limited(query, collection, set()), fields)
            found += await in_thread(partial(_definitions_in, chunks, self._name))
        return found

    def _lines_of(self, version: LiveVersion, file: StoredFile, most: int) -> Sequence[MatchingLine]:
        whole = joined(file.chunks)
        if whole is None:  # a run is replacing it
            return []
        language = file.metadata[0].get("language")
        starts = first_lines(whole.text, whole.starts)
        calling = [
            range(first, first + chunk.text.count("\n") + 1)
            for first, chunk, metadata in zip(starts, file.chunks, file.metadata, strict=True)
            if self._name in read_names(metadata.get("calls"))
        ]
        defined = [each.start_line - 1 for each in file.symbols if each.name == self._name]
        # The lines of a notebook are those of its file, and its definitions are not excluded.
        defined = sorted(set(defined)) if has_lines_of_file(file.chunks) else []
        imports = FileImports(whole.text, version.id, file.path, language, self._name, self._definitions)
        texts = whole.text.split("\n")
        found: list[MatchingLine] = []
        for call in call_lines(whole.text, self._name, language, defined):
            if not any(call.line in each for each in calling):
                continue
            text = texts[call.line].removesuffix("\r")
            shown = cut_around(text[: call.column], text[call.column :])
            line = line_of_file(call.line, starts, file.chunks)
            mark = imports.mark(call)
            found.append(MatchingLine(line, line, call.column + 1, shown, None, mark))
        return found[: max(0, most)]

    def _answer(self, found: MatchingFiles) -> MatchingFiles:
        total = sum(len(each.matches) for each in found.items)
        files = _first(found.items, self._limit)
        best: dict[str, int] = {}
        for file in files:
            best[file.repository] = min(_rank(file), best.get(file.repository, len(MARKS)))
        files.sort(key=lambda each: (best[each.repository], each.repository, _rank(each), each.path))
        stopped = found.stopped
        if total > self._limit:
            more = "" if stopped is None else "at least "
            stopped = f"{self._limit:,} of {more}{total:,} calls, imported ones first; {self._narrower()}."
        if stopped is None and self._older:
            names = sorted(self._older)
            of = names[0] if len(names) == 1 else f"{len(names):,} repositories"
            stopped = f"Calls in {of} are found after the next sync: the index is of an earlier release."
        return replace(found, items=files, is_complete=stopped is None, stopped=stopped)

    def _too_many(self) -> str:
        return f"{_MOST_SITES:,} calls were read; {self._narrower()}."


def _rank(file: MatchingFile) -> int:
    return min(MARKS.index(each.mark) for each in file.matches if each.mark is not None)


def _definitions_in(chunks: Sequence[Mapping[str, Any]], name: str) -> list[Definition]:
    return [each for chunk in chunks for each in _definitions_of(chunk, name)]


def _definitions_of(chunk: Mapping[str, Any], name: str) -> list[Definition]:
    symbols, path = read_symbols(chunk.get("symbols")), str(chunk["path"])
    return [
        Definition(
            str(chunk["repository_id"]),
            str(chunk.get("repository")),
            path,
            chunk.get("language"),
            each.kind,
            frozenset(
                around.name
                for around in symbols
                if around.kind in _HOLDERS and around.start_line <= each.start_line <= each.end_line <= around.end_line
            )
            | {PurePosixPath(path).stem},
        )
        for each in symbols
        if each.name == name
    ]


def _first(files: Sequence[MatchingFile], limit: int) -> list[MatchingFile]:
    """With the `limit` best lines."""
    marks = [each.mark for file in files for each in file.matches]
    left: dict[Mark, int] = {}
    for mark in MARKS:
        left[mark] = min(limit, marks.count(mark))
        limit -= left[mark]
    kept: list[MatchingFile] = []
    for file in files:
        matches = []
        for each in file.matches:
            if each.mark is not None and left[each.mark]:
                left[each.mark] -= 1
                matches.append(each)
        if matches:
            kept.append(replace(file, matches=matches))
    return kept
