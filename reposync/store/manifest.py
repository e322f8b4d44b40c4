"""The manifest: for every file of a repository, the blob that the index holds, or why it holds none."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    and_,
    bindparam,
    case,
    cast,
    delete,
    desc,
    func,
    or_,
    select,
    true,
    tuple_,
)

from reposync.store.attempts import fence
from reposync.store.changes import change_rows
from reposync.store.columns import path_key, sanitize_text
from reposync.store.database import Stored
from reposync.store.run import Run, RunChange
from reposync.store.tables import FILES, VERSIONS

LOAD_ROWS = 5_000
# Among which the nearest paths are found.
_NEAR_ROWS = 300


class ManifestRow(NamedTuple):
    """One file. This is a tuple, because there are many."""

    path: str
    """Text from `path_text`."""
    blob_sha: str
    mode: int
    size_bytes: int | None
    chunks: int
    """The index holds this number of its points; 0 with a `skip_reason`."""
    skip_reason: str | None
    language: str | None
    epoch: int
    """The attempt with this epoch wrote its points."""
    wanted_sha: str | None = None
    """The blob of the commit, if that could not be read and the points are still those of `blob_sha`. Empty: unknown,
    or that blob with points made with other settings."""
    reader: str | None = None
    """A digest of the settings that its points depend on."""

    @property
    def is_outdated(self) -> bool:
        """Whether its points belong to an older blob than the commit's."""
        return self.wanted_sha is not None and self.wanted_sha != self.blob_sha

    @property
    def is_failed(self) -> bool:
        """Whether the commit's blob could not be read or embedded."""
        return self.skip_reason == "failed" or self.is_outdated


@dataclass(frozen=True, slots=True)
class ManifestCounts:
    """Files without a skip reason, files with one, points, and how many files could not be read or embedded."""

    files: int = 0
    skipped: int = 0
    chunks: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class ManifestTotals(ManifestCounts):
    """`max_epoch`: the newest epoch that wrote a present point (0: none); `chunks_of_max_epoch`: how many."""

    max_epoch: int = 0
    chunks_of_max_epoch: int = 0


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


class LanguageCount(NamedTuple):
    """The indexed files of one language; None: no language is known."""

    language: str | None
    files: int
    size_bytes: int


class Breakdown(NamedTuple):
    skipped: Mapping[str, int]
    """How many files are not indexed, by reason; the most frequent one first."""
    languages: Sequence[LanguageCount]
    """The largest first."""


# A long path is stored as its beginning and a hash (`path_key`).
_PATH = func.coalesce(FILES.c.long_path, FILES.c.path)
_ROWS = select(_PATH, *(FILES.c[name] for name in ManifestRow._fields[1:]))
_OUTDATED = and_(FILES.c.wanted_sha.is_not(None), FILES.c.wanted_sha != FILES.c.blob_sha)
_IS_FAILED = or_(FILES.c.skip_reason == "failed", _OUTDATED)


def _sum(column: ColumnElement[Any]) -> ColumnElement[int]:
    # PostgreSQL's sum of such numbers is a decimal.
    return cast(func.coalesce(func.sum(column), 0), BigInteger)


_COUNTS = (
    func.count().filter(FILES.c.skip_reason.is_(None)),
    func.count(FILES.c.skip_reason),
    _sum(FILES.c.chunks),
    func.count().filter(_IS_FAILED),
)


def share_done(left: int, total: int) -> float:
    return max(0.0, 1.0 - left / max(1, total))


