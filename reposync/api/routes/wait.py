"""`GET /api/v1/repositories/{name}/wait`: until a commit, or a descendant of it, can be searched."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field
from pydantic_core import to_jsonable_python

from reposync.api.errors import NotSearchableYet, ShuttingDown
from reposync.api.models import MAX_WAIT_SECONDS, RequestModel
from reposync.api.routing import PREFIX, ApiParts, RepositoryName, Router
from reposync.api.server import stopping_of
from reposync.app.commit_wait import CommitState, SearchableCommits

MAX_WAITING = 200

_DESCRIPTION = """\
Responds with 200 as soon as the index holds exactly `commit`, or a descendant of it; a commit counts from the end of \
its sync. It triggers nothing: `POST .../sync` does. **Plain git servers cannot compare commits**: the indexed commit \
itself counts, and a run that began after the request (`relation` is then `later`)."""


class WaitQuery(RequestModel):
    commit: str = Field(
        pattern="^[0-9a-fA-F]{7,64}$",
        description="Its name, or a unique prefix of at least 7 digits.",
        examples=["8843d7f"],
    )
    timeout: float = Field(
        30.0, ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False, description="Seconds; 0 returns the current state."
    )


def wait_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["repositories"])
    commits = SearchableCommits(parts.application, max_waiting=MAX_WAITING)

    @routes.get(
        "/repositories/{name:path}/wait",
        summary="Wait until a commit can be searched",
        description=_DESCRIPTION,
        dependencies=parts.readers,
    )
    async def wait_for_commit(
        request: Request, name: RepositoryName, query: Annotated[WaitQuery, Query()]
    ) -> CommitState:
        stopping = stopping_of(request)

        async def is_wanted() -> bool:
            return not stopping.is_set() and not await request.is_disconnected()

        found = await commits.wait(name, query.commit.lower(), query.timeout, is_wanted=is_wanted)
        state = replace(found, commit=query.commit)
        if state.relation is None:
            if stopping.is_set():
                raise ShuttingDown
            why = await commits.explained(name, state)
            details = {**asdict(state), "limit": why.limit, "run": why.run and why.run.document}
            raise NotSearchableYet(why.text, to_jsonable_python(details))
        return state

    return routes
