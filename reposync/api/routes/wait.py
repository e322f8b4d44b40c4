"""`GET /api/v1/repositories/{name}/wait`: until a commit, or one that comes after it, can be searched."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from reposync.api.access import Role
from reposync.api.answers import Responses, ShuttingDown, errors
from reposync.api.envelope import ErrorAnswer, error_answer
from reposync.api.leaving import leaving_of
from reposync.api.models import Asked
from reposync.api.naming import NamedRoute, RepositoryName
from reposync.api.parts import ApiParts
from reposync.api.routing import Router
from reposync.errors import RepositoryNotFound
from reposync.search.commit_wait import CommitNotFound, CommitState, Relation, SearchableCommits
from reposync.sources.ancestry import CommitAmbiguous
from reposync.store.row_watch import TooManyWatchers
from reposync.store.run_keys import run_json

MAX_WAITING = 200
LONGEST_SECONDS = 300.0

_DESCRIPTION = """\
Answers 200 as soon as the index holds exactly `commit`, or a commit that has it in its history; a commit counts from \
the moment at which its sync was completed. It triggers nothing: `POST .../sync` does.

Whether one commit comes after another is asked of the source: of GitLab (one call for each new commit of the index, \
for all who wait), of the repository on this machine, or of the git server, which sends the names of the commits \
between the two. **A git server cannot always tell**: it looks up full names alone, and one without protocol version \
2 and filters none at all. Then only the indexed commit itself counts, a wait for a commit that was overtaken ends in \
504, `details.tells_descendants` is false and `details.limit` says why. It also says so if some files of the commit \
could not be read: the commit does not count before they can be."""


_NOT_YET_EXAMPLE = {
    "error": {
        "code": "NOT_SEARCHABLE_YET",
        "message": "Commit 8843d7f of 'payments-api' is not searchable yet: the index holds 3f786850e3. "
        "Run 0198b7c2-5f3e-7c1a-9d2b-3f6a1c5e8d70 is running.",
        "details": {
            "repository": "payments-api",
            "commit": "8843d7f",
            "last_commit": "3f786850e387550fdab836ed7e6dc881de23001b",
            "last_sync_at": "2026-03-01T12:00:04Z",
            "is_active": True,
            "paused_reason": None,
            "tells_descendants": True,
            "trouble": None,
            "limit": None,
            "run": {"id": "0198b7c2-5f3e-7c1a-9d2b-3f6a1c5e8d70", "status": "running"},
        },
    }
}
_NOT_YET: Responses = {
    504: {
        "model": ErrorAnswer,
        "description": "`NOT_SEARCHABLE_YET`: the time is over; `details` has the present state.",
        "content": {"application/json": {"example": _NOT_YET_EXAMPLE}},
    }
}


class WaitAsked(Asked):
    commit: str = Field(
        pattern="^[0-9a-fA-F]{7,64}$",
        description="Its name, or a unique beginning of 7 digits at least.",
        examples=["8843d7f"],
    )
    timeout: float = Field(
        30.0, ge=0, le=LONGEST_SECONDS, allow_inf_nan=False, description="Seconds; 0 asks for the present state."
    )


class Searchable(BaseModel):
    """`commit` as it was asked for. `last_commit` is what the index holds: the same commit, or a descendant of it."""

    repository: str
    commit: str
    relation: Relation
    last_commit: str
    last_sync_at: datetime | None

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "repository": "payments-api",
                "commit": "8843d7f",
                "relation": "descendant",
                "last_commit": "3f786850e387550fdab836ed7e6dc881de23001b",
                "last_sync_at": "2026-03-01T12:00:04Z",
            }
        }
    )


def wait_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix="/api/v1", tags=["repositories"], route_class=NamedRoute)
    commits = SearchableCommits(parts.application, max_waiting=MAX_WAITING)

    @routes.get(
        "/repositories/{name:path}/wait",
        summary="Wait until a commit can be searched",
        description=_DESCRIPTION,
        response_model=Searchable,
        dependencies=[parts.access.requires(Role.READ)],
        responses=errors(RepositoryNotFound, CommitNotFound, CommitAmbiguous, TooManyWatchers) | _NOT_YET,
    )
    async def wait_for_commit(
        request: Request,
        name: RepositoryName,
        asked: Annotated[WaitAsked, Query()],
    ) -> Searchable | Response:
        leaving = leaving_of(request)

        async def is_wanted() -> bool:
            return not leaving.is_set() and not await request.is_disconnected()

        state = await commits.wait(name, asked.commit.lower(), asked.timeout, is_wanted=is_wanted)
        if state.relation is not None and state.last_commit is not None:
            return Searchable(
                repository=state.repository,
                commit=asked.commit,
                relation=state.relation,
                last_commit=state.last_commit,
                last_sync_at=state.last_sync_at,
            )
        if leaving.is_set():
            raise ShuttingDown("This daemon is ending. Ask again.")
        return await _not_yet(commits, name, asked.commit, state)

    return routes


async def _not_yet(commits: SearchableCommits, name: str, commit: str, state: CommitState) -> Response:
    run = await commits.run_of(name)
    limit = state.limit
    if unread := await commits.unread_files(name, commit.lower()):
        files = "1 file" if unread == 1 else f"{unread:,} files"
        limit = f"{files} of this commit could not be read; the next run tries again, and all others can be searched."
    details: dict[str, Any] = {
        "repository": state.repository,
        "commit": commit,
        "last_commit": state.last_commit,
        "last_sync_at": state.last_sync_at,
        "is_active": state.is_active,
        "paused_reason": state.paused_reason,
        "tells_descendants": state.tells_descendants,
        "trouble": state.trouble,
        "limit": limit,
        "run": run_json(run) if run is not None else None,
    }
    holds = f"the index holds {state.last_commit[:10]}" if state.last_commit else "nothing of it is indexed completely"
    sentences = [f"Commit {commit} of {state.repository!r} is not searchable yet: {holds}."]
    if run is None:
        sentences.append("It was never synced.")
    elif run.is_final:
        sentences.append(f"No run is on its way; the latest is {run.status}.")
    else:
        sentences.append(f"Run {run.id} is {run.status}.")
    if state.trouble is not None:
        sentences.append(f"Whether it comes after the commit could not be asked: {state.trouble}")
    elif limit is not None:
        sentences.append(limit)
    return error_answer(504, "NOT_SEARCHABLE_YET", " ".join(sentences), to_jsonable_python(details))
