"""Audits of a version of the index: its points against the manifest, and the manifest against the commit's tree.

A run audits before and after its work; `verify` proves the rest, and a repair run fixes what an audit finds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from reposync.content.documents import content_hash
from reposync.content.model import Skip
from reposync.embedding.port import EmbeddingSpec
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Commit, TreeEntry, path_text
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.tables import IndexVersion
from reposync.symbol import read_symbols
from reposync.sync.pipeline import read_batches
from reposync.sync.plan import Plan, make_plan
from reposync.sync.prepare import ContentWorkers, is_count
from reposync.sync.progress import RunProgress
from reposync.sync.target import SyncParts, SyncSettings, TargetTree, read_target
from reposync.vectors.path_tokens import path_tokens
from reposync.vectors.port import Index, PointId, StoredPoint, point_id

# Of a collection with replicas, which agree after a moment.
_REPLICA_ATTEMPTS = 3
# Differences that are listed; of the rest only the counts. A wrong setting may change every point.
MAX_DIFFERENCES = 10_000


class DifferenceKind(StrEnum):
    """The values are in the output of `verify --json`."""

    MISSING = "missing"  # chunks of a file that have no point
    ALTERED = "altered"  # points whose payload is not what was stored
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


@dataclass(frozen=True, slots=True)
class IndexState:
    """What a run finds. `failed`: files that the last run could not read. `why`: what was wrong with the index; None if
    nothing was. `remade`: the collection is not the one that the last run wrote to."""

    identity: str
    failed: int = 0
    audit: Audit = field(default_factory=Audit)
    why: str | None = None
    remade: bool = False


async def inspect_index(
    index: Index,
    spec: EmbeddingSpec,
    version: IndexVersion,
    manifests: Manifests,
    *,
    thorough: bool,
    repaired: str | None = None,
) -> IndexState:
    """Two counts show whether the index is as the last run left it: of all points, and of those of the newest epoch,
    which an older snapshot with as many points lacks. Every id is compared only if a count differs, the collection was
    made again, or `thorough`. `repaired`: the repository's name, to compare whole points."""
    identity = await index.ensure(spec)
    totals = await manifests.totals(version.id)
    points = await index.count(version.id, expected=totals.chunks)
    remade = version.index_identity not in (None, identity) and totals.chunks > 0
    newest = 0
    if totals.chunks:
        newest = await index.count(version.id, epoch=totals.max_epoch, expected=totals.chunks_of_max_epoch)
    is_newest = newest == totals.chunks_of_max_epoch
    if points == totals.chunks and is_newest and not (remade or thorough or repaired):
        return IndexState(identity, totals.failed)
    recorded = await manifests.load(version.id)
    why = None
    if repaired:
        audit = await audit_points(index, version.id, repaired, recorded, words_only=version.has_words_only)
        if audit.counts:
            kinds = [f"{count:,} {kind.value.replace('_', ' ')}" for kind, count in audit.counts.items()]
            why = f"Repaired on request: {', '.join(kinds)}."
    else:
        audit = await audit_ids(index, version.id, recorded)
        if audit.damaged:
            why = (
                f"The index had lost {audit.lost} of {totals.chunks} points, in {len(audit.damaged)} files "
                "(dropped, restored from an older snapshot, or left by a worker that was killed)."
            )
        elif not audit.orphans and not is_newest and not remade:
            # Every id is there, but some points are of another run than their row: other chunk settings give the same
            # id another text.
            older, newer = await _of_other_epochs(index, version.id, recorded)
            audit = Audit(damaged=frozenset(older | newer))
            if older:
                why = f"Points of {len(older)} files were not those that the last run stored (an older snapshot?)."
    if remade:
        lost = await index.lost()
        why = f"The index was made again. {lost}" if lost else "The collection was dropped and made again."
    return IndexState(identity, totals.failed, audit, why, remade)


