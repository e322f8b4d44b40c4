"""The points of a version of the index against its manifest: by their ids, or whole."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

from reposync.content.model import content_hash
from reposync.sources.port import lines_like, path_bytes
from reposync.store.manifest import ManifestRow
from reposync.store.tables import IndexVersion
from reposync.store.versions import Origin
from reposync.symbol import read_symbols
from reposync.sync.prepare import PreparedFile
from reposync.sync.stored_points import is_count
from reposync.vectors.index import QdrantIndex
from reposync.vectors.path_tokens import path_tokens
from reposync.vectors.port import PointId, StoredPoint, point_id

# Of a collection with replicas, which agree after a moment.
_REPLICA_ATTEMPTS = 3
# Differences that are listed; of the rest only the counts. A wrong setting may change every point.
MAX_DIFFERENCES = 10_000
_IDENTITY = ("path", "blob_sha", "chunk_index")


class DifferenceKind(StrEnum):
    """The values are in the output of `verify --json`."""

    MISSING = "missing"  # chunks of a file that have no point
    ALTERED = "altered"  # points whose payload is not what was stored
    CONTENT = "content"  # points that are not what the file gives, if it is read again
    NO_VECTOR = "no_vector"  # points without a dense vector, which a semantic search cannot find
    STALE = "stale"  # points of another blob of the file, or of a chunk that it does not have
    DUPLICATE = "duplicate"  # a second point of a chunk, under another id
    FOREIGN = "foreign"  # points of a path that is not indexed
    ELSEWHERE = "elsewhere"  # points in another collection than the repository's
    UNLISTED = "unlisted"  # the manifest differs from the commit's tree
    UNFINISHED = "unfinished"  # the latest run was cut off: the index is between two commits
    SETTINGS = "settings"  # the settings changed since the last sync


@dataclass(frozen=True, slots=True)
class Difference:
    """`path` is None if it is about more than one file. `what`: a sentence without its full stop."""

    kind: DifferenceKind
    path: str | None
    what: str
    points: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """Points against the manifest. `damaged`: paths that lack points or whose points were altered; `orphans`: ids of
    points that no manifest row accounts for; `lost`: how many points are missing.

    If whole points were compared: `points`: how many were read; `differences`: by path, at most MAX_DIFFERENCES;
    `counts`: points of each kind (chunks if they are missing), of all differences.
    """

    damaged: frozenset[str] = frozenset()
    orphans: frozenset[PointId] = frozenset()
    lost: int = 0
    points: int = 0
    differences: Sequence[Difference] = ()
    counts: Mapping[DifferenceKind, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not (self.damaged or self.orphans)


def _owners(version_id: str, recorded: Mapping[str, ManifestRow]) -> dict[PointId, str]:
    return {
        point_id(version_id, path, row.blob_sha, chunk): path
        for path, row in recorded.items()
        for chunk in range(row.chunks)
    }


async def audit_ids(index: QdrantIndex, version_id: str, recorded: Mapping[str, ManifestRow]) -> Audit:
    """Compare ids, which follow from (path, blob, chunk): no payload and no vector is read."""
    owners = await asyncio.to_thread(_owners, version_id, recorded)
    orphans: set[PointId] = set()
    async for page in index.point_ids(version_id):
        orphans.update(each for each in page if owners.pop(each, None) is None)
    if owners:
        for each in await index.existing(list(owners)):
            del owners[each]
    return Audit(frozenset(owners.values()), frozenset(orphans), lost=len(owners))


# Whole points against the manifest ------------------------------------------------------------------------------------


async def audit_points(
    index: QdrantIndex,
    version: IndexVersion,
    name: str,
    recorded: Mapping[str, ManifestRow],
    origin: Origin | None,
) -> Audit:
    """Read every point, page by page. If our collection does not exist, every chunk is missing. `name`: the
    repository's, which its points repeat. `origin`: None while a run changes the version."""
    spec = await index.spec()
    for _ in range(_REPLICA_ATTEMPTS):
        comparison = _PointComparison(version, name, recorded, origin)
        comparison.missing = await asyncio.to_thread(_owners, version.id, recorded)
        if spec is not None:
            async for page in index.points(version.id):
                # Hashing a page takes some 10 ms.
                await asyncio.to_thread(comparison.add_page, page)
            if spec.dimension and not version.has_words_only:
                async for page in index.points(version.id, without_vector=True):
                    comparison.add_without_vector(page)
            if comparison.missing and await index.existing(list(comparison.missing)):
                continue  # a replica that had just been started again was read
        break
    return await asyncio.to_thread(comparison.result)


class _Piece(NamedTuple):
    """A chunk of a file, without its text. `breaks`: offsets of its line breaks."""

    start: int
    length: int
    first_line: int
    last_line: int
    breaks: array[int]


