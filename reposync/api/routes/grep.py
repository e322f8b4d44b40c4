"""`GET /api/v1/grep`: as `reposync grep`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from reposync.api.models import Page, PlainText, RequestModel
from reposync.api.routes.search import LANGUAGE_FILTER, PATH_FILTER
from reposync.api.routing import PREFIX, ApiParts, Router
from reposync.search.grep import MAX_LIMIT, MAX_SECONDS, FileMatches, grep
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


def grep_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["search"])

    @routes.get(
        "/grep",
        summary="Find the lines that match a pattern",
        description="Exactly, in the indexed text of all files; "
        f"for at most {MAX_SECONDS:g} s, after which the answer says that it is not complete.",
        dependencies=parts.readers,
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
            items=list(found.files),
            is_complete=found.is_complete,
            stopped=found.stopped,
            files_searched=found.files_searched,
        )

    return routes
