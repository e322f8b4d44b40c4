"""Decides what a run has to do: the commit's tree against the manifests. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from reposync.content.model import Skip, Skipped
from reposync.ordering import in_order
from reposync.sources.port import Tree, TreeEntry, path_text
from reposync.store.manifest import ManifestRow
from reposync.sync.brake import Losses, losses_of
from reposync.sync.index_versions import Situation
from reposync.sync.prepare import PreparedFile
from reposync.sync.target import TargetTree

Decide = Callable[[TreeEntry], Skipped | None]
Reread = Callable[[TreeEntry, ManifestRow], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference between a tree and a manifest."""

    read: Sequence[TreeEntry]
    """The content of these files must be indexed."""
    skip: Sequence[PreparedFile]
    """These files are recorded as skipped because of their path or mode."""
    delete_points: Sequence[str]
    """The points of these paths are deleted: they are gone, or skipped from now on."""
    delete_rows: Sequence[str]
    """The manifest rows of these paths are deleted."""
    doubtful: Sequence[str]
    """These indexed paths are not in a tree that is not proven to be complete; they are kept."""
    listed: int
    unchanged: int
    renamed: int

    @property
    def is_empty(self) -> bool:
        return not (self.read or self.skip or self.delete_points or self.delete_rows or self.doubtful)


def make_plan(
    tree: Tree,
    recorded: Mapping[str, ManifestRow],
    decide: Decide,
    *,
    reread: Reread = lambda entry, row: False,
    damaged: Collection[str] = frozenset(),
) -> Plan:
    """Compare `tree` with the `recorded` manifest (path text -> row).

    `decide`: why a file is skipped. `reread`: whether to read a file again although its blob is recorded. `damaged`:
    paths whose points are no longer all in the index.
    """
    read: list[TreeEntry] = []
    skip: list[PreparedFile] = []
    delete_points: list[str] = []
    seen: set[str] = set()
    unchanged = 0
    for entry in tree.entries:
        path = path_text(entry.path)
        seen.add(path)
        row = recorded.get(path)
        skipped = decide(entry)
        if skipped is not None:
            if row is not None and row.chunks:
                delete_points.append(path)
            if row is not None and row.blob_sha == entry.sha and _is_skipped_for(row, skipped):
                unchanged += 1
            else:
                skip.append(PreparedFile(path, entry.mode, entry.sha, None, skipped=skipped))
        elif row is not None and _is_current(row, entry) and path not in damaged and not reread(entry, row):
            unchanged += 1
        else:
            read.append(entry)

    missing = [path for path in recorded if path not in seen]
    gone = missing if tree.proven else []
    gone_indexed = [path for path in gone if recorded[path].chunks]
    moved_from = {recorded[path].blob_sha for path in gone_indexed}
    return Plan(
        # Neighbours in the tree are neighbours in packs and pages, and a sorted plan makes runs repeatable.
        read=in_order(read, lambda entry: entry.path),
        skip=skip,
        delete_points=[*delete_points, *gone_indexed],
        delete_rows=gone,
        doubtful=[] if tree.proven else missing,
        listed=len(seen),
        unchanged=unchanged,
        renamed=sum(1 for entry in read if entry.sha in moved_from),
    )


def _is_skipped_for(row: ManifestRow, skipped: Skipped) -> bool:
    return row.skip_reason == skipped.reason and row.size_bytes is None and not row.is_outdated


def _is_current(row: ManifestRow, entry: TreeEntry) -> bool:
    """Whether this row is the result (points, or a skip reason) of reading that blob. A row that the path alone decided
    has no size; a failed file is tried again."""
    read = row.size_bytes is not None and row.skip_reason != Skip.FAILED
    return read and row.blob_sha == entry.sha and row.wanted_sha in (None, row.blob_sha)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does to a version of the index. `target`: the commit's tree, as it is shown. `recorded`: the version's
    manifest. `searched`: the manifest of the version that is searched meanwhile: the same one, unless a new version is
    built. `losses`: files that would not be searchable any more."""

    target: TargetTree
    plan: Plan
    recorded: Mapping[str, ManifestRow]
    searched: Mapping[str, ManifestRow]
    losses: Losses


def plan_work(
    target: TargetTree,
    situation: Situation,
    recorded: Mapping[str, ManifestRow],
    searched: Mapping[str, ManifestRow],
    *,
    damaged: Collection[str],
    full_from_epoch: int | None,
    repair: bool,
) -> Work:
    """Takes seconds for a large tree: call it in a thread. `full_from_epoch`: read every file again except those that
    were stored in a later epoch; None: only what changed. `repair`: also read files that their content kept out."""

    def reread(entry: TreeEntry, row: ManifestRow) -> bool:
        doubted = repair and row.skip_reason is not None
        requested = full_from_epoch is not None and row.epoch <= full_from_epoch
        return doubted or requested or target.reads_otherwise(entry, row)

    plan = make_plan(target.tree, recorded, target.decide, reread=reread, damaged=damaged)
    # Files of a different branch or source say nothing about those of this one.
    is_same = situation.same_origin or not situation.builds
    kept = not target.tree.proven and is_same
    shown = {target.hidden.get(path, path): row for path, row in searched.items()} if target.hidden else searched
    losses = losses_of(shown, target.tree.entries, target.decide, count_missing=not kept)
    if kept and situation.builds:
        known = {path_text(entry.path) for entry in target.tree.entries} | recorded.keys()
        unlisted = [path for path, row in searched.items() if row.chunks and path not in known]
        plan = replace(plan, doubtful=[*plan.doubtful, *unlisted])
    return Work(target, plan, recorded, searched, losses)
