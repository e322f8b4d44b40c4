"""The index against the tree of the recorded commit, as the source has it: the other half of `verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from reposync.content.model import Skip
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.paths import path_text
from reposync.sources.port import Commit, TreeEntry
from reposync.store.manifest import ManifestRow
from reposync.store.versions import IndexVersion
from reposync.sync.audit_points import Difference, DifferenceKind
from reposync.sync.pipeline import read_batches
from reposync.sync.plan import Plan, make_plan
from reposync.sync.progress import RunProgress
from reposync.sync.target import SyncParts, SyncSettings, Target, read_target
from reposync.sync.workers import ContentWorkers

_BATCH_BYTES = 500_000


async def audit_tree(parts: SyncParts, settings: SyncSettings, version: IndexVersion) -> list[Difference]:
    """What the commit that the version holds has otherwise. Files that are to be indexed and have no points are read
    again: a manifest that gives a reason may be wrong. Nothing where no commit is held yet.

    Raises what the source raises, also where it does not have that commit any more, or cannot give these files."""
    held = version.partial_commit or version.commit
    if held is None:
        return []
    attributes = await parts.versions.attributes(version.id)
    commit = Commit(held, version.committed_at or datetime.now(UTC))
    target = await read_target(parts.source, settings, commit, attributes)
    if version.fingerprint not in (None, target.rules.fingerprint):
        what = "the settings changed since the last sync; the next one goes by them"
        return [Difference(DifferenceKind.SETTINGS, None, what)]
    recorded = await parts.manifests.load(version.id)
    plan = make_plan(target.tree, recorded, target.decide, reread=target.reads_otherwise)
    found = {each.path: each for each in _differences(plan, recorded)}
    doubted = [entry for entry in target.tree.entries if _is_left_out(target, entry, recorded)]
    for path in await _with_chunks(parts, settings, target, doubted):
        what = f"is to be indexed, and the manifest says that it is left out ({recorded[path].skip_reason})"
        found[path] = Difference(DifferenceKind.MISSING, path, what, 1)
    return [found[path] for path in sorted(found, key=str)]


def _is_left_out(target: Target, entry: TreeEntry, recorded: Mapping[str, ManifestRow]) -> bool:
    """Whether the manifest has a reason for a file without points that the rules do not keep out. Of one that could not
    be read it is known already that it is missing."""
    row = recorded.get(path_text(entry.path))
    if row is None or row.chunks or row.skip_reason == Skip.FAILED:
        return False
    return target.decide(entry) is None


async def _with_chunks(parts: SyncParts, settings: SyncSettings, target: Target, entries: list[TreeEntry]) -> list[str]:
    """The paths of those that have something to index after all."""
    found: list[str] = []
    if not entries:
        return found
    async with ContentWorkers(len(entries), settings.content) as workers:
        async for batch in read_batches(
            parts.source,
            entries,
            target.keeps_generated,
            max_file_bytes=settings.content.max_file_bytes,
            batch_bytes=_BATCH_BYTES,
            judge=_cannot_tell,
            progress=RunProgress(),
        ):
            found += [file.path for file in await workers.prepare(batch) if file.chunks]
    return found


def _cannot_tell(unreadable: UnreadableBlobs) -> None:
    raise unreadable


def _differences(plan: Plan, recorded: Mapping[str, ManifestRow]) -> Iterator[Difference]:
    for entry in plan.read:
        path = path_text(entry.path)
        row = recorded.get(path)
        if row is not None and row.is_outdated:
            what = (
                f"is at blob {entry.sha[:10]} in the commit, which could not be read; the index has {row.blob_sha[:10]}"
            )
            yield Difference(DifferenceKind.MISSING, path, what, 1)
        elif row is not None and row.skip_reason == Skip.FAILED:
            yield Difference(DifferenceKind.MISSING, path, "could not be read or embedded, and is not in the index", 1)
        elif row is None:
            yield Difference(DifferenceKind.MISSING, path, "is in the commit and not in the index", 1)
        elif row.blob_sha != entry.sha:
            what = f"is at blob {entry.sha[:10]} in the commit, and at {row.blob_sha[:10]} in the manifest"
            yield Difference(DifferenceKind.UNLISTED, path, what)
        else:
            what = "is to be read again: this version of reposync reads it differently"
            yield Difference(DifferenceKind.UNLISTED, path, what)
    for each in plan.skip:
        what = f"is to be skipped ({each.skipped.reason.value}), and the manifest does not say so"
        yield Difference(DifferenceKind.UNLISTED, each.path, what)
    for path in plan.forget:
        yield Difference(DifferenceKind.UNLISTED, path, "is in the manifest and not in the commit")
    for path in plan.doubtful:
        what = "is in the manifest and not in the listing, which cannot be proven to be complete"
        yield Difference(DifferenceKind.UNLISTED, path, what)
