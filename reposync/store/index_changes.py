"""Counts over all indexes, made by the database: pages and metrics ask for them, and few rows come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, and_, cast, func, literal_column, null, or_, select

from reposync.store.database import Database
from reposync.store.tables import FILES, REPOSITORIES, VERSIONS
from reposync.store.versions import VersionState


@dataclass(frozen=True, slots=True)
class AlikeIndexes:
    """Active repositories of a collection whose live versions are alike. `live_collection`: the name that these were
    made under, None without a live version; `spec`: of their model, None where it is not known. `chunks` is 0 where it
    was not asked for."""

    collection: str
    live_collection: str | None
    spec: Mapping[str, Any] | None
    is_held: bool
    is_building: bool
    repositories: int
    chunks: int


async def alike_indexes(database: Database, *, count_chunks: bool) -> list[AlikeIndexes]:
    """Of all active repositories with something indexed. Raises StoreUnavailable."""
    each, live = REPOSITORIES.c, VERSIONS.c
    building = VERSIONS.alias("building")
    is_building = select(building.c.id).where(
        building.c.repository_id == each.id, building.c.state == literal_column("'building'")
    )
    groups = (
        each.collection.label("collection"),
        live.collection.label("live_collection"),
        cast(live.settings["spec"], Text).label("spec"),
        each.index_hold.is_not(None).label("is_held"),
        is_building.exists().label("is_building"),
    )
    own = and_(live.repository_id == each.id, live.state == literal_column("'live'"))
    joined = REPOSITORIES.outerjoin(VERSIONS, own)
    chunks: Any = null()
    if count_chunks:
        held = select(FILES.c.repository_id, func.sum(FILES.c.chunks).label("chunks")).group_by(FILES.c.repository_id)
        counts = held.subquery()
        joined = joined.outerjoin(counts, counts.c.repository_id == live.id)
        chunks = counts.c.chunks
    indexed = (
        select(*groups, chunks.label("chunks"))
        .select_from(joined)
        .where(each.is_active, or_(live.id.is_not(None), each.last_sync_at.is_not(None)))
        .subquery()
    )
    keys = [indexed.c[column.name] for column in groups]
    total = func.coalesce(func.sum(indexed.c.chunks), 0) if count_chunks else literal_column("0")
    query = select(*keys, func.count().label("repositories"), total.label("chunks")).group_by(*keys)
    async with database.read() as connection:
        rows = (await connection.execute(query)).all()
    return [
        AlikeIndexes(
            row.collection,
            row.live_collection,
            None if row.spec is None else json.loads(row.spec),
            bool(row.is_held),
            bool(row.is_building),
            row.repositories,
            int(row.chunks),
        )
        for row in rows
    ]


async def version_states(database: Database) -> dict[str, int]:
    """How many versions of all indexes are in each state. Raises StoreUnavailable."""
    query = select(VERSIONS.c.state, func.count()).group_by(VERSIONS.c.state)
    async with database.read() as connection:
        counted = {row[0]: row[1] for row in await connection.execute(query)}
    return {**{state.value: 0 for state in VersionState}, **counted}