async def _of_other_epochs(
    index: Index, version_id: str, recorded: Mapping[str, ManifestRow]
) -> tuple[set[str], set[str]]:
    """Paths with points of an earlier run than their row says, and with points of a later one: `--full` replaces points
    in place, and a run may be killed before it writes the row."""
    owners = _owners(version_id, recorded)
    older: set[str] = set()
    newer: set[str] = set()
    async for page in index.points(version_id):
        for point in page:
            path, epoch = owners.get(point.id), _metadata(point).get("epoch")
            if path is not None and epoch != recorded[path].epoch:
                is_newer = isinstance(epoch, int) and epoch > recorded[path].epoch
                (newer if is_newer else older).add(path)
    return older, newer


def _owners(version_id: str, recorded: Mapping[str, ManifestRow]) -> dict[PointId, str]:
    return {
        point_id(version_id, path, row.blob_sha, chunk): path
        for path, row in recorded.items()
        for chunk in range(row.chunks)
    }


async def audit_ids(index: Index, version_id: str, recorded: Mapping[str, ManifestRow]) -> Audit:
    """Compare ids, which follow from (path, blob, chunk): no payload and no vector is read."""
    owners = _owners(version_id, recorded)
    orphans: set[PointId] = set()
    async for page in index.point_ids(version_id):
        orphans.update(each for each in page if owners.pop(each, None) is None)
    if owners:
        for each in await index.existing(list(owners)):
            del owners[each]
    return Audit(frozenset(owners.values()), frozenset(orphans), lost=len(owners))


# Whole points against the manifest ------------------------------------------------------------------------------------


async def audit_points(
    index: Index, version_id: str, name: str, recorded: Mapping[str, ManifestRow], *, words_only: bool = False
) -> Audit:
    """Read every point, page by page: memory grows with the manifest and the differences, not with the points. If our
    collection does not exist, every chunk is missing. `name`: the repository's name, which its points repeat.
    `words_only`: they have no dense vectors."""
    spec = await index.spec()
    for _ in range(_REPLICA_ATTEMPTS):
        comparison = _PointComparison(version_id, name, recorded)
        if spec is not None:
            async for page in index.points(version_id):
                # Hashing a page takes some 10 ms.
                await asyncio.to_thread(comparison.add_page, page)
            if spec.dimension and not words_only:
                async for page in index.points(version_id, without_vector=True):
                    comparison.add_without_vector(page)
            missing = await asyncio.to_thread(comparison.missing)
            if missing and await index.existing(missing):
                continue  # a replica that had just been started again was read
        break
    return await asyncio.to_thread(comparison.result)


