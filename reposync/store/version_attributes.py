"""The lines of `.gitattributes` that an index version was published with: up to 13 MB, loaded by runs and audits alone.

`index_versions.attributes` had them up to schema 0005. Programs of that time still read and write that column, so it
says where the latest lines are: `{"": [digest, ""]}` if they are in `version_attributes`, otherwise the lines
themselves. An older program takes that entry for a file that no commit has, and reads `.gitattributes` again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from reposync.store.tables import REPOSITORIES, VERSION_ATTRIBUTES, VERSIONS

AttributeFiles: TypeAlias = Mapping[str, Sequence[str]]
"""Path of a `.gitattributes` file -> (blob sha, its linguist lines)."""


def elsewhere(files: AttributeFiles) -> dict[str, list[str]]:
    """What the old column says if these are in `version_attributes`."""
    if not files:
        return {}
    digest = hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()
    return {"": [digest[:32], ""]}


async def load_attributes(connection: AsyncConnection, version_id: str) -> dict[str, list[str]]:
    """Empty if there are none. A first version has the id of its repository, where programs before 0.2 left theirs;
    this one leaves none there."""
    said: dict[str, list[str]] | None = None
    for table in (REPOSITORIES, VERSIONS):
        said = said or await connection.scalar(select(table.c.attributes).where(table.c.id == version_id))
    if not said:
        return {}
    if said.keys() == {""}:
        mine = VERSION_ATTRIBUTES.c
        query = select(mine.path, mine.blob_sha, mine.lines).where(mine.version_id == version_id)
        rows = await connection.execute(query)
        return {row.path: [row.blob_sha, row.lines] for row in rows}
    # An older program published last. If it could not prove its listing, it kept our entry beside its own.
    return {path: list(entry) for path, entry in said.items() if path}


async def write_attributes(
    connection: AsyncConnection, version_id: str, files: AttributeFiles, said: Mapping[str, Any]
) -> None:
    """Replace the version's lines, if they are others. `said`: `elsewhere(files)`, which the caller writes to the
    version's row in the same transaction."""
    known = await connection.scalar(select(VERSIONS.c.attributes).where(VERSIONS.c.id == version_id))
    if known == said:
        return
    await connection.execute(delete(VERSION_ATTRIBUTES).where(VERSION_ATTRIBUTES.c.version_id == version_id))
    rows = [
        {"version_id": version_id, "number": number, "path": path, "blob_sha": sha, "lines": lines}
        for number, (path, (sha, lines)) in enumerate(sorted(files.items()))
    ]
    if rows:
        await connection.execute(insert(VERSION_ATTRIBUTES), rows)
