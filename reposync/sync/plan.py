"""What a run has to do: the commit's tree against the recorded manifest. Pure: no input, no output, no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from reposync.content.model import Skip, Skipped
from reposync.errors import DeletionBlocked
from reposync.sources.paths import path_text
from reposync.sources.port import TreeEntry

# Below this many vanished files a deletion is never suspicious: small repositories are rearranged all the time.
BRAKE_MINIMUM_FILES = 20
BRAKE_SHARE = 0.5


class Recorded(Protocol):
    """What the plan reads of a manifest row."""

    @property
    def blob_sha(self) -> str: ...
    @property
    def size_bytes(self) -> int | None: ...
    @property
    def chunks(self) -> int: ...
    @property
    def skip_reason(self) -> str | None: ...


Decide = Callable[[bytes, int], Skipped | None]


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
    points go (deleted, or skipped from now on). `forget`: paths whose manifest row goes. `indexed_before` counts the
    recorded files with points, `vanished` those of them of which the tree has neither the path nor the content.
    """

    read: Sequence[TreeEntry]
    skip: Sequence[PathSkip]
    unindex: Sequence[str]
    forget: Sequence[str]
    listed: int
    unchanged: int
    renamed: int
    indexed_before: int
    vanished: int

    @property
    def is_empty(self) -> bool:
        return not (self.read or self.skip or self.unindex or self.forget)

    def stop_if_suspicious(self, *, approved: bool) -> None:
        """The deletion brake. Raises DeletionBlocked where the listing is empty or lacks more than half of the recorded
        files (and more than 20): a listing that failed must never delete an index."""
        if approved or not self.indexed_before:
            return
        emptied = self.listed == 0
        shrunk = self.vanished > BRAKE_MINIMUM_FILES and self.vanished > self.indexed_before * BRAKE_SHARE
        if emptied or shrunk:
            what = (
                "has no file at all" if emptied else f"lacks {self.vanished} of the {self.indexed_before} indexed files"
            )
            raise DeletionBlocked(
                f"The new listing {what}; nothing was deleted.",
                remedy="If that is right, approve it with `reposync sync NAME --allow-mass-delete`.",
            )


def make_plan(
    tree: Iterable[TreeEntry],
    recorded: Mapping[str, Recorded],
    decide: Decide,
    *,
    reread: bool = False,
    damaged: Collection[str] = frozenset(),
) -> Plan:
    """Compare `tree` with the `recorded` manifest (path text -> row).

    `decide` tells of a path and mode whether it is skipped. `reread`: index every candidate again although its blob is
    recorded (`--full`, or other chunking than last time). `damaged`: paths whose points are no longer all in the index.
    """
    read: list[TreeEntry] = []
    skip: list[PathSkip] = []
    unindex: list[str] = []
    seen: set[str] = set()
    shas: set[str] = set()
    unchanged = 0
    for entry in tree:
        path = path_text(entry.path)
        seen.add(path)
        shas.add(entry.sha)
        row = recorded.get(path)
        skipped = decide(entry.path, entry.mode)
        same_blob = row is not None and row.blob_sha == entry.sha
        if skipped is not None:
            if row is not None and row.chunks:
                unindex.append(path)
            if row is not None and same_blob and row.skip_reason == skipped.reason and row.size_bytes is None:
                unchanged += 1
            else:
                skip.append(PathSkip(entry, path, skipped))
        elif row is not None and same_blob and not reread and path not in damaged and _was_read(row):
            unchanged += 1
        else:
            read.append(entry)

    gone = [path for path in recorded if path not in seen]
    gone_indexed = [path for path in gone if recorded[path].chunks]
    unindex.extend(gone_indexed)
    moved_from = {recorded[path].blob_sha for path in gone_indexed}
    return Plan(
        # Neighbours in the tree are neighbours in packs and pages, and a sorted plan makes runs repeatable.
        read=sorted(read, key=lambda entry: entry.path),
        skip=skip,
        unindex=unindex,
        forget=gone,
        listed=len(seen),
        unchanged=unchanged,
        renamed=sum(1 for entry in read if entry.sha in moved_from),
        indexed_before=sum(1 for row in recorded.values() if row.chunks),
        vanished=sum(1 for path in gone_indexed if recorded[path].blob_sha not in shas),
    )


def _was_read(row: Recorded) -> bool:
    """Whether this row says what the content gave (points, or a reason to skip). One that the path alone decided has no
    size; one that failed is tried again."""
    return row.size_bytes is not None and row.skip_reason != Skip.FAILED
