"""The files of an index version by folder, and why files are not indexed."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, ColumnElement, case, cast, desc, func, select

from reposync.store.columns import sanitize_text
from reposync.store.database import Database
from reposync.store.manifest import IS_FAILED
from reposync.store.tables import FILES


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file or a folder, of which `files` is None or the number of files in it. `name` ends with `/` for a folder.
    `size_bytes`: of files whose size is known. `indexed`, `failed`: files. `skip_reason`, `language`: of a file."""

    name: str
    files: int | None
    indexed: int
    failed: int
    chunks: int
    size_bytes: int
    skip_reason: str | None
    language: str | None


async def folder(database: Database, version: str, path: str, limit: int) -> list[TreeEntry]:
    """What is in the folder `path` of an index version ("": at the top): folders first, then files, by name."""
    column, prefix = FILES.c.path, sanitize_text(f"{path}/" if path else "")
    rest = func.substr(column, len(prefix) + 1)
    position = func.strpos if database.is_postgresql else func.instr
    slash = position(rest, "/")
    is_folder = case((slash > 0, 1), else_=0)
    # A long path is stored as its beginning and a hash (`path_key`).
    name = case((slash > 0, func.substr(rest, 1, slash)), else_=func.coalesce(FILES.c.long_path, column))
    query = (
        select(
            *(name.label("name"), func.max(is_folder).label("is_folder"), func.count()),
            *(func.count().filter(FILES.c.chunks > 0), func.count().filter(IS_FAILED)),
            *(_sum(FILES.c.chunks), _sum(FILES.c.size_bytes)),
            *(func.max(FILES.c.skip_reason), func.max(FILES.c.language)),
        )
        .where(FILES.c.repository_id == version, func.substr(column, 1, len(prefix)) == prefix)
        # By their labels: PostgreSQL takes the same expression with other parameters for a different one.
        .group_by("name")
        .order_by(desc("is_folder"), "name")
        .limit(limit)
    )
    return [
        TreeEntry(name, files, indexed, failed, chunks, size, None, None)
        if is_folder
        else TreeEntry(name.removeprefix(prefix), None, indexed, failed, chunks, size, skip_reason, language)
        for name, is_folder, files, indexed, failed, chunks, size, skip_reason, language in await database.rows(query)
    ]


async def skip_counts(database: Database, version: str) -> dict[str, int]:
    """How many files of an index version are not indexed, by reason; the most frequent one first."""
    reason, number = FILES.c.skip_reason, func.count()
    mine = select(reason, number).where(FILES.c.repository_id == version, reason.is_not(None))
    return dict(await database.rows(mine.group_by(reason).order_by(number.desc())))


def _sum(column: Column[int]) -> ColumnElement[int]:
    # PostgreSQL's sum of such numbers is a decimal.
    return cast(func.coalesce(func.sum(column), 0), BigInteger)
