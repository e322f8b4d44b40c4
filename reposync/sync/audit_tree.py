"""The manifest against the tree of the recorded commit, as the source has it: the other half of `verify`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from reposync.content.model import Skip
from reposync.sources.paths import path_text
from reposync.sources.port import Commit
from reposync.store.manifest import ManifestRow
from reposync.store.repositories import Repository
from reposync.sync.audit import IndexState
from reposync.sync.audit_points import Difference, DifferenceKind
from reposync.sync.run import SyncParts, SyncSettings, Target, fingerprint, make_target


async def audit_tree(parts: SyncParts, settings: SyncSettings, repository: Repository) -> list[Difference]:
    """What the manifest says otherwise than `repository.last_commit`; nothing where no sync was completed yet. No file
    is read. Raises what the source raises, also where it does not have that commit any more."""
    if repository.last_commit is None:
        return []
    commit = Commit(repository.last_commit, repository.last_committed_at or datetime.now(UTC))
    target = await make_target(parts, settings, repository, commit, IndexState(""), reread=False)
    if fingerprint(settings, target.attributes) != repository.content_fingerprint:
        what = "the settings changed since the last sync; the next one goes by them"
        return [Difference(DifferenceKind.SETTINGS, None, what)]
    told = {path: Difference(DifferenceKind.UNLISTED, path, what) for path, what in _unlisted(target)}
    return [told[path] for path in sorted(told)]


def _unlisted(target: Target) -> Iterator[tuple[str, str]]:
    plan, recorded = target.plan, target.recorded
    for entry in plan.read:
        row = recorded.get(path_text(entry.path))
        if row is None or not _failed(row, entry.sha):
            yield path_text(entry.path), _difference(row, entry.sha)
    for each in plan.skip:
        yield each.path, f"is to be skipped ({each.skipped.reason.value}), and the manifest does not say so"
    for path in plan.forget:
        yield path, "is in the manifest and not in the commit"


def _failed(row: ManifestRow, sha: str) -> bool:
    """It was read and could not be processed, which the history tells."""
    return row.skip_reason == Skip.FAILED and row.blob_sha == sha


def _difference(row: ManifestRow | None, sha: str) -> str:
    if row is None:
        return "is in the commit and not in the manifest"
    if row.blob_sha != sha:
        return f"is at blob {sha[:10]} in the commit, and at {row.blob_sha[:10]} in the manifest"
    return "is to be indexed, and the manifest says that it is skipped"
