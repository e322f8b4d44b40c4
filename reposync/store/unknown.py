"""The error about a repository's name that nobody has, with the nearest that somebody has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.errors import Remedy, RepositoryNotFound
from reposync.store.tables import REPOSITORIES


def no_such_repository(name: str, known: Iterable[str]) -> RepositoryNotFound:
    near = difflib.get_close_matches(name, list(known), n=1)
    return RepositoryNotFound(
        f"No repository {name!r} is registered.",
        remedy=f"Did you mean {near[0]!r}?"
        if near
        else Remedy("`reposync repos list` names those that are.", "`GET /api/v1/repositories` names those that are."),
    )


async def unknown_repository(connection: AsyncConnection, name: str) -> RepositoryNotFound:
    """As `no_such_repository`, among all names."""
    return no_such_repository(name, (await connection.execute(select(REPOSITORIES.c.name))).scalars())
