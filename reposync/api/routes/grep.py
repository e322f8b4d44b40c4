"""`GET /api/v1/grep`: as `reposync grep`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from reposync.api.errors import SearchBusy, SearchTimeout
from reposync.api.models import Page, PlainText, RequestModel
from reposync.api.routes.search import MAX_PATTERN_CHARS as MAX_GLOB_CHARS
from reposync.api.routing import PREFIX, ApiParts, Router
from reposync.errors import (
    IndexMismatch,
    IndexUnavailable,
    IndexUnsupported,
    NothingIndexed,
    RepositoryNotFound,
    UsageError,
    VectorIndexError,
)
from reposync.search.grep import MAX_LIMIT, MAX_SECONDS, grep
from reposync.search.pattern import MAX_PATTERN_CHARS
from reposync.store.repository import MAX_NAME_CHARS

MAX_REPOSITORIES = 100


class GrepQuery(RequestModel):
    pattern: str = Field(
        min_length=1,
        max_length=MAX_PATTERN_CHARS,
        description="A regular expression in RE2's syntax, which matches within a line unless it names a line break.",
        examples=[r"\bremove_expired\("],
    )
    repository: list[Annotated[PlainText, Field(min_length=1, max_length=MAX_NAME_CHARS)]] = Field(
        [], max_length=MAX_REPOSITORIES, description="Only in this one; repeat it for several."
    )
    path: PlainText | None = Field(
        None,
        min_length=1,
        max_length=MAX_GLOB_CHARS,
        description="Only files that match this gitignore pattern.",
        examples=["src/**/*.py"],
    )
    language: PlainText | None = Field(
        None, min_length=1, max_length=50, description="Only in this one, by any of its names.", examples=["python"]
    )
    fixed: bool = Field(False, description="The pattern is a text, not a regular expression.")
    ignore_case: bool = Field(False, description="Upper and lower case match each other.")
    limit: int = Field(100, ge=1, le=MAX_LIMIT, description="The maximum number of lines.")


class MatchingLine(BaseModel):
    """The first match in a line. `column`: from 1, in characters. `end_line` differs if the pattern spans lines.
    `text`: of these lines, at most 400 characters; `…` marks where it was cut around the match. `url`: shows them to a
    person. The lines of a notebook are near those of its file."""

    line: int
    end_line: int
    column: int
    text: str
    url: str | None

    model_config = ConfigDict(from_attributes=True)


class MatchingFile(BaseModel):
    """`commit`: of the sync that stored the file. `outdated`: it has changed since, and its newer state could not be
    read. `matches`: by line."""

    repository: str
    path: str
    language: str | None
    commit: str
    outdated: bool
    matches: list[MatchingLine]

    model_config = ConfigDict(from_attributes=True)


class MatchingFiles(Page[MatchingFile]):
    """By repository and path; `next_cursor` is always null. `is_complete`: these are all matches; if not, `stopped`
    says why in a sentence. `files_searched`: how many were read; the index proves that others do not match."""

    is_complete: bool
    stopped: str | None
    files_searched: int


def grep_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["search"])

    @routes.get(
        "/grep",
        summary="Find the lines that match a pattern",
        description="Exactly, in the indexed text of all files; "
        f"for at most {MAX_SECONDS:g} s, after which the answer says that it is not complete.",
        **parts.reads(
            *(RepositoryNotFound, NothingIndexed, UsageError, IndexMismatch, IndexUnsupported, VectorIndexError),
            *(IndexUnavailable, SearchBusy, SearchTimeout),
        ),
    )
    async def grep_code(query: Annotated[GrepQuery, Query()]) -> MatchingFiles:
        app = parts.application()
        found = await parts.greps.search(
            lambda: grep(
                app,
                query.pattern,
                repositories=query.repository,
                path_glob=query.path,
                language=query.language,
                fixed=query.fixed,
                ignore_case=query.ignore_case,
                limit=query.limit,
            )
        )
        return MatchingFiles(
            items=[MatchingFile.model_validate(each) for each in found.files],
            is_complete=found.is_complete,
            stopped=found.stopped,
            files_searched=found.files_searched,
        )

    return routes