def _are_lines_right(pieces: Sequence[_Piece]) -> bool:
    """Whether chunks in order, of which each begins in the one before it or at its end, say where in the file they
    are."""
    if (pieces[0].start, pieces[0].first_line) != (0, 1):
        return False
    for before, piece in pairwise(pieces):
        into = piece.start - before.start
        if not 0 < into <= before.length or piece.first_line != before.first_line + bisect_left(before.breaks, into):
            return False
    return all(piece.last_line == piece.first_line + bisect_left(piece.breaks, piece.length - 1) for piece in pieces)


@dataclass(slots=True)
class _PointComparison:
    """`missing`: recorded points that were not listed yet, with their paths. `pieces`: of files of which some were not
    listed yet. `commits`: of each epoch, the one that its points name."""

    version: IndexVersion
    name: str
    recorded: Mapping[str, ManifestRow]
    origin: Origin | None
    missing: dict[PointId, str] = field(default_factory=dict)
    orphans: set[PointId] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    points: int = 0
    found: dict[tuple[DifferenceKind, str | None], Difference] = field(default_factory=dict)
    counts: Counter[DifferenceKind] = field(default_factory=Counter)
    pieces: defaultdict[str, list[_Piece]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[int, str] = field(default_factory=dict)

    def add_page(self, page: Sequence[StoredPoint]) -> None:
        self.points += len(page)
        for point in page:
            if (path := self.missing.pop(point.id, None)) is None:
                self._add_orphan(point.id, _metadata(point))
            elif wrong := list(self._wrong_fields(point, _metadata(point), self.recorded[path])):
                self._altered(path, ", ".join(wrong))
            else:
                self._add_piece(point, _metadata(point), self.recorded[path])

    def add_without_vector(self, page: Sequence[StoredPoint]) -> None:
        for point in page:
            path = _metadata(point).get("path")
            if point.id not in self.orphans and isinstance(path, str) and path in self.recorded:
                self._report(DifferenceKind.NO_VECTOR, path, "has points without a dense vector")
                self.damaged.add(path)

    def result(self) -> Audit:
        for path, lacks in Counter(self.missing.values()).items():
            what = f"lacks {lacks} of {self.recorded[path].chunks} points"
            self._report(DifferenceKind.MISSING, path, what, lacks)
            self.damaged.add(path)
        # Points without a path come last.
        ordered = sorted(self.found.values(), key=lambda each: (each.path is None, each.path or "", each.kind.value))
        return Audit(
            frozenset(self.damaged),
            frozenset(self.orphans),
            len(self.missing),
            self.points,
            ordered,
            {kind: self.counts[kind] for kind in DifferenceKind if self.counts[kind]},
        )

    def _altered(self, path: str, fields: str) -> None:
        self._report(DifferenceKind.ALTERED, path, f"has points whose {fields} is not what was stored")
        self.damaged.add(path)

    def _add_piece(self, point: StoredPoint, metadata: Mapping[str, Any], row: ManifestRow) -> None:
        """Compare the lines of a file's chunks when all of them are known: together they are its text. Cells of a
        notebook have the lines of its JSON, which its chunks do not hold."""
        start, text = metadata.get("start_index"), point.payload["page_content"]
        if start is None or row.path.lower().endswith(".ipynb"):
            return
        breaks = array("L", (at for at, character in enumerate(text) if character == "\n"))
        pieces = self.pieces[row.path]
        pieces.append(_Piece(start, len(text), metadata["start_line"], metadata["end_line"], breaks))
        if len(pieces) < row.chunks:
            return
        if not _are_lines_right(sorted(self.pieces.pop(row.path))):
            self._altered(row.path, "start_line, end_line or start_index")

    def _add_orphan(self, identity: PointId, metadata: Mapping[str, Any]) -> None:
        path, blob_sha, chunk = (metadata.get(key) for key in _IDENTITY)
        row = self.recorded.get(path) if isinstance(path, str) else None
        kind = DifferenceKind.STALE
        if row is None:
            kind, what = DifferenceKind.FOREIGN, "is not in the manifest, and has points"
        elif not row.chunks:
            why = f" ({row.skip_reason})" if row.skip_reason else ""
            kind, what = DifferenceKind.FOREIGN, f"is not indexed{why}, and has points"
        elif blob_sha != row.blob_sha:
            what = f"has points of another blob, {blob_sha!s:.10}; it is at {row.blob_sha[:10]}"
        elif not is_count(chunk) or chunk >= row.chunks:
            what = f"has a point of chunk {chunk!s:.20}, and {row.chunks} chunks (from 0 on)"
        else:
            kind, what = DifferenceKind.DUPLICATE, f"has a second point of chunk {chunk}"
        if row is not None and blob_sha == row.blob_sha and kind is not DifferenceKind.DUPLICATE:
            # The row may be what is wrong; reading the file again decides.
            self.damaged.add(row.path)
        self.orphans.add(identity)
        self._report(kind, path if isinstance(path, str) else None, what)

    def _wrong_fields(self, point: StoredPoint, metadata: Mapping[str, Any], row: ManifestRow) -> Iterator[str]:
        path, blob_sha, chunk = (metadata.get(key) for key in _IDENTITY)
        is_of_row = (path, blob_sha) == (row.path, row.blob_sha)
        if not (is_of_row and is_count(chunk) and point_id(self.version.id, row.path, row.blob_sha, chunk) == point.id):
            yield "path, blob_sha or chunk_index"
        if _hash_of(point.payload.get("page_content")) != metadata.get("content_hash", ""):
            yield "page_content or content_hash"
        fields: dict[str, str | int | None] = {"language": row.language, "epoch": row.epoch}
        if not self.version.has_old_links:
            fields["repository"] = self.name
        for key, value in fields.items():
            # In Python True == 1 == 1.0; in JSON they differ.
            if key not in metadata or type(metadata[key]) is not type(value) or metadata[key] != value:
                yield key
        # Programs before 0.2 stored none, and every glob admits a point without them.
        if (tokens := metadata.get("path_tokens")) and tokens != path_tokens(row.path):
            yield "path_tokens"
        # Their names are not compared: a later grammar may find more.
        symbols = metadata.get("symbols", [])
        if not isinstance(symbols, list) or len(read_symbols(symbols)) != len(symbols):
            yield "symbols"
        first, last = metadata.get("start_line"), metadata.get("end_line")
        if not (is_count(first) and is_count(last) and 1 <= first <= last):
            yield "start_line or end_line"
        # Programs before 0.2 stored none.
        if not (metadata.get("start_index") is None or is_count(metadata["start_index"])):
            yield "start_index"
        if not self._is_commit(metadata.get("commit"), row.epoch):
            yield "commit"
        if "url" not in metadata or not isinstance(metadata["url"], str | None):
            yield "url"
        elif self.origin is not None and not self.version.has_old_links and is_count(first) and is_count(last):
            link = lines_like(self.version.links, path_bytes(row.path), first, last)
            if metadata["url"] != link:
                yield "url"

    def _is_commit(self, commit: object, epoch: int) -> bool:
        """An epoch is one attempt of one run, at one commit: the history's, if it still has that run."""
        if not isinstance(commit, str) or len(commit) not in (40, 64):
            return False
        recorded = self.origin.commit_of(epoch) if self.origin is not None else None
        return commit == (recorded or self.commits.setdefault(epoch, commit))

    def _report(self, kind: DifferenceKind, path: str | None, what: str, points: int = 1) -> None:
        self.counts[kind] += points
        before = self.found.get((kind, path))
        if before is not None:
            self.found[kind, path] = replace(before, points=before.points + points)
        elif len(self.found) < MAX_DIFFERENCES:
            self.found[kind, path] = Difference(kind, path, what, points)


async def stored_digests(index: QdrantIndex, version_id: str) -> dict[PointId, bytes]:
    """A digest of what a search shows of each point, besides what follows from its path and its manifest row."""

    def digests(page: Sequence[StoredPoint]) -> dict[PointId, bytes]:
        found = {}
        for point in page:
            keys = ("language", "start_line", "end_line", "start_index")
            metadata, text = _metadata(point), _hash_of(point.payload.get("page_content"))
            found[point.id] = _digest(text, *map(metadata.get, keys), read_symbols(metadata.get("symbols")))
        return found

    stored: dict[PointId, bytes] = {}
    async for page in index.points(version_id):
        stored |= await asyncio.to_thread(digests, page)
    return stored


def is_stored(stored: Mapping[PointId, bytes], version_id: str, file: PreparedFile) -> bool:
    """Whether those points of the file that there are say what its content gives."""
    for chunk in file.chunks:
        digest = stored.get(point_id(version_id, file.path, file.sha, chunk.chunk_index))
        lines = (chunk.start_line, chunk.end_line, chunk.start_index)
        if digest not in (None, _digest(content_hash(chunk.text), file.language, *lines, list(chunk.symbols))):
            return False
    return True


def _digest(text: str | None, *shown: object) -> bytes:
    return hashlib.blake2b(repr((text, *shown)).encode(), digest_size=16).digest()


def _metadata(point: StoredPoint) -> Mapping[str, Any]:
    metadata = point.payload.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _hash_of(text: object) -> str | None:
    try:
        return content_hash(text) if isinstance(text, str) else None
    except UnicodeEncodeError:  # a lone surrogate, which we never store
        return None
