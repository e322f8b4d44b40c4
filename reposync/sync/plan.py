"""What a run has to do: the commit's tree against a version's manifest. Pure: no input, no output, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from reposync.content.model import Skip, Skipped
from reposync.sources.paths import path_text
from reposync.sources.port import Tree, TreeEntry
from reposync.store.manifest import ManifestRow

Decide = Callable[[TreeEntry], Skipped | None]
Reread = Callable[[TreeEntry, ManifestRow], bool]


@dataclass(frozen=True, slots=True)
class PathSkip:
    """A file that its path or mode alone keeps out of the index."""

    entry: TreeEntry
    path: str
    skipped: Skipped


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference that a run applies.

    `read`: files whose content must be (re)indexed. `skip`: files to be recorded as skipped. `unindex`: paths whose
    points go (deleted, or skipped from now on). `forget`: paths whose manifest row goes. `doubtful`: recorded paths
    that the tree lacks, where the tree is not proven to be complete: they stay.
    """

    read: Sequence[TreeEntry]
    skip: Sequence[PathSkip]
    unindex: Sequence[str]
    forget: Sequence[str]
    doubtful: Sequence[str]
    listed: int
    unchanged: int
    renamed: int

    @property
    def is_empty(self) -> bool:
        return not (self.read or self.skip or self.unindex or self.forget or self.doubtful)


def make_plan(
    tree: Tree,
    recorded: Mapping[str, ManifestRow],
    decide: Decide,
    *,
    reread: Reread = lambda entry, row: False,
    damaged: Collection[str] = frozenset(),
) -> Plan:
    """Compare `tree` with the `recorded` manifest (path text -> row).

    `decide` says why a file is skipped. `reread`: whether to read a file again although its blob is
    recorded. `damaged`: paths whose points are no longer all in the index.
    """
    read: list[TreeEntry] = []
    skip: list[PathSkip] = []
    unindex: list[str] = []
    seen: set[str] = set()
    unchanged = 0
    for entry in tree.entries:
        path = path_text(entry.path)
        seen.add(path)
        row = recorded.get(path)
        skipped = decide(entry)
        if skipped is not None:
            if row is not None and row.chunks:
                unindex.append(path)
            if row is not None and row.blob_sha == entry.sha and _is_skipped_for(row, skipped):
                unchanged += 1
            else:
                skip.append(PathSkip(entry, path, skipped))
        elif row is not None and _is_current(row, entry) and path not in damaged and not reread(entry, row):
            unchanged += 1
        else:
            read.append(entry)

    missing = [path for path in recorded if path not in seen]
    gone = missing if tree.proven else []
    gone_indexed = [path for path in gone if recorded[path].chunks]
    unindex.extend(gone_indexed)
    moved_from = {recorded[path].blob_sha for path in gone_indexed}
    return Plan(
        # Neighbours in the tree are neighbours in packs and pages, and a sorted plan makes runs repeatable.
        read=sorted(read, key=lambda entry: entry.path),
        skip=skip,
        unindex=unindex,
        forget=gone,
        doubtful=[] if tree.proven else missing,
        listed=len(seen),
        unchanged=unchanged,
        renamed=sum(1 for entry in read if entry.sha in moved_from),
    )


def _is_skipped_for(row: ManifestRow, skipped: Skipped) -> bool:
    return row.skip_reason == skipped.reason and row.size_bytes is None and not row.is_outdated


def _is_current(row: ManifestRow, entry: TreeEntry) -> bool:
    """Whether this row says what the content of that blob gave (points, or a reason to skip). One that the path alone
    decided has no size; one that failed is tried again."""
    read = row.size_bytes is not None and row.skip_reason != Skip.FAILED
    return read and row.blob_sha == entry.sha and row.wanted_sha in (None, row.blob_sha)