class _PointComparison:
    def __init__(self, version_id: str, name: str, recorded: Mapping[str, ManifestRow]) -> None:
        self._version_id = version_id
        self._name = name
        self._recorded = recorded
        self._seen: dict[str, int] = {}  # path -> one bit a chunk
        self._wrong: dict[PointId, tuple[DifferenceKind, str | None, str]] = {}
        self._found: dict[tuple[DifferenceKind, str | None], tuple[int, str]] = {}
        self._counts: Counter[DifferenceKind] = Counter()
        self._damaged: set[str] = set()
        self._lost = 0
        self._points = 0

    def add_page(self, page: Sequence[StoredPoint]) -> None:
        self._points += len(page)
        for point in page:
            self._compare(point, _metadata(point))

    def add_without_vector(self, page: Sequence[StoredPoint]) -> None:
        for point in page:
            path = _metadata(point).get("path")
            if point.id not in self._wrong and isinstance(path, str) and path in self._recorded:
                self._report(DifferenceKind.NO_VECTOR, path, "has points without a dense vector")
                self._damaged.add(path)

    def missing(self) -> list[PointId]:
        """Recorded points that were not listed."""
        return [
            point_id(self._version_id, path, row.blob_sha, chunk)
            for path, row in self._recorded.items()
            for chunk in range(row.chunks)
            if not self._seen.get(path, 0) >> chunk & 1
        ]

    def result(self) -> Audit:
        for path, row in self._recorded.items():
            self._count_missing(path, row)
        for kind, where, what in self._wrong.values():
            self._report(kind, where, what)
        # Points without a path come last.
        ordered = sorted(self._found.items(), key=lambda each: (each[0][1] is None, each[0][1] or "", each[0][0].value))
        return Audit(
            frozenset(self._damaged),
            frozenset(self._wrong),
            self._lost,
            self._points,
            [Difference(key[0], key[1], what, points) for key, (points, what) in ordered],
            {kind: self._counts[kind] for kind in DifferenceKind if self._counts[kind]},
        )

    def _compare(self, point: StoredPoint, metadata: Mapping[str, Any]) -> None:
        path, blob_sha, chunk = metadata.get("path"), metadata.get("blob_sha"), metadata.get("chunk_index")
        row = self._recorded.get(path) if isinstance(path, str) else None
        kind, what = DifferenceKind.STALE, ""
        if row is None:
            path = path if isinstance(path, str) else None
            kind, what = DifferenceKind.FOREIGN, "is not in the manifest, and has points"
        elif not row.chunks:
            why = f" ({row.skip_reason})" if row.skip_reason else ""
            kind, what = DifferenceKind.FOREIGN, f"is not indexed{why}, and has points"
            if blob_sha == row.blob_sha:
                # The row may be what is wrong; reading the file again decides.
                self._damaged.add(row.path)
        elif blob_sha != row.blob_sha:
            what = f"has points of another blob, {blob_sha!s:.10}; it is at {row.blob_sha[:10]}"
        elif not is_count(chunk) or chunk >= row.chunks:
            what = f"has a point of chunk {chunk!s:.20}, and {row.chunks} chunks (from 0 on)"
            self._damaged.add(row.path)  # as above
        elif point.id != point_id(self._version_id, row.path, row.blob_sha, chunk):
            kind, what = DifferenceKind.DUPLICATE, f"has a second point of chunk {chunk}"
        else:
            self._seen[row.path] = self._seen.get(row.path, 0) | 1 << chunk
            if wrong := list(self._wrong_fields(point, metadata, row)):
                what = f"has points whose {', '.join(wrong)} is not what was stored"
                self._report(DifferenceKind.ALTERED, row.path, what)
                self._damaged.add(row.path)
            return
        self._wrong[point.id] = kind, path, what

    def _wrong_fields(self, point: StoredPoint, metadata: Mapping[str, Any], row: ManifestRow) -> Iterator[str]:
        if _hash_of(point.payload.get("page_content")) != metadata.get("content_hash", ""):
            yield "page_content or content_hash"
        for key, value in {"repository": self._name, "language": row.language, "epoch": row.epoch}.items():
            # In Python True == 1 == 1.0; in JSON they differ.
            if key not in metadata or type(metadata[key]) is not type(value) or metadata[key] != value:
                yield key
        # Every glob admits a point without tokens, and each run adds missing ones.
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
            # A point with the id of this chunk whose payload says otherwise was altered; it must not be deleted after
            # the repair has overwritten it.
            altered = self._wrong.pop(point_id(self._version_id, path, row.blob_sha, chunk), None)
            if altered is not None:
                self._report(DifferenceKind.ALTERED, path, "has points whose payload names another file, blob or chunk")
            else:
                missing += 1
        if missing:
            self._report(DifferenceKind.MISSING, path, f"lacks {missing} of {row.chunks} points", missing)
        self._lost += missing
        self._damaged.add(path)

    def _report(self, kind: DifferenceKind, path: str | None, what: str, points: int = 1) -> None:
        self._counts[kind] += points
        key = kind, path
        if key in self._found:
            self._found[key] = self._found[key][0] + points, self._found[key][1]
        elif len(self._found) < MAX_DIFFERENCES:
            self._found[key] = points, what


