"""Every point of a repository against its manifest, payload and all: what `verify` proves, and a repair mends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeGuard

from reposync.content.documents import content_hash
from reposync.embedding.port import EmbeddingSpec
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.versions import IndexVersion
from reposync.sync.audit import Audit, IndexState, why_remade
from reposync.vectors.port import Index, PointId, StoredPoint, point_id

# Told one by one; of what lies beyond, the numbers alone. A wrong setting may change every point there is.
MAX_TOLD = 10_000
_SHOWN_CHARS = 60


class DifferenceKind(StrEnum):
    """The words stand in `verify --json`."""

    MISSING = "missing"
    """Chunks of a file that have no point."""
    ALTERED = "altered"
    """Points whose payload is not what was stored."""
    NO_VECTOR = "no_vector"
    """Points that a search by meaning cannot find."""
    STALE = "stale"
    """Points of another blob than the file's, or of a chunk that it has not."""
    DUPLICATE = "duplicate"
    """A second point of a chunk, under another id."""
    FOREIGN = "foreign"
    """Points of a path that is not indexed."""
    ELSEWHERE = "elsewhere"
    """Points in another collection than the repository's."""
    UNLISTED = "unlisted"
    """The manifest does not say what the commit's tree says."""
    UNFINISHED = "unfinished"
    """The latest run was cut off: the index is between two commits."""
    SETTINGS = "settings"
    """The settings changed since the last sync."""


