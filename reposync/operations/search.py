"""Searching and reading what is indexed. Imports what works only when it works: a command beside a daemon needs the
documents alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from reposync.operations.core import Actor, Arguments, Role, operation
from reposync.operations.fields import (
    MAX_PATH_CHARS,
    MAX_PATTERN_CHARS,
    Language,
    PathPattern,
    PlainText,
    Repositories,
)
from reposync.symbol import Symbol

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.search.answers import Answer
    from reposync.vectors.port import SearchHit

MAX_QUERY_CHARS = 2_000
MAX_LINE = 1_000_000_000

T = TypeVar("T")
KINDS = "function, method, class ..."


class Search(Arguments):
    q: str = Field(
        "",
        max_length=MAX_QUERY_CHARS,
        description="The query. Empty if `symbol`, `kind` or `like` say what is searched for.",
        examples=["where are expired sessions removed"],
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


class Hit(BaseModel):
    """Lines of a file, including `start_line` and `end_line`. `score`: higher is better; it ranks the hits of one
    search, and cannot be compared between searches. `url`: shows these lines to a person. `outdated`: the file has
    changed since, and its newer state could not be read. `meaning_indexed`: the first sync of the repository is still
    running: it is searched by words only, and this share (0 to 1) of its meaning is indexed; otherwise null. `parts`:
    the sum of `words`, `meaning`, `definition` and `path`, times `prior`, is the score. `symbols`: what these lines
    define. `definitions`: those of them that `symbol` and `kind` ask for, and that begin in these lines."""

    repository: str
    path: str
    start_line: int
    end_line: int
    language: str | None
    score: float
    text: str
    url: str | None
    outdated: bool = False
    meaning_indexed: float | None = None
    parts: dict[str, float] = {}
    symbols: list[Symbol] = []
    definitions: list[Symbol] = []

    model_config = ConfigDict(from_attributes=True)


class Hits(BaseModel):
    """The best first. `words`: what the lines of a hit are compared with: those of the query, or the code at `like`."""

    items: list[Hit]
    words: str


class SearchAnswer(NamedTuple):
    """`words`: those of the query, or the code that the hits are like."""

    hits: list[SearchHit]
    words: str


async def find(app: Application, actor: Actor, asked: Search) -> SearchAnswer:
    """As `search`, for front ends in this process that show lines of the hits."""
    actor.require(Role.READ)
    return await _limited(app, lambda: _find(app, asked))


async def _limited(app: Application, work: Callable[[], Awaitable[T]]) -> T:
    with app.observer.measure("search_duration_seconds", "search"):
        return await app.searches.search(work)


async def _find(app: Application, asked: Search) -> SearchAnswer:
    filters = {"symbol": asked.symbol, "kind": asked.kind, "like": asked.like}
    hits = await app.searching.search(
        asked.q,
        repository=asked.repository,
        path_glob=asked.path,
        language=asked.language,
        limit=asked.limit,
        **filters,
    )
    return SearchAnswer(hits, await app.searching.words(asked.q, repository=asked.repository, **filters))


async def excerpts(app: Application, actor: Actor, asked: Search, *, max_files: int, max_tokens: int) -> Answer:
    """As `search`, as excerpts of files for a language model."""
    actor.require(Role.READ)
    from reposync.search.answers import DEPTH, Indexed, answer
    from reposync.supervision import in_thread

    async def work() -> Answer:
        found = await _find(app, asked.model_copy(update={"limit": DEPTH}))
        rows = await app.repositories.list({hit.repository for hit in found.hits}) if found.hits else []
        indexed = {row.name: Indexed(row.last_commit, row.last_sync_at) for row in rows}
        shown = partial(answer, *found, max_tokens=max_tokens, max_files=max_files, indexed=indexed, now=app.now())
        return await in_thread(shown)  # milliseconds of computing, in which other requests are answered

    with app.observer.measure("search_duration_seconds", "search"):
        return await app.searches.search(work)


@operation("GET", "/search", Search, Hits, uses_index=True)
async def search(app: Application, actor: Actor, asked: Search) -> Hits:
    """Search the indexed code: by a description of what the code does, or by its identifiers. Both kinds of matches are
    ranked together."""
    found = await find(app, actor, asked)
    return Hits(items=[Hit.model_validate(hit) for hit in found.hits], words=found.words)


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
    limit: int = Field(100, ge=1, le=1_000, description="The maximum number of lines.")


class MatchingLine(BaseModel):
    """The first match in a line. `column` counts from 1, in characters of the line. `end_line` differs if the pattern
    spans lines. `text`: of these lines, at most 400 characters; `…` marks where it was cut around the match."""

    line: int
    end_line: int
    column: int
    text: str
    url: str | None

    model_config = ConfigDict(from_attributes=True)


class MatchingFile(BaseModel):
    """`matches`: by line. `commit`: of the run that stored the file. `outdated`: a newer version of it could not be
    read."""

    repository: str
    path: str
    language: str | None
    commit: str
    outdated: bool
    matches: list[MatchingLine]

    model_config = ConfigDict(from_attributes=True)


class MatchingFiles(BaseModel):
    """By repository and path. `is_complete`: these are all matches; if not, `stopped` says why in a sentence.
    `files_searched`: how many were read; the index proves that others do not match."""

    items: list[MatchingFile]
    is_complete: bool
    stopped: str | None
    files_searched: int


@operation("GET", "/grep", Grep, MatchingFiles, uses_index=True)
async def grep(app: Application, actor: Actor, asked: Grep) -> MatchingFiles:
    """Find the lines that match a pattern, exactly, in the indexed text of all files; for a few seconds at most, after
    which the answer says that it is not complete."""
    from reposync.search.grep import grep as find_lines

    options = asked.model_dump(exclude={"q", "repository", "path"})
    with app.observer.measure("search_duration_seconds", "grep"):
        found = await app.greps.search(
            lambda: find_lines(app, asked.q, repositories=asked.repository, path_glob=asked.path, **options)
        )
    return MatchingFiles(
        items=[MatchingFile.model_validate(file) for file in found.files],
        is_complete=found.is_complete,
        stopped=found.stopped,
        files_searched=found.files_searched,
    )


class Lines(Arguments):
    start: int | None = Field(None, ge=1, le=MAX_LINE, description="The first line.", examples=[10])
    end: int | None = Field(
        None, ge=1, le=MAX_LINE, description="The last line; the file's last one if that comes first.", examples=[40]
    )


class FileLines(BaseModel):
    """Lines `start_line` to `end_line` of a file that has `total_lines`, exactly: with their line breaks, decoded,
    without a byte order mark. `commit`: of the run that stored the file. `outdated`: a newer version of it could not be
    read. `symbols`: the definitions that these lines are part of, by line.

    `is_notebook`: the text is that of its cells, and its lines are not those of the file, which all numbers count. Then
    it is whole chunks: those that touch the requested lines."""

    repository: str
    path: str
    commit: str
    language: str | None
    url: str | None
    start_line: int
    end_line: int
    total_lines: int
    text: str
    outdated: bool
    is_notebook: bool
    symbols: Sequence[Symbol]

    model_config = ConfigDict(from_attributes=True)


@operation("GET", "/files/{name}/-/{path}", Lines, FileLines, uses_index=True)
async def read(app: Application, actor: Actor, asked: Lines, *, name: str, path: str) -> FileLines:
    """The indexed text of a file, or of some of its lines: of the commit that searches answer from."""
    from reposync.search.reading import read_file

    return FileLines.model_validate(await read_file(app, name, path, asked.start, asked.end))


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


@operation("GET", "/repositories/{name}/outline", OutlineOf, FileOutline, uses_index=True)
async def outline(app: Application, actor: Actor, asked: OutlineOf, *, name: str) -> FileOutline:
    """The definitions of an indexed file."""
    from reposync.search.reading import read_file

    return FileOutline.model_validate(await read_file(app, name, asked.path))


class AskedQuestion(BaseModel):
    """A question and the file that answers it; `lines`: the first and the last line of the answer."""

    question: str = Field(min_length=1, max_length=MAX_QUERY_CHARS)
    repository: PlainText = Field(min_length=1)
    path: str = Field(min_length=1, max_length=MAX_PATH_CHARS)
    lines: tuple[int, int] | None = None


class Questions(Arguments):
    questions: list[AskedQuestion] = Field(min_length=1, max_length=10_000)


class Miss(AskedQuestion):
    """`ranks`: of the answer, by what was searched; null: it is not among the first 10."""

    ranks: dict[str, int | None]


class Scores(BaseModel):
    """Means over the questions, from 0 to 1, of the first 10 results. `recall`: by the number of results."""

    model_config = ConfigDict(from_attributes=True)

    questions: int
    recall: dict[int, float]
    mrr: float
    ndcg: float


class Evaluation(BaseModel):
    """`live`: of what is searched at present. `misses`: the questions whose answer is not the first one."""

    questions: int
    live: Scores
    misses: list[Miss]


@operation("POST", "/eval", Questions, Evaluation, uses_index=True, is_slow=True)
async def evaluate(app: Application, actor: Actor, asked: Questions) -> Evaluation:
    """Measure how well search finds known answers."""
    from reposync.search.evaluation import DEPTH, Question, ranks_of, scores

    for name in sorted({question.repository for question in asked.questions}):
        await app.repositories.get(name)  # before anything is searched: a wrong name is reported at once

    async def hits_of(question: Question) -> Sequence[SearchHit]:
        return (await find(app, actor, Search(q=question.question, repository=[question.repository], limit=DEPTH))).hits

    questions = [Question.model_validate(question.model_dump()) for question in asked.questions]
    ranks = await ranks_of(questions, hits_of)
    missed = [(question, rank) for question, rank in zip(asked.questions, ranks, strict=True) if rank != 1]
    return Evaluation(
        questions=len(ranks),
        live=Scores.model_validate(scores(ranks)),
        misses=[Miss(**question.model_dump(), ranks={"live": rank}) for question, rank in missed],
    )
