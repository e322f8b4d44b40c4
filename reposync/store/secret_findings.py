"""Secrets that were found in indexed files: where, of which kind, since which commit; never their values."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, insert, or_, select, tuple_

from reposync.finding import Finding
from reposync.store.attempts import require_held
from reposync.store.columns import path_key
from reposync.store.database import Stored
from reposync.store.repository_rows import lock_repositories
from reposync.store.run import Run
from reposync.store.tables import FINGERPRINT_KEYS, REPOSITORIES, SECRET_FINDINGS, SecretFinding

_COLUMNS = tuple(SECRET_FINDINGS.c[name] for name in SecretFinding.model_fields)
_PLACE = (SECRET_FINDINGS.c.path, SECRET_FINDINGS.c.line, SECRET_FINDINGS.c.rule, SECRET_FINDINGS.c.fingerprint)
_KEY_ID = "fingerprints"


class SecretFindings(Stored):
    """Methods that take a run raise LeaseLost, and then have written nothing."""

    async def key(self) -> bytes:
        """The key of the fingerprints: random, the same for all processes of the database."""
        query = select(FINGERPRINT_KEYS.c.key)
        found = await self._database.scalars(query)
        if not found:
            new = self._database.insert(FINGERPRINT_KEYS).values(id=_KEY_ID, key=secrets.token_hex(32))
            await self._database.change(new.on_conflict_do_nothing())
            found = await self._database.scalars(query)
        return bytes.fromhex(found[0])

    async def first_lines(self, repository_id: str) -> dict[str, int]:
        """The line of the first finding of each file with any, by the key (`path_key`) of its path."""
        mine = SECRET_FINDINGS.c.repository_id == repository_id
        query = select(SECRET_FINDINGS.c.path, func.min(SECRET_FINDINGS.c.line)).where(mine)
        return {row[0]: row[1] for row in await self._database.rows(query.group_by(SECRET_FINDINGS.c.path))}

    async def record(self, run: Run, commit: str, files: Mapping[str, Sequence[Finding]]) -> None:
        """Replace the findings of these files (by path). One that was seen before, wherever in the repository, keeps
        the commit that it was first seen in."""
        if not files:
            return
        mine = SECRET_FINDINGS.c.repository_id == run.repository_id
        keys = sorted(map(path_key, files))
        async with self._database.write() as connection:
            # Another one that adds rows between this deletion and insertion waits.
            own = REPOSITORIES.c.id == run.repository_id
            if not await lock_repositories(connection, own, [REPOSITORIES.c.id]):
                return  # it was removed meanwhile, which the run notices
            await require_held(connection, run)
            seen: dict[tuple[str, str], tuple[str, Any]] = {}
            for row in await connection.rows(select(*_COLUMNS).where(mine).order_by(SECRET_FINDINGS.c.first_seen_at)):
                seen.setdefault((row.rule, row.fingerprint), (row.first_commit, row.first_seen_at))
            await connection.execute(delete(SECRET_FINDINGS).where(mine, SECRET_FINDINGS.c.path.in_(keys)))
            now = await connection.now()
            rows = {
                (path_key(path), finding.line, finding.rule, finding.fingerprint): finding.action
                for path, findings in files.items()
                for finding in findings
            }
            if rows:
                await connection.execute(
                    insert(SECRET_FINDINGS),
                    [
                        {
                            **dict(zip(("path", "line", "rule", "fingerprint"), place, strict=True)),
                            **dict(
                                zip(("first_commit", "first_seen_at"), seen.get(place[2:], (commit, now)), strict=True)
                            ),
                            "action": action,
                            "repository_id": run.repository_id,
                        }
                        for place, action in sorted(rows.items())
                    ],
                )

    async def page(
        self, repository_id: str | None, after: Sequence[Any] | None, limit: int
    ) -> list[tuple[str, SecretFinding]]:
        """Findings with the names of their repositories, by name and place. `repository_id`: only of this one; `after`:
        name and place of the last one of the page before."""
        query = select(REPOSITORIES.c.name.label("repository"), *_COLUMNS).join_from(
            SECRET_FINDINGS, REPOSITORIES, REPOSITORIES.c.id == SECRET_FINDINGS.c.repository_id
        )
        order = (REPOSITORIES.c.name, *_PLACE)
        if repository_id is not None:
            query = query.where(REPOSITORIES.c.id == repository_id)
        if after is not None:
            query = query.where(tuple_(*order) > tuple_(*after))
        rows = await self._database.rows(query.order_by(*order).limit(limit))
        return [(row.repository, SecretFinding.of(row)) for row in rows]

    async def counts(self, repository_ids: Collection[str] | None = None) -> dict[str, int]:
        """How many there are, by repository (id)."""
        column = SECRET_FINDINGS.c.repository_id
        query = select(column, func.count()).group_by(column)
        if repository_ids is not None:
            query = query.where(column.in_(sorted(repository_ids)))
        return {row[0]: row[1] for row in await self._database.rows(query)}

    async def first_seen(self, repository_id: str, commit: str) -> int:
        """How many were seen first in this commit, and are still there."""
        mine = SECRET_FINDINGS.c.repository_id == repository_id, SECRET_FINDINGS.c.first_commit == commit
        return int((await self._database.scalars(select(func.count()).where(*mine)))[0])

    async def hidden_files(self, repository_id: str) -> int:
        """How many files are masked or left out."""
        mine = SECRET_FINDINGS.c.repository_id == repository_id
        hidden = or_(SECRET_FINDINGS.c.action == "mask", SECRET_FINDINGS.c.action == "skip")
        query = select(func.count(SECRET_FINDINGS.c.path.distinct())).where(mine, hidden)
        return int((await self._database.scalars(query))[0])