class Manifests(Stored):
    """The manifests of index versions. Methods that take a run raise LeaseLost, and then have written nothing."""

    async def load(self, version_id: str) -> dict[str, ManifestRow]:
        """All rows by path. 50,000 take about 20 MB."""
        rows: dict[str, ManifestRow] = {}
        query = _ROWS.where(FILES.c.version_id == version_id).order_by(FILES.c.path).limit(LOAD_ROWS)
        last = ""
        while page := await self._database.rows(query.where(FILES.c.path > last)):
            rows |= {row[0]: _row(row) for row in page}
            last = path_key(page[-1][0])
        return rows

    async def file(self, version_id: str, path: str) -> ManifestRow | None:
        """The row of this path."""
        mine = and_(FILES.c.version_id == version_id, FILES.c.path == path_key(path))
        return next((_row(row) for row in await self._database.rows(_ROWS.where(mine))), None)

    async def near(self, version_id: str, path: str, limit: int = 3) -> list[str]:
        """Paths of indexed files that somebody may mean by `path`: files in that folder; else those with the same name,
        then those of its folder with a similar one."""
        wanted = path.strip("/")
        folder, name = wanted.rpartition("/")[0], wanted.rpartition("/")[2]
        low = func.lower(FILES.c.path)
        indexed = select(_PATH).where(FILES.c.version_id == version_id, FILES.c.chunks > 0)
        beneath = indexed.where(FILES.c.path.startswith(f"{wanted}/", autoescape=True)).order_by(FILES.c.path)
        if found := await self._database.scalars(beneath.limit(limit)):
            return list(found)
        named = or_(low == name.lower(), low.endswith(f"/{name.lower()}", autoescape=True))
        beside = FILES.c.path.startswith(f"{folder}/", autoescape=True) if folder else true()
        likely = indexed.where(or_(named, beside)).order_by(named.desc(), FILES.c.path).limit(_NEAR_ROWS)
        paths = list(await self._database.scalars(likely))
        same = [each for each in paths if each.lower().endswith(name.lower())]
        return list(dict.fromkeys([*sorted(same, key=len), *difflib.get_close_matches(wanted, paths, limit)]))[:limit]

    async def record(
        self, run: Run, version_id: str, rows: Sequence[ManifestRow], changes: Sequence[RunChange] = ()
    ) -> None:
        """Insert or replace by path, in one transaction, in which `changes` are listed of the run, too."""
        if not rows:
            return
        insert = self._database.insert(FILES)
        replaced = [column.name for column in FILES.c if not column.primary_key]
        upsert = insert.on_conflict_do_update(
            index_elements=[FILES.c.version_id, FILES.c.path],
            set_={name: insert.excluded[name] for name in replaced},
        )
        async with self._database.write(fence(run)) as connection:
            await connection.change(upsert, [_stored(version_id, row) for row in rows])
            if changes:
                await connection.change(*change_rows(self._database, run, changes))

    async def forget(self, run: Run, version_id: str, paths: Iterable[str]) -> None:
        """Delete the rows of these paths, if present, in one transaction."""
        keys = [{"key": path_key(path)} for path in paths]
        if not keys:
            return
        query = delete(FILES).where(FILES.c.version_id == version_id, FILES.c.path == bindparam("key"))
        await self._database.change(query, keys, fence(run))

    async def meaning_indexed(self, identities: Collection[str]) -> dict[str, float]:
        """For those of these versions that are still found by words alone, the share (0 to 1) of their points that have
        dense vectors."""
        points = select(_sum(FILES.c.chunks)).where(FILES.c.version_id == VERSIONS.c.id).scalar_subquery()
        query = select(VERSIONS.c.id, VERSIONS.c.meaning_pending, points)
        query = query.where(VERSIONS.c.id.in_(sorted(identities)), VERSIONS.c.meaning_pending.is_not(None))
        return {row[0]: share_done(row[1], row[2]) for row in await self._database.rows(query)}

    async def counts(self, identities: Collection[str] | None = None) -> dict[str, ManifestCounts]:
        """By id, of every version that has rows. `identities`: only of these."""
        query = select(FILES.c.version_id, *_COUNTS).group_by(FILES.c.version_id)
        if identities is not None:
            query = query.where(FILES.c.version_id.in_(identities))
        return {row[0]: ManifestCounts(*row[1:]) for row in await self._database.rows(query)}

    async def totals(self, version_id: str) -> ManifestTotals:
        """What the index should hold, in one query."""
        mine = FILES.c.version_id == version_id
        newest = select(func.coalesce(func.max(FILES.c.epoch), 0)).where(mine, FILES.c.chunks > 0).scalar_subquery()
        of_newest = _sum(case((FILES.c.epoch == newest, FILES.c.chunks), else_=0))
        return ManifestTotals(*(await self._database.rows(select(*_COUNTS, newest, of_newest).where(mine)))[0])

    async def outdated(self, files: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """The (version id, path) of these whose points belong to an older blob than the commit's."""
        keys = {(version_id, path_key(path)): (version_id, path) for version_id, path in files}
        if not keys:
            return set()
        query = select(FILES.c.version_id, FILES.c.path).where(
            tuple_(FILES.c.version_id, FILES.c.path).in_(sorted(keys)), _OUTDATED
        )
        return {keys[row[0], row[1]] for row in await self._database.rows(query)}

    async def folder(self, version_id: str, path: str, limit: int) -> list[TreeEntry]:
        """What is in the folder `path` ("": at the top): folders first, then files, by name."""
        column, prefix = FILES.c.path, sanitize_text(f"{path}/" if path else "")
        rest = func.substr(column, len(prefix) + 1)
        slash = (func.strpos if self._database.is_postgresql else func.instr)(rest, "/")
        name = case((slash > 0, func.substr(rest, 1, slash)), else_=_PATH)
        query = (
            select(
                *(name.label("name"), func.max(case((slash > 0, 1), else_=0)).label("is_folder"), func.count()),
                *(func.count().filter(FILES.c.chunks > 0), func.count().filter(_IS_FAILED)),
                *(_sum(FILES.c.chunks), _sum(FILES.c.size_bytes)),
                *(func.max(FILES.c.skip_reason), func.max(FILES.c.language)),
            )
            .where(FILES.c.version_id == version_id, func.substr(column, 1, len(prefix)) == prefix)
            # By their labels: PostgreSQL takes the same expression with other parameters for a different one.
            .group_by("name")
            .order_by(desc("is_folder"), "name")
            .limit(limit)
        )
        rows = await self._database.rows(query)
        return [
            TreeEntry(name, files, indexed, failed, chunks, size, None, None)
            if is_folder
            else TreeEntry(name.removeprefix(prefix), None, indexed, failed, chunks, size, skip_reason, language)
            for name, is_folder, files, indexed, failed, chunks, size, skip_reason, language in rows
        ]

    async def breakdown(self, version_id: str) -> Breakdown:
        """What the files of an index version are, in one statement."""
        reason, language, number = FILES.c.skip_reason, FILES.c.language, func.count()
        mine = select(reason, language, number, _sum(FILES.c.size_bytes)).where(FILES.c.version_id == version_id)
        skipped, languages = Counter[str](), list[LanguageCount]()
        for why, name, files, size_bytes in await self._database.rows(mine.group_by(reason, language)):
            if why is None:
                languages.append(LanguageCount(name, files, size_bytes))
            else:
                skipped[why] += files
        languages.sort(key=lambda each: (-each.size_bytes, -each.files, each.language or ""))
        return Breakdown(dict(skipped.most_common()), languages)


def _row(stored: Sequence[Any]) -> ManifestRow:
    """Texts that most rows share are kept in memory once."""
    *own, skip_reason, language, epoch, wanted_sha, reader = stored
    # Programs up to 0.2.1 wrote the epoch and a dot before it.
    shared = [text and intern(text) for text in (skip_reason, language, reader and reader.rpartition(".")[2])]
    return ManifestRow._make([*own, *shared[:2], epoch, wanted_sha, shared[2]])


def _stored(version_id: str, row: ManifestRow) -> dict[str, object]:
    path, key = sanitize_text(row.path), path_key(row.path)
    return {
        **row._asdict(),
        "version_id": version_id,
        "path": key,
        "long_path": path if key != path else None,
    }