MENDED_BY_READING = frozenset({DifferenceKind.MISSING, DifferenceKind.ALTERED, DifferenceKind.NO_VECTOR})


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` is None where it is about more than a file. `what`: a sentence without its dot."""

    kind: DifferenceKind
    path: str | None
    what: str
    points: int = 0


@dataclass(frozen=True, slots=True)
class PointAudit:
    """`points` were read. `differences`: by path, at most MAX_TOLD; `counts`: of all, how many points (chunks where
    they are missing) of each kind."""

    audit: Audit
    points: int
    differences: Sequence[Difference]
    counts: Mapping[DifferenceKind, int]

    @property
    def summary(self) -> str:
        """`12 points missing in 3 files, 2 altered, 1 foreign`; empty where nothing is wrong."""
        told = [f"{number:,} {kind.value.replace('_', ' ')}" for kind, number in self.counts.items() if number]
        return ", ".join(told)


async def audit_points(index: Index, version_id: str, name: str, recorded: Mapping[str, ManifestRow]) -> PointAudit:
    """Read every point, a page at a time; memory grows with the manifest and with what is wrong, not with the points.
    Where there is no collection of ours, every chunk is missing.

    `name`: what the repository is called, which its points repeat.
    """
    reading = _Reading(version_id, name, recorded)
    spec = await index.spec()
    if spec is not None:
        async for page in index.points(version_id):
            # Hashing a page takes some 10 ms.
            await asyncio.to_thread(reading.take, page)
        if spec.dimension:
            async for page in index.points(version_id, without_vector=True):
                reading.without_vector(page)
    return await asyncio.to_thread(reading.result)


async def inspect_for_repair(
    index: Index, spec: EmbeddingSpec, version: IndexVersion, name: str, manifests: Manifests
) -> IndexState:
    """As `inspect_index`, with every point's payload: what a repair mends. `name`: see `audit_points`. `why` says what
    was wrong."""
    identity = await index.ensure(spec)
    recorded = await manifests.load(version.id)
    found = await audit_points(index, version.id, name, recorded)
    why = f"Mended on request: {found.summary}." if found.counts else None
    remade = version.index_identity not in (None, identity) and any(row.chunks for row in recorded.values())
    if remade:
        why = await why_remade(index)
    return IndexState(identity, sum(row.is_failed for row in recorded.values()), found.audit, why, remade=remade)


class _Reading:
    def __init__(self, version_id: str, name: str, recorded: Mapping[str, ManifestRow]) -> None:
        self._version_id = version_id
        self._name = name
        self._recorded = recorded
        self._seen: dict[str, int] = {}  # path -> one bit a chunk
        self._strange: dict[PointId, tuple[DifferenceKind, str | None, str]] = {}
        self._found: dict[tuple[DifferenceKind, str | None], tuple[int, str]] = {}
        self._counts: Counter[DifferenceKind] = Counter()
        self._damaged: set[str] = set()
        self._lost = 0
        self._points = 0

    def take(self, page: Sequence[StoredPoint]) -> None:
        for point in page:
            self._points += 1
            metadata = point.payload.get("metadata")
            self._look(point, metadata if isinstance(metadata, dict) else {})

    def without_vector(self, page: Sequence[StoredPoint]) -> None:
        for point in page:
            metadata = point.payload.get("metadata")
            path = metadata.get("path") if isinstance(metadata, dict) else None
            if point.id not in self._strange and isinstance(path, str) and path in self._recorded:
                self._tell(DifferenceKind.NO_VECTOR, path, "has points without a dense vector")
                self._damaged.add(path)

    def result(self) -> PointAudit:
        for path, row in self._recorded.items():
            self._count_missing(path, row)
        for kind, where, what in self._strange.values():
            self._tell(kind, where, what)
        # A point that bears no path is told of last.
        ordered = sorted(self._found.items(), key=lambda each: (each[0][1] is None, each[0][1] or "", each[0][0].value))
        return PointAudit(
            Audit(frozenset(self._damaged), frozenset(self._strange), lost=self._lost),
            self._points,
            [Difference(key[0], key[1], what, points) for key, (points, what) in ordered],
            {kind: self._counts[kind] for kind in DifferenceKind if self._counts[kind]},
        )

    def _look(self, point: StoredPoint, metadata: Mapping[str, Any]) -> None:
        path, blob_sha, chunk = metadata.get("path"), metadata.get("blob_sha"), metadata.get("chunk_index")
        row = self._recorded.get(path) if isinstance(path, str) else None
        if row is None:
            told = path if isinstance(path, str) else None
            self._strange[point.id] = DifferenceKind.FOREIGN, told, "is not in the manifest, and has points"
        elif not row.chunks:
            why = f" ({row.skip_reason})" if row.skip_reason else ""
            self._strange[point.id] = DifferenceKind.FOREIGN, row.path, f"is not indexed{why}, and has points"
            self._doubt(row, blob_sha)
        elif blob_sha != row.blob_sha:
            what = f"has points of another blob, {_shown(blob_sha)}; it is at {row.blob_sha[:10]}"
            self._strange[point.id] = DifferenceKind.STALE, row.path, what
        elif not _is_count(chunk) or chunk >= row.chunks:
            what = f"has a point of chunk {_shown(chunk)}, and {row.chunks} chunks (from 0 on)"
            self._strange[point.id] = DifferenceKind.STALE, row.path, what
            self._doubt(row, blob_sha)
        elif point.id != point_id(self._version_id, row.path, row.blob_sha, chunk):
            self._strange[point.id] = DifferenceKind.DUPLICATE, row.path, f"has a second point of chunk {chunk}"
        else:
            self._seen[row.path] = self._seen.get(row.path, 0) | 1 << chunk
            if wrong := list(self._wrong_fields(point, metadata, row)):
                self._tell(
                    DifferenceKind.ALTERED, row.path, f"has points whose {', '.join(wrong)} is not what was stored"
                )
                self._damaged.add(row.path)

    def _doubt(self, row: ManifestRow, blob_sha: object) -> None:
        """A point of the very blob that the manifest names, and which it denies: the row may be what is wrong, and only
        the file itself can tell."""
        if blob_sha == row.blob_sha:
            self._damaged.add(row.path)

    def _wrong_fields(self, point: StoredPoint, metadata: Mapping[str, Any], row: ManifestRow) -> Iterator[str]:
        if _hash_of(point.payload.get("page_content")) != metadata.get("content_hash", ""):
            yield "page_content or content_hash"
        stored = {"repository": self._name, "language": row.language, "epoch": row.epoch}
        yield from (key for key, value in stored.items() if key not in metadata or not _same(metadata[key], value))
        first, last = metadata.get("start_line"), metadata.get("end_line")
        if not (_is_count(first) and _is_count(last) and 1 <= first <= last):
            yield "start_line or end_line"
        commit = metadata.get("commit")
        if not isinstance(commit, str) or len(commit) not in (40, 64):
            yield "commit"
        if "url" not in metadata or not isinstance(metadata["url"], str | None):
            yield "url"

    def _count_missing(self, path: str, row: ManifestRow) -> None:
        seen = self._seen.get(path, 0)
        if not row.chunks or seen.bit_count() == row.chunks:
            return
        missing = 0
        for chunk in range(row.chunks):
            if seen >> chunk & 1:
                continue
            # A point that has the id of this chunk says that it is something else: it was altered, and is no point too
            # many. To delete it after it was mended would be to damage the file again.
            altered = self._strange.pop(point_id(self._version_id, path, row.blob_sha, chunk), None)
            if altered is not None:
                self._tell(DifferenceKind.ALTERED, path, "has points that say that they belong elsewhere")
            else:
                missing += 1
        if missing:
            self._tell(DifferenceKind.MISSING, path, f"lacks {missing} of {row.chunks} points", missing)
        self._lost += missing
        self._damaged.add(path)

    def _tell(self, kind: DifferenceKind, path: str | None, what: str, points: int = 1) -> None:
        self._counts[kind] += points
        key = kind, path
        if key in self._found:
            self._found[key] = self._found[key][0] + points, self._found[key][1]
        elif len(self._found) < MAX_TOLD:
            self._found[key] = points, what


def _hash_of(text: object) -> str | None:
    try:
        return content_hash(text) if isinstance(text, str) else None
    except UnicodeEncodeError:  # half of a surrogate pair: nothing that we store
        return None


def _same(found: object, stored: object) -> bool:
    # In JSON true is not 1, and 1.0 is no epoch.
    return type(found) is type(stored) and found == stored


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shown(value: object) -> str:
    """What stands in a payload may be anything, and of any length."""
    text = value[:10] if isinstance(value, str) else repr(value)
    return text[:_SHOWN_CHARS]
