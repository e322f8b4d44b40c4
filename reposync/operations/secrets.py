"""Secrets that were found in indexed code: where they are, never their values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from reposync.errors import UsageError
from reposync.operations.core import Actor, NoArguments, Rule, operation
from reposync.operations.fields import Page, PageArguments, cursor_after, key_before
from reposync.operations.runs import Run
from reposync.operations.syncs import SyncOptions, sync

if TYPE_CHECKING:
    from reposync.app.application import Application

_ORDER = ("repository", "path", "line", "rule", "fingerprint")


class FoundSecret(BaseModel):
    """`fingerprint`: a keyed hash; equal ones are the same value. `action`: mask, skip or warn, which is what was done.
    `first_commit`: of the sync that saw it first."""

    repository: str
    path: str
    line: int
    rule: str
    fingerprint: str
    action: str
    first_commit: str
    first_seen_at: datetime


class SecretsPage(Page[FoundSecret]):
    """By repository and place. `next_cursor` is null on the last page."""


# Where secrets are is a map for an attacker: not for everybody who may read.
@operation("GET", "/secrets", PageArguments, SecretsPage, rule=Rule.MAINTAIN)
async def found_secrets(app: Application, actor: Actor, asked: PageArguments) -> SecretsPage:
    """The secrets in the indexed files of all repositories, without their values."""
    return await _page(app, asked, None)


@operation("GET", "/repositories/{name}/secrets", PageArguments, SecretsPage, rule=Rule.MAINTAIN)
async def repository_secrets(
    app: Application, actor: Actor, asked: PageArguments, *, name: str, identity: str | None = None
) -> SecretsPage:
    """The secrets in the indexed files of a repository, without their values."""
    return await _page(app, asked, (await app.repositories.get(name, identity)).id)


@operation(
    "POST", "/repositories/{name}/secrets/purge", NoArguments, Run, rule=Rule.MAINTAIN, executes=True, uses_index=True
)
async def purge(app: Application, actor: Actor, asked: NoArguments, *, name: str, identity: str | None = None) -> Run:
    """Request a sync now, which applies the present rules for secrets to all that is indexed, as each sync does. It
    does not replace rotating a secret."""
    return await sync(app, actor, SyncOptions(), name=(await app.repositories.get(name, identity)).name)


async def _page(app: Application, asked: PageArguments, identity: str | None) -> SecretsPage:
    after = None if asked.cursor is None else _place(key_before(asked.cursor))
    rows = await app.findings.page(identity, after, asked.limit + 1)
    items = [FoundSecret(repository=name, **row.model_dump()) for name, row in rows[: asked.limit]]
    more = len(rows) > asked.limit
    cursor = cursor_after(json.dumps([getattr(items[-1], key) for key in _ORDER])) if more else None
    return SecretsPage(items=items, next_cursor=cursor)


def _place(key: str) -> Sequence[Any]:
    try:
        place = json.loads(key)
    except ValueError:
        place = None
    match place:
        case [str(), str(), int(), str(), str()]:
            return list(place)
    raise UsageError("This cursor is not valid.", remedy="Use `next_cursor` of the previous page.")
