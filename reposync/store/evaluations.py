"""Figures of past evaluations of search, a row for each; not the questions, which hold words of commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import delete, select

from reposync.errors import RepositoryNotFound
from reposync.store.database import Stored
from reposync.store.repository_rows import lock_repositories
from reposync.store.tables import EVALUATIONS, REPOSITORIES, StoredEvaluation

MOST_KEPT: Final = 200
"""Of each repository."""
_COLUMNS = tuple(EVALUATIONS.c[name] for name in StoredEvaluation.model_fields)


class Evaluations(Stored):
    async def add(self, repository_id: str, values: Mapping[str, Any]) -> None:
        """`values`: the columns of `StoredEvaluation`. The oldest rows beyond MOST_KEPT are deleted. Raises
        RepositoryNotFound if the repository was removed meanwhile."""
        mine = EVALUATIONS.c.repository_id == repository_id
        newest = select(EVALUATIONS.c.id).where(mine).order_by(EVALUATIONS.c.at.desc(), EVALUATIONS.c.id.desc())
        async with self._database.write() as connection:
            if not await lock_repositories(connection, REPOSITORIES.c.id == repository_id, [REPOSITORIES.c.id]):
                raise RepositoryNotFound("The repository was removed during the evaluation.")
            insert = self._database.insert(EVALUATIONS).on_conflict_do_nothing()
            await connection.execute(insert, [{**values, "repository_id": repository_id}])
            kept = await connection.scalars(newest.limit(MOST_KEPT))
            await connection.execute(delete(EVALUATIONS).where(mine, EVALUATIONS.c.id.not_in(kept)))

    async def of(self, repository_id: str, limit: int) -> list[StoredEvaluation]:
        """The newest first."""
        query = select(*_COLUMNS).where(EVALUATIONS.c.repository_id == repository_id)
        rows = await self._database.rows(query.order_by(EVALUATIONS.c.at.desc(), EVALUATIONS.c.id.desc()).limit(limit))
        return [StoredEvaluation.of(row) for row in rows]
