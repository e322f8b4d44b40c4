"""The points of a version of the index against those that it should have: by their ids, or whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from reposync.content.joining import joined
from reposync.content.model import content_hash
from reposync.embedding.sparse import terms_vector
from reposync.ordering import in_order
from reposync.sources.port import lines_like, path_bytes
from reposync.store.manifest import ManifestRow
from reposync.store.tables import IndexVersion
from reposync.store.versions import Origin
from reposync.symbol import read_names, read_symbols
from reposync.sync.stored_points import stored_chunk
from reposync.vectors.index import QdrantIndex
from reposync.vectors.path_tokens import path_tokens
from reposync.vectors.port import FileWrite, PointId, PointWrite, StoredPoint, WriteScope, point_id
from reposync.vectors.request_bodies import payload_of

# Of a collection with replicas, which agree after a moment.
_REPLICA_ATTEMPTS = 3
# 0.7 MB for a file with 100 chunks of 7,000 characters; most have one or two.
_FILES_AT_ONCE = 200


class DifferenceKind(StrEnum):
    """The values are in the output of `verify --json`."""

    MISSING = "missing"  # chunks of a file that have no point
    ALTERED = "altered"  # points whose payload is not what was stored
    CONTENT = "content"  # points that are not what the file gives, if it is read again
    NO_VECTOR = "no_vector"  # points without a dense vector, which a semantic search cannot find
    EXTRA = "extra"  # points that are of no chunk of an indexed file
    ELSEWHERE = "elsewhere"  # points in another collection than the repository's
    UNLISTED = "unlisted"  # the manifest differs from the commit's tree
    UNFINISHED = "unfinished"  # a run that began to store did not complete: the index may be between two commits
    SETTINGS = "settings"  # the settings changed since the last sync


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` is None if it is not about one file. `what`: a sentence without its full stop. `points`: how many points
    (or chunks without one) it is about; 1 if it is about none."""

    kind: DifferenceKind
    path: str | None
    what: str
    points: int = 1


@dataclass(slots=True)
class Audit:
    """How the points of a version differ from those that it should have. `points`: how many there are; `orphans`: ids
    of those that no manifest row accounts for; `damaged`: paths whose points have to be stored again."""

    points: int = 0
    orphans: set[PointId] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    differences: list[Difference] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.damaged or self.orphans)

    @property
    def counts(self) -> dict[DifferenceKind, int]:
        counts = Counter[DifferenceKind]()
        for each in self.differences:
            counts[each.kind] += each.points
        return {kind: counts[kind] for kind in DifferenceKind if counts[kind]}

    def add(self, difference: Difference, *, damages: bool = True) -> None:
        self.differences.append(difference)
        if damages and difference.path is not None:
            self.damaged.add(difference.path)


def _ids_of(version_id: str, row: ManifestRow) -> list[PointId]:
    return [point_id(version_id, row.path, row.blob_sha, chunk) for chunk in range(row.chunks)]


async def audit_ids(index: QdrantIndex, version_id: str, recorded: Mapping[str, ManifestRow]) -> Audit:
    """Compare ids, which follow from (path, blob, chunk): no payload and no vector is read. If our collection does not
    exist, every chunk is missing."""

    def owners() -> dict[PointId, str]:
        return {each: row.path for row in recorded.values() for each in _ids_of(version_id, row)}

    audit, missing = Audit(), await asyncio.to_thread(owners)
    if await index.spec() is not None:
        async for page in index.point_ids(version_id):
            audit.points += len(page)
            audit.orphans.update(each for each in page if missing.pop(each, None) is None)
        for each in await index.existing(list(missing)) if missing else ():
            del missing[each]
    for path, lacks in Counter(missing.values()).items():
        audit.add(_missing(recorded[path], lacks))
    return audit


def _missing(row: ManifestRow, lacks: int) -> Difference:
    return Difference(DifferenceKind.MISSING, row.path, f"lacks {lacks} of {row.chunks} points", lacks)


