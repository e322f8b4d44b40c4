"""Searching and reading what is indexed. Imports what works only when it works: a command beside a daemon needs the
documents alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from reposync.operations.core import Actor, Arguments, Rule, operation, ruled
from reposync.operations.fields import (
    MAX_PATH_CHARS,
    MAX_PATTERN_CHARS,
    Language,
    PathPattern,
    PlainText,
    Repositories,
)
from reposync.search.documents import Answer
from reposync.search.documents import FileLines as FileLines
from reposync.search.documents import MatchingFile as MatchingFile
from reposync.search.documents import MatchingFiles as MatchingFiles
from reposync.search.documents import Scores as Scores
from reposync.symbol import Symbol
from reposync.vectors.port import Hit as Hit

if TYPE_CHECKING:
    from reposync.app.application import Application
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


class Hits(BaseModel):
    """The best first. `words`: what the lines of a hit are compared with: those of the query, or the code at `like`."""

    items: list[Hit]
    words: str


async def _limited(app: Application, work: Callable[[], Awaitable[T]]) -> T:
    with app.observer.measure("search_duration_seconds", "search"):
        return await app.searches.search(work)


async def _find(app: Application, asked: Search) -> tuple[list[SearchHit], str]:
    """The hits, and the `words` of `Hits`."""
    filters = {"symbol": asked.symbol, "kind": asked.kind, "like": asked.like}
    hits = await app.searching.search(
        asked.q,
        repository=asked.repository,
        path_glob=asked.path,
        language=asked.language,
        limit=asked.limit,
        **filters,
    )
    return hits, await app.searching.words(asked.q, repository=asked.repository, **filters)


@ruled(Rule.READ, audited="search")
async def excerpts(app: Application, actor: Actor, asked: Search, *, max_files: int, max_tokens: int) -> Answer:
    """As `search`, as excerpts of files for a language model."""
    from reposync.search.answers import DEPTH, Indexed, answer
    from reposync.supervision import in_thread

    async def work() -> Answer:
        hits, words = await _find(app, asked.model_copy(update={"limit": DEPTH}))
        rows = await app.repositories.list({hit.repository for hit in hits}) if hits else []
        indexed = {row.name: Indexed(row.last_commit, row.last_sync_at) for row in rows}
        shown = partial(answer, hits, words, max_tokens=max_tokens, max_files=max_files, indexed=indexed, now=app.now())
        return await in_thread(shown)  # milliseconds of computing, in which other requests are answered

    return await _limited(app, work)


@operation("GET", "/search", Search, Hits, rule=Rule.READ, uses_index=True, is_audited=True)
async def search(app: Application, actor: Actor, asked: Search) -> Hits:
    """Search the indexed code: by a description of what the code does, or by its identifiers. Both kinds of matches are
    ranked together."""
    hits, words = await _limited(app, lambda: _find(app, asked))
    return Hits(items=[*hits], words=words)


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


@operation("GET", "/grep", Grep, MatchingFiles, rule=Rule.READ, uses_index=True, is_audited=True)
async def grep(app: Application, actor: Actor, asked: Grep) -> MatchingFiles:
    """Find the lines that match a pattern, exactly, in the indexed text of all files; for a few seconds at most, after
    which the answer says that it is not complete."""
    from reposync.search.grep import grep as find_lines

    options = asked.model_dump(exclude={"q", "repository", "path"})
    with app.observer.measure("search_duration_seconds", "grep"):
        return await app.greps.search(
            lambda: find_lines(app, asked.q, repositories=asked.repository, path_glob=asked.path, **options)
        )


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


class Evaluation(BaseModel):
    """`live`: of what is searched at present. `misses`: the questions whose answer is not the first one."""

    questions: int
    live: Scores
    misses: list[Miss]


@operation("POST", "/eval", Questions, Evaluation, rule=Rule.MAINTAIN, uses_index=True, is_slow=True, is_audited=True)
async def evaluate(app: Application, actor: Actor, asked: Questions) -> Evaluation:
    """Measure how well search finds known answers."""
    from reposync.search.evaluation import DEPTH, Question, ranks_of, scores

    for name in sorted({question.repository for question in asked.questions}):
        await app.repositories.get(name)  # before anything is searched: a wrong name is reported at once

    async def hits_of(question: Question) -> Sequence[SearchHit]:
        query = Search(q=question.question, repository=[question.repository], limit=DEPTH)
        return (await _limited(app, lambda: _find(app, query)))[0]

    questions = [Question.model_validate(question.model_dump()) for question in asked.questions]
    ranks = await ranks_of(questions, hits_of)
    missed = [(question, rank) for question, rank in zip(asked.questions, ranks, strict=True) if rank != 1]
    return Evaluation(
        questions=len(ranks),
        live=scores(ranks),
        misses=[Miss(**question.model_dump(), ranks={"live": rank}) for question, rank in missed],
    )
