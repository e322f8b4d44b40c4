"""Searching and reading what is indexed. Imports what works only when it works: a command beside a daemon needs the
documents alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from reposync.errors import UsageError
from reposync.operations.core import Actor, Arguments, Rule, operation, ruled
from reposync.operations.fields import (
    MAX_PATH_CHARS,
    MAX_PATTERN_CHARS,
    Language,
    PathPattern,
    PlainText,
    Repositories,
)
from reposync.search.documents import Answer, Facets
from reposync.search.documents import FileLines as FileLines
from reposync.search.documents import MatchingFile as MatchingFile
from reposync.search.documents import MatchingFiles as MatchingFiles
from reposync.search.documents import Missing as Missing
from reposync.supervision import together
from reposync.symbol import Symbol
from reposync.vectors.port import Hit as Hit

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.search.passages import Passage
    from reposync.search.query import SearchText
    from reposync.vectors.port import SearchHit

MAX_QUERY_CHARS = 2_000
MAX_PASTE_CHARS = 20_000
MAX_PHRASINGS = 8
MAX_LINES, MAX_CALLS = 100, 200
"""Of an answer, if no limit is asked for."""
MAX_LINE = 1_000_000_000

T = TypeVar("T")
Passages: TypeAlias = "Mapping[tuple[str, str], Sequence[Passage]]"
KINDS = "function, method, class ..."


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Phrasings = Annotated[list[Annotated[str, Field(max_length=MAX_PASTE_CHARS)]], BeforeValidator(_listed)]
"""One text is a list of one."""


class Search(Arguments):
    q: Phrasings = Field(
        default_factory=list,
        max_length=MAX_PHRASINGS,
        description="Words, and filters such as `repo:payments path:src/** lang:go`. Repeat it for further phrasings "
        "of the question, which are ranked together; the filters of each count for all. Or a pasted traceback, "
        f"compiler output or issue of up to {MAX_PASTE_CHARS:,} characters: if it is too long for an address, POST it. "
        "Without it, `symbol`, `kind` or `like` say what to search for.",
        examples=[["where are expired sessions removed"]],
    )
    repository: Repositories = Field(default_factory=list)
    path: PathPattern = None
    language: Language = None
    symbol: PlainText | None = Field(
        None,
        min_length=1,
        max_length=MAX_PATTERN_CHARS,
        description="Only chunks that define this name; also `symbol:NAME` in the query.",
        examples=["remove_expired"],
    )
    kind: PlainText | None = Field(
        None,
        min_length=1,
        max_length=50,
        description=f"Only chunks that define one of this kind: {KINDS}; also `kind:KIND` in the query.",
        examples=["function"],
    )
    like: PlainText | None = Field(
        None,
        min_length=1,
        max_length=MAX_PATH_CHARS,
        description="In place of the query: code like that at `PATH:LINE` or `REPOSITORY:PATH:LINE`; also "
        "`like:PLACE` in it.",
        examples=["src/session.py:42"],
    )
    limit: int = Field(10, ge=1, le=100, description="The maximum number of hits.")


class FacetedSearch(Search):
    """A search that can also count; agents get no counts."""

    facets: bool = Field(False, description="Count the chunks with words of the query by where they are.")


class Hits(BaseModel):
    """The best first. `words`: what the lines of a hit are compared with: those of the query that tell something, or
    the code at `like`. `facets`: if they were requested, and the query has words. `missing`: why nothing was found, or
    what was not searched, if there are fewer than `limit`; null if there is nothing to say. `used`: what a search for a
    pasted text used of it, in a sentence; null for other searches. `usages`: of `usages:NAME`, which has no hits, what
    `grep` with `kind=call` answers."""

    items: list[Hit]
    words: str
    usages: MatchingFiles | None = None
    facets: Facets | None = None
    missing: Missing | None = None
    used: str | None = None


async def _limited(app: Application, work: Callable[[], Awaitable[T]]) -> T:
    with app.observer.measure("search_duration_seconds", "search"):
        return await app.searches.search(work)


def _read(asked: Search) -> SearchText:
    from reposync.search.query import read_query

    return read_query(asked.q, **asked.model_dump(include={"repository", "path", "language", "symbol", "kind", "like"}))


async def _find(app: Application, asked: Search) -> tuple[list[SearchHit], str]:
    """The hits, and the `words` of `Hits`."""
    query = _read(asked)
    return await app.searching.search(query, limit=asked.limit), await app.searching.words(query)


def _used(asked: Search, hits: Sequence[Hit]) -> str | None:
    paste = _read(asked).paste if len(asked.q) == 1 else None
    return None if paste is None else paste.used({(hit.path, hit.start_line, hit.end_line) for hit in hits})


async def _missing(app: Application, asked: Search, found: int) -> Missing | None:
    """Of a search that found fewer than it may."""
    from reposync.search.absence import missing

    if found >= asked.limit:
        return None
    query = _read(asked)
    return await missing(app, repositories=query.repositories, path=query.path, found=found)


@ruled(Rule.READ, audited="search")
async def excerpts(app: Application, actor: Actor, asked: Search, *, max_files: int, max_tokens: int) -> Answer:
    """As `search`, as excerpts of files for a language model."""
    from reposync.search.answers import DEPTH, Indexed, answer
    from reposync.supervision import in_thread

    async def work() -> Answer:
        hits, words = await _find(app, asked.model_copy(update={"limit": DEPTH}))
        rows = await app.repositories.list({hit.repository for hit in hits}) if hits else []
        indexed = {row.name: Indexed(row.last_commit, row.last_sync_at) for row in rows}
        absent = await _missing(app, asked, len({(hit.repository, hit.path) for hit in hits}))
        shown = partial(answer, hits, words, max_tokens=max_tokens, max_files=max_files, indexed=indexed, now=app.now())
        shown = partial(shown, missing=absent, used=_used(asked, hits))
        return await in_thread(shown)  # milliseconds of computing, in which other requests are answered

    return await _limited(app, work)


@operation("GET", "/search", FacetedSearch, Hits, rule=Rule.READ, uses_index=True, is_audited=True)
async def search(app: Application, actor: Actor, asked: FacetedSearch) -> Hits:
    """Search the indexed code: by a description of what the code does, or by its identifiers. Both kinds of matches are
    ranked together."""

    return await _searched(app, asked)


@operation("POST", "/search", FacetedSearch, Hits, rule=Rule.READ, uses_index=True, is_audited=True)
async def search_text(app: Application, actor: Actor, asked: FacetedSearch) -> Hits:
    """Search the indexed code, for what is too long for an address: a pasted traceback, compiler output or issue, of
    which frames are found first, then names, then the sentence. Otherwise as `GET /search`."""
    return await _searched(app, asked)


@ruled(Rule.READ, audited="search")
async def search_shown(
    app: Application, actor: Actor, asked: FacetedSearch, show: Callable[[Sequence[Hit], str], T]
) -> tuple[Hits, T]:
    """As `search` for words, with what `show` makes of the hits and `words`: in a thread, while facets are counted."""
    return await _shown(app, asked, show)


async def _searched(app: Application, asked: FacetedSearch) -> Hits:
    if (calls := calls_asked_for(asked)) is not None:
        found = await _grepped(app, calls)
        return Hits(items=[], words=calls.q, usages=found, missing=found.missing)
    hits, _ = await _shown(app, asked, lambda *_: None)
    return hits


async def _shown(app: Application, asked: FacetedSearch, show: Callable[[Sequence[Hit], str], T]) -> tuple[Hits, T]:
    from reposync.search.facets import facets_of
    from reposync.supervision import in_thread

    async def shown() -> tuple[list[Hit], str, T]:
        hits, words = await _find(app, asked)
        return [*hits], words, await in_thread(partial(show, hits, words))

    async def work() -> tuple[Hits, T]:
        counted = facets_of(app, _read(asked)) if asked.facets else _nothing()
        (hits, words, seen), facets = await together(shown(), counted)
        absent = await _missing(app, asked, len(hits))
        return Hits(items=hits, words=words, facets=facets, missing=absent, used=_used(asked, hits)), seen

    return await _limited(app, work)


async def _nothing() -> None:
    return None


class Grep(Arguments):
    q: str = Field(
        min_length=1,
        max_length=1_000,
        description="A regular expression in RE2's syntax, which matches within a line unless it names a line break.",
        examples=[r"\bremove_expired\("],
    )
    repository: Repositories = Field(default_factory=list)
    path: PathPattern = None
    language: Language = None
    fixed: bool = Field(False, description="The pattern is a text, not a regular expression.")
    ignore_case: bool = Field(False, description="Upper and lower case match each other.")
    kind: Literal["call"] | None = Field(
        None,
        description="`call`: `q` is a name, and the lines that call it are found, each with a `mark`: whether its file "
        "imports the name, or defines it. Also `usages:NAME` in the query of a search.",
        examples=["call"],
    )
    limit: int | None = Field(
        None, ge=1, le=1_000, description="The maximum number of lines; default: 100, of calls 200."
    )

    @property
    def most(self) -> int:
        return self.limit or (MAX_CALLS if self.kind else MAX_LINES)


def calls_asked_for(asked: Search) -> Grep | None:
    """What finds the calls that `usages:NAME` asks for; None for other searches."""
    if not any("usages:" in text for text in asked.q):
        return None
    query = _read(asked)
    if query.usages is None:
        return None
    limit = asked.limit if "limit" in asked.model_fields_set else None
    where = {"repository": list(query.repositories), "path": query.path, "language": query.language}
    return Grep(q=query.usages, kind="call", limit=limit, **where)


@operation("GET", "/grep", Grep, MatchingFiles, rule=Rule.READ, uses_index=True, is_audited=True)
async def grep(app: Application, actor: Actor, asked: Grep) -> MatchingFiles:
    """Find the lines that match a pattern, exactly, in the indexed text of all files, or those that call a name; for a
    few seconds at most, after which the answer says that it is not complete."""
    return await _grepped(app, asked)


async def _grepped(app: Application, asked: Grep) -> MatchingFiles:
    return (await _grepped_passages(app, asked, keeps_chunks=False))[0]


async def _grepped_passages(app: Application, asked: Grep, *, keeps_chunks: bool) -> tuple[MatchingFiles, Passages]:
    from reposync.search import grep, usages
    from reposync.supervision import in_thread

    if asked.kind and asked.ignore_case:
        remedy = "Do not ask to ignore case, or grep for the name as a pattern."
        raise UsageError("Calls are found by their name as it is written.", remedy=remedy)
    options = asked.model_dump(include={"language"} if asked.kind else {"language", "fixed", "ignore_case"})
    options |= {"repositories": asked.repository, "path_glob": asked.path, "limit": asked.most}
    find: Any = usages.searched if asked.kind else grep.searched

    async def work() -> tuple[MatchingFiles, Passages]:
        search = await find(app, asked.q, keeps_chunks=keeps_chunks, **options)
        return await search.found(), await in_thread(search.passages) if keeps_chunks else {}

    with app.observer.measure("search_duration_seconds", "grep"):
        found, passages = await app.greps.search(work)
    return replace(found, missing=await _lines_missing(app, asked, found)), passages


async def _lines_missing(app: Application, asked: Grep, found: MatchingFiles) -> Missing | None:
    from reposync.search.absence import missing

    lines = sum(len(file.matches) for file in found.items)
    if lines >= asked.most or (found.stopped and not lines):
        return None
    return await missing(app, repositories=asked.repository, path=asked.path, found=lines)


@ruled(Rule.READ, audited="grep")
async def grep_passages(app: Application, actor: Actor, asked: Grep) -> tuple[MatchingFiles, Passages]:
    """As `grep`, with the lines around the matches, by repository and path."""
    return await _grepped_passages(app, asked, keeps_chunks=True)


@ruled(Rule.READ)
async def filters_of_nothing(app: Application, actor: Actor, asked: Search) -> list[str]:
    """The search's filters, as they are written, that fit nothing in the index, each by itself."""
    from reposync.search.facets import filters_of_nothing as find

    return await find(app, _read(asked))


