"""`GET /api/v1/repositories/{name}/wait`: until a commit, or a descendant of it, can be searched."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from reposync.api.errors import NotSearchableYet, ShuttingDown
from reposync.api.models import MAX_WAIT_SECONDS, RequestModel
from reposync.api.routing import PREFIX, ApiParts, RepositoryName, Router
from reposync.api.server import stopping_of
from reposync.app.commit_wait import CommitNotFound, CommitState, Relation, SearchableCommits
from reposync.errors import RepositoryNotFound
from reposync.sources.ancestry import CommitAmbiguous
from reposync.store.notifications import TooManyWatchers

MAX_WAITING = 200

_DESCRIPTION = """\
Responds with 200 as soon as the index holds exactly `commit`, or a descendant of it; a commit counts from the end of \
its sync. It triggers nothing: `POST .../sync` does.

GitLab or the repository on this machine decides whether one commit is a descendant of another, with one call per new \
commit of the index for all waiting clients. **Plain git servers cannot compare commits**: the indexed commit itself \
counts, and a run that began after the request (`relation` is then `later`); otherwise the wait ends in 504, \
`details.tells_descendants` is false and `details.limit` gives the reason. It also says if some files of the commit \
could not be read: the commit does not count before they can be."""


class WaitQuery(RequestModel):
    commit: str = Field(
        pattern="^[0-9a-fA-F]{7,64}$",
        description="Its name, or a unique prefix of at least 7 digits.",
        examples=["8843d7f"],
    )
    timeout: float = Field(
        30.0, ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False, description="Seconds; 0 returns the current state."
    )


class Searchable(BaseModel):
    """`commit` as requested. `last_commit` is what the index holds: the same commit, or a descendant of it."""

    repository: str
    commit: str
    relation: Relation
    last_commit: str
    last_sync_at: datetime | None


def wait_routes(parts: ApiParts) -> APIRouter:
    routes = Router(prefix=PREFIX, tags=["repositories"])
    commits = SearchableCommits(parts.application, max_waiting=MAX_WAITING)

    @routes.get(
        "/repositories/{name:path}/wait",
        summary="Wait until a commit can be searched",
        description=_DESCRIPTION,
        **parts.reads(RepositoryNotFound, CommitNotFound, CommitAmbiguous, TooManyWatchers, NotSearchableYet),
    )
    async def wait_for_commit(
        request: Request, name: RepositoryName, query: Annotated[WaitQuery, Query()]
    ) -> Searchable:
        stopping = stopping_of(request)

        async def is_wanted() -> bool:
            return not stopping.is_set() and not await request.is_disconnected()

        state = await commits.wait(name, query.commit.lower(), query.timeout, is_wanted=is_wanted)
        if state.relation is not None and state.last_commit is not None:
            return Searchable(
                repository=state.repository,
                commit=query.commit,
                relation=state.relation,
                last_commit=state.last_commit,
                last_sync_at=state.last_sync_at,
            )
        if stopping.is_set():
            raise ShuttingDown
        raise await _not_yet(commits, name, query.commit, state)

    return routes


async def _not_yet(commits: SearchableCommits, name: str, commit: str, state: CommitState) -> NotSearchableYet:
    run = await commits.run_of(name)
    limit = state.limit
    if unread := await commits.unread_files(name, commit.lower()):
        files = "1 file" if unread == 1 else f"{unread:,} files"
        limit = f"{files} of this commit could not be read; the next run tries again. All others can be searched."
    holds = (
        f"the index holds {state.last_commit[:10]}" if state.last_commit else "no commit of it is indexed completely"
    )
    if run is None:
        latest = "It has never been synced."
    elif run.is_final:
        latest = f"No run is queued or running; the latest is {run.status}."
    else:
        latest = f"Run {run.id} is {run.status}."
    sentences = [f"Commit {commit} of {state.repository!r} is not searchable yet: {holds}.", latest]
    if state.trouble is not None:
        sentences.append(f"The source could not say whether it is a descendant of the commit: {state.trouble}")
    elif limit is not None:
        sentences.append(limit)
    details = {**to_jsonable_python(state), "commit": commit, "limit": limit}
    del details["relation"]
    return NotSearchableYet(" ".join(sentences), to_jsonable_python({**details, "run": run and run.document}))
