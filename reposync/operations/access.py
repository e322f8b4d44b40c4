"""What an actor sees, and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from reposync.operations.core import Actor, Rule, operation, ruled
from reposync.operations.fields import NamesArguments, Page, page_of_names

if TYPE_CHECKING:
    from reposync.app.access_reasons import Explained
    from reposync.app.application import Application


class SeenRepository(BaseModel):
    name: str
    reason: str | None = Field(description="Null if it is not known.", examples=["member: Developer"])
    maintained: bool = Field(description="The actor may start and pause its syncs.")


class AccessPage(Page[SeenRepository]):
    """`total` and `visible` are the same on every page. `next_cursor` is null on the last page."""

    actor: str = Field(description="Who asks: a person, a job, a token by its name.", examples=["@ann"])
    visible: int = Field(description="How many repositories the actor sees.")
    total: int | None = Field(description="How many are registered. Null for a service token for some of them.")
    as_of: datetime = Field(description="When that was decided.")
    gitlab: str | None = Field(description="The server that decided; null for service tokens.")
    is_explained: bool = Field(description="False: GitLab did not say why it shows its projects.")


Explain = Callable[[], Awaitable["tuple[Explained, int] | None"]]
"""What GitLab lets the actor see, and how many repositories are registered; None for one that GitLab does not know."""


async def _not_by_gitlab() -> None:
    return None


@operation("GET", "/access", NamesArguments, AccessPage, rule=Rule.READ)
async def access(app: Application, actor: Actor, asked: NamesArguments) -> AccessPage:
    """The repositories that the sender of the request sees, by name, and why: GitLab is asked for the role in each
    project."""
    return await explained_access(app, actor, asked, explain=_not_by_gitlab)


@ruled(Rule.READ)
async def explained_access(app: Application, actor: Actor, asked: NamesArguments, *, explain: Explain) -> AccessPage:
    """As `access`, for a front end that knows what GitLab answered."""
    names = await app.repositories.names_of()
    found = await explain()
    sees_all = actor.visible.is_everything
    explained, total = (None, len(names) if sees_all else None) if found is None else found
    ids = {name: identity for identity, name in names.items()}
    page, next_cursor = page_of_names(ids, asked)

    def reason(identity: str) -> str | None:
        if explained is not None:
            return explained.reasons.get(identity) or None
        return "all repositories" if sees_all else "the token is for it"

    return AccessPage(
        items=[
            SeenRepository(name=name, reason=reason(ids[name]), maintained=ids[name] in actor.maintains)
            for name in page
        ],
        next_cursor=next_cursor,
        actor=actor.name,
        visible=len(names),
        total=total,
        as_of=explained.as_of if explained is not None else app.now(),
        gitlab=explained.gitlab if explained is not None else None,
        is_explained=explained is None or explained.is_complete,
    )
