"""`GET /api/v1/search`: as `reposync search`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from reposync.api.errors import SearchBusy, SearchTimeout
from reposync.api.models import Page, PlainText, RequestModel
from reposync.api.routing import PREFIX, ApiParts, RepositoryName, Router
from reposync.content.symbols import KINDS
from reposync.errors import (
    EmbeddingError,
    EmbeddingUnavailable,
    FileIncomplete,
    FileNotIndexed,
    IndexMismatch,
    IndexUnavailable,
    IndexUnsupported,
    RepositoryNotFound,
    UsageError,
    VectorIndexError,
)
from reposync.search.query import MAX_QUERY_CHARS
from reposync.search.reading import read_file
from reposync.store.repository import MAX_NAME_CHARS

MAX_PATTERN_CHARS = 1_000
MAX_PATH_CHARS = 4_096


class SearchQuery(RequestModel):
    q: str = Field(
        "",
        max_length=MAX_QUERY_CHARS,
        description="The query. Empty if `symbol`, `kind` or `like` say what is searched for.",
        examples=["where are expired sessions removed"],
    )
    repository: PlainText | None = Field(
        None, min_length=1, max_length=MAX_NAME_CHARS, description="Only in this one.", examples=["payments-api"]
    )
    path: PlainText | None = Field(
        None,
        min_length=1,
        max_length=MAX_PATTERN_CHARS,
        description="Only files that match this gitignore pattern.",
        examples=["src/**/*.py"],
    )
    language: PlainText | None = Field(
        None, min_length=1, max_length=50, description="Only in this one, by any of its names.", examples=["python"]
    )
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
        description=f"Only chunks that define one of this kind ({', '.join(KINDS)}); also `kind:KIND` in the query.",
        examples=["function"],
    )
    like: PlainText | None = Field(
        None,
        min_length=1,
        max_length=MAX_PATH_CHARS,
        description="In place of the query: code like that at `PATH:LINE` or `REPOSITORY:PATH:LINE`; also `like:PLACE` "
        "in the query.",
        examples=["src/session.py:42"],
    )
    limit: int = Field(10, ge=1, le=100, description="The maximum number of hits.")


class OutlineQuery(RequestModel):
    path: PlainText = Field(
        min_length=1, max_length=MAX_PATH_CHARS, description="The file's path.", examples=["src/session.py"]
    )


class Definition(BaseModel):
    """A function, class or other symbol of a file, with its lines. In a hit it may go on after the hit's last line."""

    name: str
    kind: str = Field(description=f"One of {', '.join(KINDS)}.")
    start_line: int
    end_line: int

    model_config = ConfigDict(from_attributes=True)


class Hit(BaseModel):
    """Lines of a file, including `start_line` and `end_line`. `score`: higher is better; it ranks the hits of one
    search, and cannot be compared between searches. `url`: shows these lines to a person. `outdated`: the file has
    changed since, and its newer state could not be read. `meaning_indexed`: the first sync of the repository is still
    running: it is searched by words only, and this share (0 to 1) of its meaning is indexed; otherwise null. `parts`:
    the sum of `words`, `meaning`, `definition` and `path`, times `prior`, is the score. `symbols`: what these lines
    define."""

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
    symbols: list[Definition] = []

    model_config = ConfigDict(from_attributes=True)


class FileOutline(BaseModel):
    """`commit`: of the sync that stored this file. `symbols`: its definitions, by line."""

    repository: str
    path: str
    commit: str
    language: str | None
    symbols: list[Definition]

    model_config = ConfigDict(from_attributes=True)


class Hits(Page[Hit]):
    """The best first. There are no further pages: `next_cursor` is always null."""


def search_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["search"])

    @routes.get(
        "/search",
        summary="Search the indexed code",
        description="By a description of what the code does, or by its identifiers: both kinds of matches are ranked "
        "together.",
        **parts.reads(
            *(RepositoryNotFound, FileNotIndexed, UsageError, IndexMismatch, IndexUnsupported, VectorIndexError),
            *(EmbeddingError, IndexUnavailable, EmbeddingUnavailable, SearchBusy, SearchTimeout),
        ),
    )
    async def search_code(query: Annotated[SearchQuery, Query()]) -> Hits:
        app = parts.application()
        found = await parts.searches.search(
            lambda: app.searching.search(
                query.q,
                repository=query.repository,
                path_glob=query.path,
                language=query.language,
                symbol=query.symbol,
                kind=query.kind,
                like=query.like,
                limit=query.limit,
            )
        )
        return Hits(items=[Hit.model_validate(each) for each in found])

    @routes.get(
        "/repositories/{name:path}/outline",
        summary="The definitions of an indexed file",
        **parts.reads(
            *(RepositoryNotFound, FileNotIndexed, FileIncomplete, UsageError, IndexMismatch, IndexUnsupported),
            *(VectorIndexError, IndexUnavailable),
        ),
    )
    async def get_outline(name: RepositoryName, query: Annotated[OutlineQuery, Query()]) -> FileOutline:
        return FileOutline.model_validate(await read_file(parts.application(), name, query.path))

    return routes
