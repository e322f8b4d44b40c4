"""The audit: who searched and read what, and when. Never what was found, and the words of queries only if the operator
wants them kept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Text, cast, delete, select, tuple_

from reposync.store.columns import sanitize_text
from reposync.store.database import Stored
from reposync.store.people_tables import AUDIT, AuditEntry

PURGE_BATCH = 1_000
_COLUMNS = tuple(AUDIT.c[name] for name in AuditEntry.model_fields)


class AuditLog(Stored):
    async def add(self, entries: Sequence[AuditEntry]) -> None:
        """Entries that are there already, because the end of an earlier call is unknown, stay as they are."""
        if entries:
            new = self._database.insert(AUDIT).on_conflict_do_nothing()
            async with self._database.write() as connection:
                await connection.execute(new, [each.model_dump() for each in entries])

    async def page(
        self,
        limit: int,
        *,
        before: tuple[datetime, str] | None = None,
        actor: str | None = None,
        repository: str | None = None,
        operation: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[AuditEntry]:
        """The newest first. `before`: time and id of the last one of the page before."""
        query = select(*_COLUMNS)
        if actor is not None:
            query = query.where(AUDIT.c.actor == sanitize_text(actor))
        if operation is not None:
            query = query.where(AUDIT.c.operation == sanitize_text(operation))
        if repository is not None:
            # As it stands in the list of names, in JSON.
            query = query.where(cast(AUDIT.c.repositories, Text).contains(json.dumps(repository), autoescape=True))
        if since is not None:
            query = query.where(AUDIT.c.at >= since)
        if until is not None:
            query = query.where(AUDIT.c.at < until)
        if before is not None:
            query = query.where(tuple_(AUDIT.c.at, AUDIT.c.id) < tuple_(*before))
        rows = await self._database.rows(query.order_by(AUDIT.c.at.desc(), AUDIT.c.id.desc()).limit(limit))
        return [AuditEntry.of(row) for row in rows]

    async def purge(self, before: datetime, *, batch: int = PURGE_BATCH) -> int:
        """Delete what was done before that time; how many entries. `batch`: entries in one transaction."""
        first = select(AUDIT.c.id).where(AUDIT.c.at < before).order_by(AUDIT.c.at, AUDIT.c.id).limit(batch)
        count = 0
        while True:
            began = time.monotonic()
            async with self._database.write() as connection:
                ids = await connection.scalars(first.with_for_update(skip_locked=True))
                await connection.execute(delete(AUDIT).where(AUDIT.c.id.in_(ids)))
            count += len(ids)
            if len(ids) < batch:
                return count
            # As `RunHistory.purge` does.
            await asyncio.sleep(time.monotonic() - began)
