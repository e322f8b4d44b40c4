"""The deletion brake: a run that would delete most of an index stops, and a person decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from reposync.content.model import Skipped
from reposync.errors import DeletionBlocked
from reposync.sources.port import TreeEntry, path_text
from reposync.store.columns import known_fields
from reposync.store.manifest import ManifestRow

# Deleting up to this many files is never suspicious: small repositories are reorganised all the time.
BRAKE_MINIMUM_FILES = 20
BRAKE_SHARE = 0.5

VANISHED = "vanished"
UNREADABLE = "unreadable"
_WORDS = {
    VANISHED: "are not in the commit",
    UNREADABLE: "cannot be read",
    "excluded": "are excluded now",
    "not_included": "match no include pattern now",
    "vendored": "count as vendored now",
    "generated": "count as generated now",
    "too_large": "are too large now",
}


@dataclass(slots=True)
class Losses:
    """Files that have points now and would have none. `counts` by reason; `examples`: for each reason one path and its
    detail."""

    before: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, reason: str, path: str, detail: str = "") -> None:
        self.counts[reason] += 1
        self.examples.setdefault(reason, (path, detail))

    def __add__(self, other: Losses) -> Losses:
        return Losses(self.before, self.counts + other.counts, other.examples | self.examples)

    def is_suspicious(self, listed: int, *, allowed: Mapping[str, int]) -> bool:
        """Whether more than half of the files, and more than 20, would be lost, not counting those that are allowed; or
        any, because the commit has no files."""
        lost = self.counts.total() - sum(allowed.values())
        left = self.before - sum(allowed.values())
        emptied = listed == 0 and lost > 0
        return emptied or (lost > BRAKE_MINIMUM_FILES and lost > left * BRAKE_SHARE)

    def in_words(self) -> str:
        return ", ".join(f"{count:,} {_WORDS.get(why, f'are {why} now')}" for why, count in self.counts.most_common())


def losses_of(
    indexed: Mapping[str, ManifestRow],
    tree: Iterable[TreeEntry],
    decide: Callable[[TreeEntry], Skipped | None],
    *,
    count_missing: bool,
) -> Losses:
    """The `indexed` files that the tree or the rules remove. A renamed file is not lost, unless the rules skip its new
    path. `count_missing`: whether files that are not in the tree count; not if the tree may be incomplete."""
    with_points = {path: row for path, row in indexed.items() if row.chunks}
    losses = Losses(len(with_points))
    seen: set[str] = set()
    shas: set[str] = set()
    for entry in tree:
        path = path_text(entry.path)
        seen.add(path)
        skipped = decide(entry)
        if skipped is None:
            shas.add(entry.sha)
        elif path in with_points:
            losses.add(skipped.reason.value, path, skipped.detail)
    if count_missing:
        for path, row in with_points.items():
            if path not in seen and row.blob_sha not in shas:
                losses.add(VANISHED, path)
    return losses


@dataclass(frozen=True, slots=True)
class BrakeFacts:
    """What the brake stopped at, and what an approval is for; stored in `sync_runs.brake`. `planned`: files that would
    be lost, by reason, because of the tree and the rules; `losses`: these and those found while reading files."""

    commit: str = ""
    planned: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)
    indexed: int = 0

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> BrakeFacts | None:
        """Facts about another kind of brake, from a newer program, approve nothing here: they have no commit."""
        return None if stored is None else cls(**known_fields(cls, stored))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lost(self) -> int:
        return sum(self.losses.values())

    def in_words(self) -> str:
        """`40 of the 43 indexed files at commit 1a2b3c4d5e: 40 are not in the commit`."""
        reasons = Losses(self.indexed, Counter(self.losses)).in_words()
        return f"{self.lost:,} of the {self.indexed:,} indexed files at commit {self.commit[:10]}: {reasons}"


def read_brake(stored: Mapping[str, Any] | None) -> BrakeFacts | None:
    """The facts of a blocked run or of an approval; None if they name no commit: an older program blocked the run, or a
    newer one for a different reason."""
    facts = BrakeFacts.read(stored)
    return facts if facts is not None and facts.commit else None


class Brake:
    """Of one run. Checked twice: before anything is written, and after everything was read, before the first file loses
    its points. `approval`: what a person approved, if it is known yet; it holds for that commit and for at most the
    counts that it names. Fewer may be left, if an earlier attempt deleted some."""

    def __init__(
        self, repository: str, commit: str, listed: int, *, approved: bool, approval: BrakeFacts | None
    ) -> None:
        self._repository = repository
        self._commit = commit
        self._listed = listed
        self._approved = approved
        self._approval = approval
        self._allowed: Mapping[str, int] = {}

    def check_plan(self, planned: Losses) -> BrakeFacts | None:
        """The facts to record if the run was approved in advance; None if nothing is to be recorded. Raises
        DeletionBlocked."""
        if not planned.is_suspicious(self._listed, allowed={}):
            return None
        self._allowed = dict(planned.counts)
        return self._decide(planned, planned, self._approval.planned if self._approval else {})

    def check_all(self, planned: Losses, read: Losses) -> BrakeFacts | None:
        """As `check_plan`."""
        total = planned + read
        if not total.is_suspicious(self._listed, allowed=self._allowed):
            return None
        return self._decide(planned, total, self._approval.losses if self._approval else {})

    def _decide(self, planned: Losses, losses: Losses, approved: Mapping[str, int]) -> BrakeFacts | None:
        facts = BrakeFacts(self._commit, dict(planned.counts), dict(losses.counts), losses.before)
        if self._approved and self._approval is None:  # in advance, for whatever this attempt finds
            return facts
        is_same_commit = self._approval is not None and self._approval.commit == self._commit
        if self._approved and is_same_commit and losses.counts <= Counter(approved):
            return None
        what = f"{losses.counts.total():,} of the {losses.before:,} indexed files of {self._repository} would be lost"
        again = "What was approved is not what would be lost now. " if self._approved else ""
        empty = "The commit has no files. " if not self._listed else ""
        error = DeletionBlocked(
            f"{again}{empty}{what} at commit {self._commit[:10]}: {losses.in_words()}. Nothing was deleted.",
            remedy=f"If that is right, approve it with `reposync sync {self._repository} --allow-mass-delete`.",
        )
        error.facts = facts.as_json()
        raise error