def _metadata(point: StoredPoint) -> Mapping[str, Any]:
    metadata = point.payload.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _hash_of(text: object) -> str | None:
    try:
        return content_hash(text) if isinstance(text, str) else None
    except UnicodeEncodeError:  # a lone surrogate, which we never store
        return None


# The manifest against the commit --------------------------------------------------------------------------------------


async def audit_tree(parts: SyncParts, settings: SyncSettings, version: IndexVersion) -> list[Difference]:
    """Differences between the version's manifest and the commit that it holds. Files without points that the rules do
    not skip are read again: the reason in the manifest may be wrong.

    Raises what the source raises, also if it does not have that commit any more, or cannot read these files."""
    held = version.partial_commit or version.commit_sha
    if held is None:
        return []
    attributes = await parts.versions.attributes(version.id)
    commit = Commit(held, version.committed_at or datetime.now(UTC))
    target = await read_target(parts.source, settings, commit, attributes)
    if version.fingerprint not in (None, target.rules.fingerprint):
        what = "the settings changed since the last sync; the next sync applies them"
        return [Difference(DifferenceKind.SETTINGS, None, what)]
    recorded = await parts.manifests.load(version.id)
    plan = make_plan(target.tree, recorded, target.decide, reread=target.reads_otherwise)
    found = {each.path or "": each for each in _differences(plan, recorded)}
    doubted = [entry for entry in target.tree.entries if _is_doubted(target, entry, recorded)]
    if doubted:
        async with ContentWorkers(len(doubted), settings.content) as workers:
            async for batch in read_batches(
                parts.source,
                doubted,
                target.keeps_generated,
                max_file_bytes=settings.content.max_file_bytes,
                judge=_raise,
                progress=RunProgress(),
            ):
                for file in await workers.prepare(batch):
                    if file.chunks:
                        reason = recorded[file.path].skip_reason
                        what = f"must be indexed, but the manifest says that it is skipped ({reason})"
                        found[file.path] = Difference(DifferenceKind.MISSING, file.path, what, 1)
    return [found[path] for path in sorted(found)]


def _is_doubted(target: TargetTree, entry: TreeEntry, recorded: Mapping[str, ManifestRow]) -> bool:
    """Whether the manifest gives a reason for a file without points that the rules do not skip. A file that could not
    be read is reported as missing already."""
    row = recorded.get(path_text(entry.path))
    return row is not None and not row.chunks and row.skip_reason != Skip.FAILED and target.decide(entry) is None


def _raise(unreadable: UnreadableBlobs) -> None:
    raise unreadable


def _differences(plan: Plan, recorded: Mapping[str, ManifestRow]) -> Iterator[Difference]:
    """One a path."""
    for entry in plan.read:
        path, blob = path_text(entry.path), entry.sha[:10]
        row, kind, points = recorded.get(path), DifferenceKind.MISSING, 1
        if row is None:
            what = "is in the commit and not in the index"
        elif row.is_outdated:
            what = f"is at blob {blob} in the commit, which could not be read; the index has {row.blob_sha[:10]}"
        elif row.skip_reason == Skip.FAILED:
            what = "could not be read or embedded, and is not in the index"
        else:
            kind, points = DifferenceKind.UNLISTED, 0
            what = "must be read again: this version of reposync reads it differently"
            if row.blob_sha != entry.sha:
                what = f"is at blob {blob} in the commit, and at {row.blob_sha[:10]} in the manifest"
        yield Difference(kind, path, what, points)
    unlisted = {
        file.path: f"must be skipped ({file.skipped.reason.value}), but the manifest does not say so"
        for file in plan.skip
        if file.skipped
    }
    unlisted |= dict.fromkeys(plan.delete_rows, "is in the manifest and not in the commit")
    unproven = "is in the manifest and not in the listing, which cannot be proven to be complete"
    unlisted |= dict.fromkeys(plan.doubtful, unproven)
    for path, what in unlisted.items():
        yield Difference(DifferenceKind.UNLISTED, path, what)
