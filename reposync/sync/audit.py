"""Audits of a version of the index: its points against the manifest, and the manifest against the commit's tree.

A run audits before and after its work; `verify` proves the rest, and a repair run fixes what an audit finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from reposync.content.model import Skip
from reposync.ordering import in_order
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Commit, TreeEntry, path_text
from reposync.store.manifest import ManifestRow
from reposync.store.tables import IndexVersion
from reposync.sync.index_versions import Situation, VersionSettings
from reposync.sync.pipeline import read_files
from reposync.sync.plan import Plan, make_plan
from reposync.sync.point_audit import (
    Audit,
    Difference,
    DifferenceKind,
    audit_ids,
    audit_points,
    is_stored,
    stored_digests,
)
from reposync.sync.prepare import PreparedFile
from reposync.sync.progress import RunProgress
from reposync.sync.target import SyncParts, SyncSettings, TargetTree, read_target
from reposync.vectors.collection import SCHEMA_REVISION
from reposync.vectors.port import PointId


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
        origin = await parts.versions.origin(version)
        audit = await audit_points(index, version, name, recorded, origin)
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


# The manifest against the commit --------------------------------------------------------------------------------------


async def audit_source(parts: SyncParts, settings: SyncSettings, version: IndexVersion) -> list[Difference]:
    """Differences between the version and the commit that it holds: between manifest and tree, and between points and
    what the content of their files gives. Files without points that the rules do not skip are read again, too: the
    reason in the manifest may be wrong.

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
    made = VersionSettings.read(version.settings)
    if made is not None and made.schema != SCHEMA_REVISION:
        what = "a different version of reposync made its points; the next sync makes them again"
        return [Difference(DifferenceKind.SETTINGS, None, what)]
    recorded = await parts.manifests.load(version.id)
    found, entries = await asyncio.to_thread(_compared, target, recorded)
    stored = await stored_digests(parts.open_index(version.physical), version.id)
    content = settings.content if made is None else made.content
    async for files in read_files(parts.content, parts.source, entries, target, content, RunProgress(), _raise):
        for file in files:
            if (difference := _content_difference(file, recorded[file.path], stored, version.id)) is not None:
                found[file.path] = difference
    return await asyncio.to_thread(lambda: [found[path] for path in in_order(found, str)])


def _compared(target: TargetTree, recorded: Mapping[str, ManifestRow]) -> tuple[dict[str, Difference], list[TreeEntry]]:
    """Differences between manifest and tree, by path, and the files that are read again."""
    plan = make_plan(target.tree, recorded, target.decide, reread=target.reads_otherwise)
    found = {each.path or "": each for each in _differences(plan, recorded)}
    return found, [entry for entry in target.tree.entries if _is_read_again(target, entry, recorded)]


def _is_read_again(target: TargetTree, entry: TreeEntry, recorded: Mapping[str, ManifestRow]) -> bool:
    """Whether the file has points of this blob, as this program reads it, or the manifest gives a reason for a file
    without points that the rules do not skip. A file that could not be read is reported as missing already."""
    row = recorded.get(path_text(entry.path))
    if row is None or row.is_failed or target.decide(entry) is not None:
        return False
    return not row.chunks or (row.blob_sha == entry.sha and not target.reads_otherwise(entry, row))


def _content_difference(
    file: PreparedFile, row: ManifestRow, stored: Mapping[PointId, bytes], version_id: str
) -> Difference | None:
    if not row.chunks and file.chunks:
        what = f"must be indexed, but the manifest says that it is skipped ({row.skip_reason})"
        return Difference(DifferenceKind.MISSING, file.path, what, 1)
    if len(file.chunks) != row.chunks:
        what = f"has {row.chunks:,} chunks in the index; its content gives {len(file.chunks):,}"
        return Difference(DifferenceKind.CONTENT, file.path, what, 1)
    if not is_stored(stored, version_id, file):
        what = "has points whose text, language, lines or definitions are not those of its content"
        return Difference(DifferenceKind.CONTENT, file.path, what, 1)
    return None


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