# Whole points ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PointComparison:
    """Compares points with those that a version should have. `name`: the repository's, which its points repeat.
    `origin`: None while a run changes the version. `_commits`: of each epoch of which the history does not know it, the
    commit that its points name: all the same one."""

    index: QdrantIndex
    version: IndexVersion
    name: str
    origin: Origin | None
    _commits: dict[int, str] = field(default_factory=dict)

    async def stored(self, rows: Iterable[ManifestRow]) -> dict[PointId, StoredPoint]:
        """The points of these files."""
        ids = [each for row in rows for each in _ids_of(self.version.id, row)]
        stored: dict[PointId, StoredPoint] = {}
        for _ in range(_REPLICA_ATTEMPTS):
            async for page in self.index.points_with_ids(self.version.id, ids):
                stored |= {point.id: point for point in page}
            missing = [each for each in ids if each not in stored]
            if not missing or not await self.index.existing(missing):
                break
        return stored

    def difference(
        self, row: ManifestRow, stored: Mapping[PointId, StoredPoint], chunks: Sequence[PointWrite] | None = None
    ) -> Difference | None:
        """The difference in the points of a file. `chunks`: what its content gives; None: they are derived from its
        points."""
        points = [stored[each] for each in _ids_of(self.version.id, row) if each in stored]
        if len(points) < row.chunks:
            return _missing(row, row.chunks - len(points))
        kind, source = DifferenceKind.CONTENT, "its content gives"
        if chunks is None:
            kind, source, chunks = DifferenceKind.ALTERED, "was stored", _derived(row, points)
        if len(chunks) != len(points):
            return Difference(kind, row.path, "has points whose texts and places are not those of one file")
        altered = [names for pair in zip(chunks, points, strict=True) if (names := self._altered(row, *pair))]
        if not altered:
            return None
        fields = ", ".join(dict.fromkeys(name for names in altered for name in names))
        return Difference(kind, row.path, f"has points whose {fields} is not what {source}", len(altered))

    def _altered(self, row: ManifestRow, chunk: PointWrite, point: StoredPoint) -> list[str]:
        """Names of the fields of a payload that differ from what a run would write."""
        metadata = _metadata(point)
        stored = {**metadata, "page_content": point.payload.get("page_content")}
        name, url = metadata.get("repository"), metadata.get("url")
        if not self.version.has_old_links:
            name = self.name
            if self.origin is not None:
                url = lines_like(self.version.links, path_bytes(row.path), chunk.start_line, chunk.end_line)
        scope = WriteScope(self.version.id, str(name), self._commit(row.epoch, metadata.get("commit")), row.epoch)
        file = FileWrite(row.path, row.language, row.blob_sha, [], replaces=False)
        expected = orjson.loads(orjson.dumps(payload_of(scope, file, path_tokens(row.path), replace(chunk, url=url))))
        fields = {"page_content": expected["page_content"], **expected["metadata"]}
        return [key for key, value in fields.items() if key not in stored or _json(stored[key]) != _json(value)]

    def _commit(self, epoch: int, stored: object) -> str:
        """An epoch is one attempt of one run, at one commit: the history's, if it still has that run."""
        known = self.origin.commit_of(epoch) if self.origin is not None else None
        if known is None and isinstance(stored, str) and len(stored) in (40, 64):
            known = self._commits.setdefault(epoch, stored)
        return known or self._commits.get(epoch, "")


def _derived(row: ManifestRow, points: Sequence[StoredPoint]) -> list[PointWrite]:
    """The chunks of a file, from the texts of all its points: together they are its text, which says where each of them
    is; but not in a notebook, which has the lines of its JSON. Empty if they are not of one text."""
    derived: list[PointWrite] = []
    line, at, no_words = 1, 0, terms_vector(())
    try:
        chunks = [stored_chunk(point) for point in points]
        if (whole := joined(chunks)) is None:
            return []
        for number, (chunk, start) in enumerate(zip(chunks, whole.starts, strict=True)):
            first, last = chunk.start_line, chunk.end_line
            if not row.path.lower().endswith(".ipynb"):
                line, at = line + whole.text.count("\n", at, start), start
                first, last = line, line + chunk.text.count("\n", 0, len(chunk.text) - 1)
            # A later grammar may find more definitions: only their form is compared.
            metadata = _metadata(points[number])
            symbols, calls = read_symbols(metadata.get("symbols")), read_names(metadata.get("calls"))
            # A start that 0.1 did not store may be uncertain.
            known = start if whole.is_certain else chunk.start_index
            hashed = content_hash(chunk.text)
            derived.append(
                PointWrite(number, chunk.text, first, last, hashed, None, None, no_words, symbols, known, calls)
            )
    except (LookupError, TypeError, ValueError, AttributeError):  # a different program wrote the payload
        return []
    return derived


async def audit_points(comparison: PointComparison, recorded: Mapping[str, ManifestRow]) -> Audit:
    """Read every point of the version."""
    index, version = comparison.index, comparison.version
    audit, spec = await audit_ids(index, version.id, recorded), await index.spec()
    if spec is None:
        return audit

    def compare(rows: Sequence[ManifestRow], stored: Mapping[PointId, StoredPoint]) -> None:
        for row in rows:
            if (difference := comparison.difference(row, stored)) is not None:
                audit.add(difference)

    complete = [row for row in recorded.values() if row.chunks and row.path not in audit.damaged]
    for start in range(0, len(complete), _FILES_AT_ONCE):
        rows = complete[start : start + _FILES_AT_ONCE]
        await asyncio.to_thread(compare, rows, await comparison.stored(rows))
    if spec.dimension and version.meaning_pending is None:
        lacking = Counter[str]()
        async for page in index.points_without_vector(version.id):
            lacking.update(_path(point) for point in page if point.id not in audit.orphans)
        for path, points in lacking.items():
            audit.add(Difference(DifferenceKind.NO_VECTOR, path or None, "has points without a dense vector", points))
    extra = Counter[tuple[str, str]]()
    async for page in index.points_with_ids(version.id, await asyncio.to_thread(in_order, audit.orphans, str)):
        extra.update((_path(point), str(_metadata(point).get("blob_sha"))) for point in page)
    for (path, blob_sha), points in extra.items():
        what = "has points that are of no chunk that the manifest records"
        # Of the recorded blob: the row may be what is wrong, and reading the file again decides.
        row = recorded.get(path)
        damages = row is not None and row.blob_sha == blob_sha
        audit.add(Difference(DifferenceKind.EXTRA, path or None, what, points), damages=damages)
    return audit


def _metadata(point: StoredPoint) -> Mapping[str, Any]:
    metadata = point.payload.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _path(point: StoredPoint) -> str:
    """Empty if it has none."""
    path = _metadata(point).get("path")
    return path if isinstance(path, str) else ""


def _json(value: object) -> bytes:
    """In Python 1 == 1.0 == True; in JSON they differ."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
