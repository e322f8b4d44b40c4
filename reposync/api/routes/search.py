"""`GET /api/v1/search`: as `reposync search`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from reposync.api.access import Role
from reposync.api.answers import errors
from reposync.api.models import Asked, PlainText
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.errors import (
    EmbeddingError,
    EmbeddingUnavailable,
    IndexMismatch,
    IndexUnavailable,
    IndexUnsupported,
    RepositoryNotFound,
    RepoSyncError,
    UsageError,
    VectorIndexError,
)
from reposync.search.query import MAX_QUERY_CHARS
from reposync.store.repository import MAX_NAME_CHARS
from reposync.vectors.port import SearchHit

AT_ONCE = 2
"""A local model takes all cores for a query, and the syncs want them too."""
MAX_WAITING = 50
LONGEST_SECONDS = 20.0
MAX_PATTERN_CHARS = 1_000


class SearchBusy(RepoSyncError):
    """More searches wait than will be answered in time."""

    code = "SEARCH_BUSY"
    status = 503
    retryable = True


class SearchTimeout(RepoSyncError):
    """The embedding model and the index took too long together."""

    code = "SEARCH_TIMEOUT"
    status = 504
    retryable = True


class SearchAsked(Asked):
    q: str = Field(
        min_length=1,
        max_length=MAX_QUERY_CHARS,
        description="The question.",
        examples=["where are expired sessions removed"],
    )
    repository: PlainText | None = Field(
        None, min_length=1, max_length=MAX_NAME_CHARS, description="Only in this one.", examples=["payments-api"]
    )
    path: PlainText | None = Field(
        None,
        min_length=1,
        max_length=MAX_PATTERN_CHARS,
        description="Only files that this gitignore pattern matches.",
        examples=["src/**/*.py"],
    )
    language: PlainText | None = Field(
        None, min_length=1, max_length=50, description="Only in this one, by any of its names.", examples=["python"]
    )
    limit: int = Field(10, ge=1, le=100, description="At most so many.")


class Hit(BaseModel):
    """Lines of a file, `start_line` and `end_line` included. `score`: higher is better; it ranks the hits of one
    search, and is not to be compared between searches. `url`: where a person sees these lines. `outdated`: the file has
    changed since, and its newer state could not be read."""

    repository: str
    path: str
    start_line: int
    end_line: int
    language: str | None
    score: float
    text: str
    url: str | None
    outdated: bool = False

    model_config = ConfigDict(from_attributes=True)


class Hits(BaseModel):
    """The best first. There are no further pages: `next_cursor` is always null."""

    items: list[Hit]
    next_cursor: None = None

    _EXAMPLE: ClassVar[dict[str, Any]] = {
        "items": [
            {
                "repository": "payments-api",
                "path": "src/sessions.py",
                "start_line": 12,
                "end_line": 31,
                "language": "python",
                "score": 0.75,
                "text": "def remove_expired(sessions, now):\n    ...",
                "url": "https://gitlab.example.com/platform/payments-api/-/blob/main/src/sessions.py#L12-31",
                "outdated": False,
            }
        ],
        "next_cursor": None,
    }
    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})


class Turnstile:
    """Lets `at_once` through at a time, keeps so many waiting, and refuses the others at once."""

    def __init__(self, at_once: int, max_waiting: int) -> None:
        self._turn = asyncio.Semaphore(at_once)
        self._most = at_once + max_waiting
        self._inside = 0

    async def search(self, work: Callable[[], Awaitable[list[SearchHit]]]) -> list[SearchHit]:
        """What `work` finds when it is its turn. Raises SearchBusy, SearchTimeout, and what `work` does.

        One that takes too long is answered and cancelled, and keeps its place until it is over: a thread of the model
        goes on, whoever waits for it.
        """
        if self._inside >= self._most:
            raise SearchBusy("Too many searches wait on this pod.", remedy="Ask again in a moment.")
        self._inside += 1
        task = asyncio.ensure_future(self._in_turn(work))
        task.add_done_callback(self._left)
        try:
            await asyncio.wait({task}, timeout=LONGEST_SECONDS)
            if not task.done():
                raise SearchTimeout(f"The search took more than {LONGEST_SECONDS:g} s.")
            return task.result()
        finally:
            task.cancel()

    async def _in_turn(self, work: Callable[[], Awaitable[list[SearchHit]]]) -> list[SearchHit]:
        async with self._turn:
            return await work()

    def _left(self, task: asyncio.Task[list[SearchHit]]) -> None:
        self._inside -= 1
        if not task.cancelled():
            task.exception()  # heard of, also where nobody waits for it any more


def search_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix="/api/v1", tags=["search"])
    turnstile = Turnstile(AT_ONCE, MAX_WAITING)

    @routes.get(
        "/search",
        summary="Search the indexed code",
        description="In words of what it does, or by its identifiers: both kinds of matches are ranked together.",
        dependencies=[parts.access.requires(Role.READ)],
        responses=errors(
            RepositoryNotFound,
            UsageError,
            IndexMismatch,
            IndexUnsupported,
            VectorIndexError,
            EmbeddingError,
            IndexUnavailable,
            EmbeddingUnavailable,
            SearchBusy,
            SearchTimeout,
        ),
    )
    async def search_code(asked: Annotated[SearchAsked, Query()]) -> Hits:
        app = parts.application()
        found = await turnstile.search(
            lambda: app.search(
                asked.q, repository=asked.repository, path_glob=asked.path, language=asked.language, limit=asked.limit
            )
        )
        return Hits(items=[Hit.model_validate(each) for each in found])

    return routes
