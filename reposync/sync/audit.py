"""Audits of a version of the index: its points against the manifest, and the manifest against the commit's tree.

A run audits before and after its work; `verify` proves the rest, and a repair run fixes what an audit finds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from reposync.content.model import Skip, content_hash
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Commit, TreeEntry, path_text
from reposync.store.manifest import ManifestRow
from reposync.store.tables import IndexVersion
from reposync.symbol import read_symbols
from reposync.sync.index_versions import Situation
from reposync.sync.pipeline import read_files
from reposync.sync.plan import Plan, make_plan
from reposync.sync.progress import RunProgress
from reposync.sync.stored_points import is_count
from reposync.sync.target import SyncParts, SyncSettings, TargetTree, read_target
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
    parts: SyncParts, situation: Situation, name: str, *, thorough: bool, repair: bool = False
) -> IndexState:
    """Two counts show whether the index is as the last run left it: of all points, and of those of the newest epoch,
    which an older snapshot with as many points lacks. Every id is compared only if a count differs, the collection was
    made again, or `thorough`; whole points for a `repair`. `name`: the repository's."""
    version, manifests = situation.working, parts.manifests
    index = parts.open_index(version.physical)
    identity = await index.ensure(situation.wanted.spec)
    totals = await manifests.totals(version.id)
    points = await index.count(version.id, expected=totals.chunks)
    remade = version.index_identity not in (None, identity) and totals.chunks > 0
    newest = 0
    if totals.chunks:
        newest = await index.count(version.id, epoch=totals.max_epoch, expected=totals.chunks_of_max_epoch)
    is_newest = newest == totals.chunks_of_max_epoch
    if points == totals.chunks and is_newest and not (remade or thorough or repair):
        return IndexState(identity, totals.failed)
    recorded = await manifests.load(version.id)
    why = None
    audit = Audit() if repair else await audit_ids(index, version.id, recorded)
    # Points of another run than their row, though every id is there: other chunk settings give the same id another
    # text; and `--full` replaces points in place, and may be killed before it writes the row.
    others = audit.clean and not is_newest and not remade
    if repair or others:
        audit = await audit_points(index, version.id, name, recorded, words_only=version.has_words_only)
    if repair and audit.counts:
        kinds = [f"{count:,} {kind.value.replace('_', ' ')}" for kind, count in audit.counts.items()]
        why = f"Repaired on request: {', '.join(kinds)}."
    elif others and audit.damaged:
        why = (
            f"Points of {len(audit.damaged)} files were not those that the manifest records (restored from an older "
            "snapshot, or left by a worker that was killed)."
        )
    elif audit.damaged:
        why = (
            f"The index had lost {audit.lost} of {totals.chunks} points, in {len(audit.damaged)} files "
            "(dropped, restored from an older snapshot, or left by a worker that was killed)."
        )
    if remade:
        lost = await index.lost()
        why = f"The index was made again. {lost}" if lost else "The collection was dropped and made again."
    return IndexState(identity, totals.failed, audit, why, remade)


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
    index: QdrantIndex, version_id: str, name: str, recorded: Mapping[str, ManifestRow], *, words_only: bool = False
) -> Audit:
    """Read every point, page by page. If our collection does not exist, every chunk is missing. `name`: the
    repository's, which its points repeat. `words_only`: they have no dense vectors."""
    spec = await index.spec()
    for _ in range(_REPLICA_ATTEMPTS):
        comparison = _PointComparison(version_id, name, recorded)
        comparison.missing = await asyncio.to_thread(_owners, version_id, recorded)
        if spec is not None:
            async for page in index.points(version_id):
                # Hashing a page takes some 10 ms.
                await asyncio.to_thread(comparison.add_page, page)
            if spec.dimension and not words_only:
                async for page in index.points(version_id, without_vector=True):
                    comparison.add_without_vector(page)
            if comparison.missing and await index.existing(list(comparison.missing)):
                continue  # a replica that had just been started again was read
        break
    return await asyncio.to_thread(comparison.result)


@dataclass(slots=True)
class _PointComparison:
    """`missing`: recorded points that were not listed yet, with their paths."""

    version_id: str
    name: str
    recorded: Mapping[str, ManifestRow]
    missing: dict[PointId, str] = field(default_factory=dict)
    orphans: set[PointId] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    points: int = 0
    found: dict[tuple[DifferenceKind, str | None], Difference] = field(default_factory=dict)
    counts: Counter[DifferenceKind] = field(default_factory=Counter)

    def add_page(self, page: Sequence[StoredPoint]) -> None:
        self.points += len(page)
        for point in page:
            if (path := self.missing.pop(point.id, None)) is None:
                self._add_orphan(point.id, _metadata(point))
            elif wrong := list(self._wrong_fields(point, _metadata(point), self.recorded[path])):
                what = f"has points whose {', '.join(wrong)} is not what was stored"
                self._report(DifferenceKind.ALTERED, path, what)
                self.damaged.add(path)

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
        if not (is_of_row and is_count(chunk) and point_id(self.version_id, row.path, row.blob_sha, chunk) == point.id):
            yield "path, blob_sha or chunk_index"
        if _hash_of(point.payload.get("page_content")) != metadata.get("content_hash", ""):
            yield "page_content or content_hash"
        for key, value in {"repository": self.name, "language": row.language, "epoch": row.epoch}.items():
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
        commit = metadata.get("commit")
        if not isinstance(commit, str) or len(commit) not in (40, 64):
            yield "commit"
        if "url" not in metadata or not isinstance(metadata["url"], str | None):
            yield "url"

    def _report(self, kind: DifferenceKind, path: str | None, what: str, points: int = 1) -> None:
        self.counts[kind] += points
        before = self.found.get((kind, path))
        if before is not None:
            self.found[kind, path] = replace(before, points=before.points + points)
        elif len(self.found) < MAX_DIFFERENCES:
            self.found[kind, path] = Difference(kind, path, what, points)


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
    async for files in read_files(parts.source, doubted, target, settings.content, RunProgress(), _raise):
        for file in files:
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
