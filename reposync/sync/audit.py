"""Does the index hold what the manifest says? Asked before every run, and again before one is called completed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reposync.embedding.port import EmbeddingSpec
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.versions import IndexVersion
from reposync.vectors.port import Index, PointId, point_id

_REMADE = "The collection was dropped and made again."


@dataclass(frozen=True, slots=True)
class Audit:
    """Every point of a version against its manifest. `damaged`: paths that lack points; `orphans`: ids of points that
    no row accounts for; `lost` counts the points that are missing."""

    damaged: frozenset[str] = frozenset()
    orphans: frozenset[PointId] = frozenset()
    lost: int = 0

    @property
    def clean(self) -> bool:
        return not (self.damaged or self.orphans)


@dataclass(frozen=True, slots=True)
class IndexState:
    """What a run finds. `failed`: files that the last run could not read. `why` says in a sentence what was wrong; None
    where the index is as it was left. `note`: what is no fault of the index and explains what the run does. `remade`:
    the whole collection is another one."""

    identity: str
    failed: int = 0
    audit: Audit = field(default_factory=Audit)
    why: str | None = None
    note: str | None = None
    remade: bool = False


async def inspect_index(
    index: Index, spec: EmbeddingSpec, version: IndexVersion, manifests: Manifests, *, thorough: bool
) -> IndexState:
    """Two counts tell whether the index is as the last run left it: of all points, and of those of the newest epoch,
    which an older snapshot with as many points lacks. Only a mismatch, another collection than before (it was dropped
    and made again), or `thorough`, compares every id."""
    identity = await index.ensure(spec)
    totals = await manifests.totals(version.id)
    points = await index.count(version.id)
    remade = version.index_identity not in (None, identity) and totals.chunks > 0
    newest = await index.count(version.id, epoch=totals.max_epoch) if totals.chunks else 0
    same = points == totals.chunks and newest == totals.chunks_of_max_epoch
    if same and not remade and not thorough:
        return IndexState(identity, totals.failed)
    recorded = await manifests.load(version.id)
    audit = await audit_index(index, version.id, recorded)
    if remade:
        return IndexState(identity, totals.failed, audit, await why_remade(index), remade=True)
    if audit.clean and newest != totals.chunks_of_max_epoch:
        # Every id is there, and some points are not those of their row's run: the same id with other text, as other
        # chunk settings make it.
        older, newer = await _written_otherwise(index, version.id, recorded)
        why = note = None
        if older:
            why = f"Points of {len(older)} files were not those that the last run stored (an older snapshot?)."
        if newer:
            files = "1 file" if len(newer) == 1 else f"{len(newer):,} files"
            note = f"A run was interrupted while it stored {files} anew, which was done once more."
        return IndexState(identity, totals.failed, Audit(damaged=older | newer), why, note)
    lost = None
    if audit.damaged:
        lost = (
            f"The index had lost {audit.lost} of {totals.chunks} points, in {len(audit.damaged)} files "
            "(dropped, restored from an older snapshot, or left by a worker that was killed)."
        )
    return IndexState(identity, totals.failed, audit, lost)


async def why_remade(index: Index) -> str:
    """What became of the collection before this one."""
    lost = await index.lost()
    return f"The index was made again. {lost}" if lost else _REMADE


async def _written_otherwise(
    index: Index, version_id: str, recorded: Mapping[str, ManifestRow]
) -> tuple[frozenset[str], frozenset[str]]:
    """Paths with points of an earlier run than their row says, and with points of a later one: `--full` writes points
    that are there already, and was killed or cancelled before it wrote the row."""
    owners = _owners(version_id, recorded)
    older: set[str] = set()
    newer: set[str] = set()
    async for page in index.points(version_id):
        for point in page:
            said, path = point.payload.get("metadata"), owners.get(point.id)
            epoch = said.get("epoch") if isinstance(said, Mapping) else None
            if path is not None and epoch != recorded[path].epoch:
                is_newer = isinstance(epoch, int) and epoch > recorded[path].epoch
                (newer if is_newer else older).add(path)
    return frozenset(older), frozenset(newer)


def _owners(version_id: str, recorded: Mapping[str, ManifestRow]) -> dict[PointId, str]:
    return {
        point_id(version_id, path, row.blob_sha, chunk): path
        for path, row in recorded.items()
        for chunk in range(row.chunks)
    }


async def audit_index(index: Index, version_id: str, recorded: Mapping[str, ManifestRow]) -> Audit:
    """Compare ids, which follow from (path, blob, chunk): no payload and no vector is read."""
    owners = _owners(version_id, recorded)
    orphans: set[PointId] = set()
    async for page in index.point_ids(version_id):
        orphans.update(each for each in page if owners.pop(each, None) is None)
    return Audit(frozenset(owners.values()), frozenset(orphans), lost=len(owners))
