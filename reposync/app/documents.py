"""What operations of this package answer with, as clients get it. Imports nothing heavy: commands beside a daemon read
these alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class CommitState:
    """`relation` of the indexed commit to the requested one: `same`, `descendant`, or `later` (plain git servers cannot
    compare commits: a run that began after the request has completed). `tells_descendants`: false if only equality of
    the two commits is known; `limit` says why. `trouble`: why the source could not be asked."""

    repository: str
    commit: str
    relation: str | None
    last_commit: str | None
    last_sync_at: datetime | None
    is_active: bool
    paused_reason: str | None
    tells_descendants: bool
    trouble: str | None
    limit: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    kind: str
    path: str | None
    what: str
    points: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """`counts`: points (or chunks, or files), by kind of difference; `differences`: one a path and kind. `failed`:
    files that could not be read or embedded, so that the index differs from the commit. `note`: further information.
    `trouble`: why the index could not be verified. `needs_full`: only a run that reads every file again repairs it."""

    repository: str
    exact: bool
    collection: str | None
    commit: str | None
    files: int
    chunks: int
    points: int
    failed: int
    note: str | None
    trouble: str | None
    needs_full: bool
    counts: dict[str, int]
    differences: list[Difference]
    differences_left_out: int = 0


@dataclass(frozen=True, slots=True)
class Leftover:
    """Points whose repository is not registered. `repository_id` null: points without a repository, which reposync
    never writes. `known`: this database has runs of the repository; otherwise it may belong to a different installation
    that uses the same collection."""

    collection: str
    repository_id: str | None
    repository: str | None
    points: int
    known: bool
