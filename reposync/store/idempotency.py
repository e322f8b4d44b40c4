"""Requests that a client may send again: the run that the first one led to is returned."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import select

from reposync.errors import RepoSyncError
from reposync.store.database import Connection, Database
from reposync.store.run import Run
from reposync.store.tables import IDEMPOTENCY_KEYS, RUNS

KEY_SECONDS = 24 * 3600.0
"""How long an `Idempotency-Key` is kept."""
_KEYED = uuid.UUID("3d7c0f52-8f0e-4bb4-9d0a-4c1f0f1c7a6e")


class IdempotencyKeyReused(RepoSyncError):
    """The key was sent before, with a different request."""

    code = "IDEMPOTENCY_KEY_REUSED"
    status = 422


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The `Idempotency-Key` of a request that may be sent again. `fingerprint`: of what is requested."""

    key: str
    fingerprint: str

    @classmethod
    def of(cls, asked_by: str, credential: str, key: str, fingerprint: str) -> RequestKey:
        """`asked_by` alone does not identify the client: a token's place in the list may be that of a different token
        later."""
        return cls(str(uuid.uuid5(_KEYED, f"{asked_by}\n{credential}\n{key}")), fingerprint)


async def repeated(connection: Connection, key: RequestKey) -> Run | None:
    """The run of a request of the last 24 hours. Raises IdempotencyKeyReused if its fingerprint differs."""
    keys = IDEMPOTENCY_KEYS.c
    query = select(*RUNS.c, keys.fingerprint).join_from(IDEMPOTENCY_KEYS, RUNS, keys.run_id == RUNS.c.id)
    lately = keys.created_at >= connection.moment(-KEY_SECONDS)
    row = await connection.one_or_none(query.where(keys.key == key.key, lately))
    if row is not None and row.fingerprint != key.fingerprint:
        raise _key_reused()
    return None if row is None else Run.of(row)


async def remember(connection: Connection, database: Database, key: RequestKey, run: Run) -> None:
    new = database.insert(IDEMPOTENCY_KEYS).values(
        key=key.key, fingerprint=key.fingerprint, run_id=run.id, created_at=connection.moment()
    )
    replaced = {name: new.excluded[name] for name in ("fingerprint", "run_id", "created_at")}
    is_old = IDEMPOTENCY_KEYS.c.created_at < connection.moment(-KEY_SECONDS)
    if not await connection.change(new.on_conflict_do_update(index_elements=["key"], set_=replaced, where=is_old)):
        raise _key_reused()  # for a different repository, at the same time


def _key_reused() -> IdempotencyKeyReused:
    return IdempotencyKeyReused(
        "This Idempotency-Key was sent with a different request before.",
        remedy="Send a new key with each new request, and the same one only to repeat it.",
    )
