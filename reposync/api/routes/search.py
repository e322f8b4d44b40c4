"""`GET /api/v1/search`, `/grep` and `/files/{name}/-/{path}`: as `reposync search`, `grep` and `cat`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from reposync.api.etags import ETAG_ANSWERS, conditional, conditional_body
from reposync.api.models import Page, PlainText, RequestModel
from reposync.api.routing import FILE, PREFIX, ApiParts, RepositoryName, Router
from reposync.content.symbols import KINDS
from reposync.search.grep import MAX_LIMIT, MAX_SECONDS, FileMatches, grep
from reposync.search.pattern import MAX_PATTERN_CHARS as MAX_REGEX_CHARS
from reposync.search.query import MAX_QUERY_CHARS
from reposync.search.reading import FileText, read_file
from reposync.store.repository import MAX_NAME_CHARS
from reposync.symbol import Symbol

MAX_PATTERN_CHARS = 1_000
MAX_PATH_CHARS = 4_096
MAX_LINE = 1_000_000_000

_TEXT: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}


def _filter(description: str, example: str, max_chars: int = MAX_PATTERN_CHARS) -> Any:
    return Field(None, min_length=1, max_length=max_chars, description=description, examples=[example])


PATH_FILTER = _filter("Only files that match this gitignore pattern.", "src/**/*.py")
LANGUAGE_FILTER = _filter("Only in this one, by any of its names.", "python", 50)


class SearchQuery(RequestModel):
    q: str = Field(
        "",
        max_length=MAX_QUERY_CHARS,
        description="The query. Empty if `symbol`, `kind` or `like` say what is searched for.",
        examples=["where are expired sessions removed"],
    )
    repository: PlainText | None = _filter("Only in this one.", "payments-api", MAX_NAME_CHARS)
    path: PlainText | None = PATH_FILTER
    language: PlainText | None = LANGUAGE_FILTER
    symbol: PlainText | None = _filter(
        "Only chunks that define this name; also `symbol:NAME` in the query.", "remove_expired"
    )
    kind: PlainText | None = _filter(
        f"Only chunks that define one of this kind ({', '.join(KINDS)}); also `kind:KIND` in the query.", "function", 50
    )
    like: PlainText | None = _filter(
        "In place of the query: code like that at `PATH:LINE` or `REPOSITORY:PATH:LINE`; also `like:PLACE` in it.",
        "src/session.py:42",
        MAX_PATH_CHARS,
    )
    limit: int = Field(10, ge=1, le=100, description="The maximum number of hits.")


class OutlineQuery(RequestModel):
    path: PlainText = Field(
        min_length=1, max_length=MAX_PATH_CHARS, description="The file's path.", examples=["src/session.py"]
    )


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


class FileOutline(BaseModel):
    """`commit`: of the sync that stored this file. `symbols`: its definitions, by line."""

    repository: str
    path: str
    commit: str
    language: str | None
    symbols: list[Symbol]

    model_config = ConfigDict(from_attributes=True)


class Hits(Page[Hit]):
    """The best first. There are no further pages: `next_cursor` is always null."""


class GrepQuery(RequestModel):
    pattern: str = Field(
        min_length=1,
        max_length=MAX_REGEX_CHARS,
        description="A regular expression in RE2's syntax, which matches within a line unless it names a line break.",
        examples=[r"\bremove_expired\("],
    )
    repository: list[Annotated[PlainText, Field(min_length=1, max_length=MAX_NAME_CHARS)]] = Field(
        [], max_length=100, description="Only in this one; repeat it for several."
    )
    path: PlainText | None = PATH_FILTER
    language: PlainText | None = LANGUAGE_FILTER
    fixed: bool = Field(False, description="The pattern is a text, not a regular expression.")
    ignore_case: bool = Field(False, description="Upper and lower case match each other.")
    limit: int = Field(100, ge=1, le=MAX_LIMIT, description="The maximum number of lines.")


class MatchingFiles(Page[FileMatches]):
    """By repository and path; `next_cursor` is always null. `is_complete`: these are all matches; if not, `stopped`
    says why in a sentence. `files_searched`: how many were read; the index proves that others do not match."""

    is_complete: bool
    stopped: str | None
    files_searched: int


def _without_nul(path: str) -> str:
    """Git allows every character but this one in a path, and databases too."""
    if "\0" in path:
        raise ValueError("must not contain NUL")
    return path


FilePath = Annotated[
    str,
    AfterValidator(_without_nul),
    Path(
        min_length=1, max_length=MAX_PATH_CHARS, description="From the root of the repository.", examples=["src/app.py"]
    ),
]


class LinesQuery(RequestModel):
    start: int | None = Field(None, ge=1, le=MAX_LINE, description="The first line.", examples=[10])
    end: int | None = Field(
        None, ge=1, le=MAX_LINE, description="The last line; the file's last one if that comes first.", examples=[40]
    )


def search_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["search"], dependencies=parts.readers)

    @routes.get(
        "/search",
        summary="Search the indexed code",
        description="By a description of what the code does, or by its identifiers: both kinds of matches are ranked "
        "together.",
    )
    async def search_code(query: Annotated[SearchQuery, Query()]) -> Hits:
        app = parts.application()
        found = await parts.searches.search(
            lambda: app.searching.search(query.q, path_glob=query.path, **query.model_dump(exclude={"q", "path"}))
        )
        return Hits(items=[Hit.model_validate(each) for each in found])

    @routes.get("/repositories/{name:path}/outline", summary="The definitions of an indexed file")
    async def get_outline(name: RepositoryName, query: Annotated[OutlineQuery, Query()]) -> FileOutline:
        return FileOutline.model_validate(await read_file(parts.application(), name, query.path))

    @routes.get(
        "/grep",
        summary="Find the lines that match a pattern",
        description="Exactly, in the indexed text of all files; "
        f"for at most {MAX_SECONDS:g} s, after which the answer says that it is not complete.",
    )
    async def grep_code(query: Annotated[GrepQuery, Query()]) -> MatchingFiles:
        app = parts.application()
        found = await parts.greps.search(
            lambda: grep(
                app,
                query.pattern,
                repositories=query.repository,
                path_glob=query.path,
                **query.model_dump(exclude={"pattern", "repository", "path"}),
            )
        )
        stopped, searched = found.stopped, found.files_searched
        return MatchingFiles(
            items=list(found.files), is_complete=found.is_complete, stopped=stopped, files_searched=searched
        )

    @routes.get(
        f"/files/{FILE}",
        summary="The indexed text of a file, or of some of its lines",
        description="Of the commit that searches answer from. `Accept: text/plain` returns the text alone.",
        response_model=FileText,
        responses={**ETAG_ANSWERS, 200: _TEXT},
    )
    async def read_code(
        request: Request, name: RepositoryName, path: FilePath, lines: Annotated[LinesQuery, Query()]
    ) -> Response:
        file = await read_file(parts.application(), name, path, lines.start, lines.end)
        response = (
            conditional_body(request, file.text.encode(), "text/plain; charset=utf-8")
            if _wants_text(request)
            else conditional(request, file)
        )
        response.headers["Vary"] += ", Accept"
        return response

    return routes


def _wants_text(request: Request) -> bool:
    kinds = [each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(",")]
    return "text/plain" in kinds and "application/json" not in kinds
