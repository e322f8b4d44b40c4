"""Audits of a version of the index: its points against the manifest, and the manifest against the commit's tree.

A run audits before and after its work; `verify` proves the rest, and a repair run fixes what an audit finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Commit, TreeEntry, path_text
from reposync.store.manifest import ManifestRow
from reposync.sync.index_versions import Situation, VersionSettings
from reposync.sync.pipeline import read_files
from reposync.sync.point_audit import Audit, Difference, DifferenceKind, PointComparison, audit_ids, audit_points
from reposync.sync.prepare import PreparedFile
from reposync.sync.progress import RunProgress
from reposync.sync.shown_texts import hide_paths
from reposync.sync.target import SyncParts, TargetTree, read_target
from reposync.vectors.collection import SCHEMA_REVISION
from reposync.vectors.port import PointId, StoredPoint


@dataclass(frozen=True, slots=True)
class IndexState:
    """What a run finds. `failed`: files that the last run could not read. `why`: what was wrong with the index; None if
    nothing was. `remade`: the collection is not the one that the last run wrote to."""

    identity: str
    failed: int = 0
    audit: Audit = field(default_factory=Audit)
    why: str | None = None
    remade: bool = False


async def inspect_index(parts: SyncParts, situation: Situation, *, repair: bool = False) -> IndexState:
    """Two counts show whether the index is as the last run left it: of all points, and of those of the newest epoch,
    which an older snapshot with as many points lacks. Every id is compared only if a count differs or the collection
    was made again; whole points for a `repair`."""
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
    if points == totals.chunks and is_newest and not (remade or repair):
        return IndexState(identity, totals.failed)
    recorded = await manifests.load(version.id)
    audit = Audit() if repair else await audit_ids(index, version.id, recorded)
    # Points of another run than their row, though every id is there: other chunk settings give the same id another
    # text; and `--full` replaces points in place, and may be killed before it writes the row.
    if repair or (audit.clean and not is_newest and not remade):
        comparison = PointComparison(index, version, parts.repository.name, await parts.versions.origin(version))
        audit = await audit_points(comparison, recorded)
    kinds = ", ".join(f"{count:,} {kind.value.replace('_', ' ')}" for kind, count in audit.counts.items())
    why = None
    if remade:
        why = f"The index was made again. {await index.lost() or 'Its collection was dropped.'}"
    elif repair and kinds:
        why = f"Repaired on request: {kinds}."
    elif audit.damaged:
        why = (
            f"Points were not those of the manifest: {kinds} of {totals.chunks:,} (dropped, restored from an older "
            "snapshot, or left by a worker that was killed)."
        )
    return IndexState(identity, totals.failed, audit, why, remade)


# The manifest against the commit --------------------------------------------------------------------------------------


async def audit_source(
    parts: SyncParts,
    comparison: PointComparison,
    recorded: Mapping[str, ManifestRow],
    audit: Audit,
) -> None:
    """Add the differences from the commit that the version holds: of its tree, and of what its files give if they are
    read again, also those that the manifest leaves out and the rules do not.

    Raises what the source raises, also if it does not have that commit any more, or cannot read these files."""
    version, settings = comparison.version, parts.settings
    held = version.held_commit
    if held is None:
        return
    attributes = await parts.versions.attributes(version.id)
    commit = Commit(held, version.committed_at or datetime.now(UTC))
    target = await read_target(parts.source, settings, commit, attributes)
    target = await hide_paths(parts.content, target, [])
    made = VersionSettings.read(version.settings)
    is_older = made is not None and made.schema != SCHEMA_REVISION
    if is_older or version.fingerprint not in (None, target.fingerprint):
        what = "the settings, or reposync, changed since the last sync; the next sync applies that"
        audit.add(Difference(DifferenceKind.SETTINGS, None, what))
        return
    entries = await asyncio.to_thread(_compare_tree, target, recorded, audit)

    def compare(files: Sequence[PreparedFile], stored: Mapping[PointId, StoredPoint]) -> None:
        for file in files:
            row, kind = recorded[file.path], DifferenceKind.UNLISTED
            if row.blob_sha != file.sha:
                what = f"is at blob {file.sha[:10]} in the commit, and at {row.blob_sha[:10]} in the manifest"
                audit.add(Difference(kind, file.path, what))
            elif len(file.chunks) != row.chunks:
                kind = DifferenceKind.CONTENT if row.chunks else DifferenceKind.MISSING
                what = f"has {row.chunks:,} chunks in the index; its content gives {len(file.chunks):,}"
                audit.add(Difference(kind, file.path, what))
            elif file.path not in audit.damaged and (differs := comparison.difference(row, stored, file.chunks)):
                audit.add(differs)

    content = settings.content if made is None else made.content
    async for files in read_files(
        parts.content, parts.source, entries, target, content, settings.secrets, RunProgress(), _raise
    ):
        await asyncio.to_thread(compare, files, await comparison.stored(recorded[file.path] for file in files))


def _compare_tree(target: TargetTree, recorded: Mapping[str, ManifestRow], audit: Audit) -> list[TreeEntry]:
    """Returns the files that have to be read to compare them."""
    listing = "commit" if target.tree.proven else "listing, which cannot be proven to be complete"
    entries, unlisted = [], dict.fromkeys(recorded, f"is in the manifest and not in the {listing}")
    for entry in target.tree.entries:
        path, skipped = path_text(entry.path), target.decide(entry)
        row, _ = recorded.get(path), unlisted.pop(path, None)
        if skipped is not None:
            if row is None or row.skip_reason != skipped.reason:
                unlisted[path] = f"must be skipped ({skipped.reason.value}), but the manifest does not say so"
        elif row is None or row.is_failed:
            what = "is in the commit and not in the index" if row is None else "could not be read or embedded"
            audit.add(Difference(DifferenceKind.MISSING, path, what))
        else:
            entries.append(entry)
    for path, what in unlisted.items():
        audit.add(Difference(DifferenceKind.UNLISTED, path, what))
    return entries


def _raise(unreadable: UnreadableBlobs) -> None:
    raise unreadable