class Lines(Arguments):
    start: int | None = Field(None, ge=1, le=MAX_LINE, description="The first line.", examples=[10])
    end: int | None = Field(
        None, ge=1, le=MAX_LINE, description="The last line; the file's last one if that comes first.", examples=[40]
    )


@operation("GET", "/files/{name}/-/{path}", Lines, FileLines, rule=Rule.READ, uses_index=True, is_audited=True)
async def read(app: Application, actor: Actor, asked: Lines, *, name: str, path: str) -> FileLines:
    """The indexed text of a file, or of some of its lines: of the commit that searches answer from."""
    from reposync.search.reading import read_file

    return await read_file(app, name, path, asked.start, asked.end)


class OutlineOf(Arguments):
    path: PlainText = Field(
        min_length=1, max_length=MAX_PATH_CHARS, description="The file's path.", examples=["src/session.py"]
    )


class FileOutline(BaseModel):
    """`commit`: of the sync that stored this file. `symbols`: its definitions, by line."""

    repository: str
    path: str
    commit: str
    language: str | None
    symbols: list[Symbol]

    model_config = ConfigDict(from_attributes=True)


@operation(
    "GET", "/repositories/{name}/outline", OutlineOf, FileOutline, rule=Rule.READ, uses_index=True, is_audited=True
)
async def outline(app: Application, actor: Actor, asked: OutlineOf, *, name: str) -> FileOutline:
    """The definitions of an indexed file."""
    from reposync.search.reading import read_file

    return FileOutline.model_validate(await read_file(app, name, asked.path))
