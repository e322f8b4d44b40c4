"""The deletion brake: a run that would take most of an index away stops, and a person decides. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from reposync.content.model import Skipped
from reposync.errors import DeletionBlocked
from reposync.sources.paths import path_text
from reposync.sources.port import TreeEntry
from reposync.store.columns import known_fields
from reposync.store.manifest import ManifestRow

# Up to this many files a deletion is never suspicious: small repositories are rearranged all the time.
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
    """Files that have points now and would have none. `counts` by reason; `examples`: one path of each reason, with
    what stands in the history for it."""

    before: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, reason: str, path: str, detail: str = "") -> None:
        self.counts[reason] += 1
        self.examples.setdefault(reason, (path, detail))

    def __add__(self, other: Losses) -> Losses:
        return Losses(self.before, self.counts + other.counts, other.examples | self.examples)

    def is_suspicious(self, listed: int, *, allowed: Mapping[str, int]) -> bool:
        """Whether more than half of the files that are left after what is allowed, and over 20, would be lost; or all,
        because the commit has no file."""
        lost = self.counts.total() - sum(allowed.values())
        left = self.before - sum(allowed.values())
        emptied = listed == 0 and lost > 0
        return emptied or (lost > BRAKE_MINIMUM_FILES and lost > left * BRAKE_SHARE)

    def in_words(self) -> str:
        parts = [
            f"{number:,} {_WORDS.get(reason, f'are {reason} now')}" for reason, number in self.counts.most_common()
        ]
        return ", ".join(parts)


def losses_of(
    indexed: Mapping[str, ManifestRow],
    tree: Iterable[TreeEntry],
    decide: Callable[[TreeEntry], Skipped | None],
    *,
    proven: bool,
) -> Losses:
    """What the tree and the rules take away from the files that are `indexed`. A file that was renamed is not lost,
    unless the rules keep its new path out.
    `proven`: whether the tree is known to be complete; otherwise nothing counts as vanished, and nothing is deleted."""
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
    if proven:
        for path, row in with_points.items():
            if path not in seen and row.blob_sha not in shas:
                losses.add(VANISHED, path)
    return losses


_NO_COMMIT: Mapping[str, Any] = {"commit": "", "planned": {}, "losses": {}, "indexed": 0}


@dataclass(frozen=True, slots=True)
class Facts:
    """What a brake stopped at, and what an approval is for. `planned`: what the listing and the rules alone take away;
    `losses`: with what turned out when the files were read. Stands in `sync_runs.brake`."""

    commit: str
    planned: Mapping[str, int]
    losses: Mapping[str, int]
    indexed: int

    @classmethod
    def read(cls, stored: Mapping[str, Any] | None) -> Facts | None:
        """Those of another kind of brake, which a newer program has, are an approval of nothing here."""
        return None if stored is None else cls(**{**_NO_COMMIT, **known_fields(cls, stored)})

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Brake:
    """Of one run. Asked twice: before anything is written, and when all is read, before the first file loses its
    points. `approval`: what a person allowed, if it is known by now; it holds for that commit and for no more files
    than it names of each reason. Fewer may be left: an attempt that was cut off took out some of them."""

    def __init__(self, repository: str, commit: str, listed: int, *, approved: bool, approval: Facts | None) -> None:
        self._repository = repository
        self._commit = commit
        self._listed = listed
        self._approved = approved
        self._approval = approval
        self._unseen = approved and approval is None
        self._allowed: Mapping[str, int] = {}

    def check_plan(self, planned: Losses) -> Facts | None:
        """What an approval given beforehand turns out to be for, None where nothing has to be noted. Raises
        DeletionBlocked."""
        if not planned.is_suspicious(self._listed, allowed={}):
            return None
        self._allowed = dict(planned.counts)
        return self._decide(planned, planned, lambda approval: approval.planned)

    def check_all(self, planned: Losses, read: Losses) -> Facts | None:
        """As `check_plan`."""
        total = planned + read
        if not total.is_suspicious(self._listed, allowed=self._allowed):
            return None
        return self._decide(planned, total, lambda approval: approval.losses)

    def _decide(self, planned: Losses, losses: Losses, allowed: Callable[[Facts], Mapping[str, int]]) -> Facts | None:
        facts = Facts(self._commit, dict(planned.counts), dict(losses.counts), losses.before)
        if self._unseen:  # given beforehand, for whatever this attempt finds
            return facts
        approval = self._approval if self._approved else None
        if approval is not None and approval.commit == self._commit and losses.counts <= Counter(allowed(approval)):
            return None
        raise self._blocked(losses, facts)

    def _blocked(self, losses: Losses, facts: Facts) -> DeletionBlocked:
        what = f"{losses.counts.total():,} of the {losses.before:,} indexed files of {self._repository} would be lost"
        again = "What was approved is not what is there now. " if self._approved else ""
        empty = "The commit has no file at all. " if not self._listed else ""
        error = DeletionBlocked(
            f"{again}{empty}{what} at commit {self._commit[:10]}: {losses.in_words()}. Nothing was deleted.",
            remedy=f"If that is right, approve it with `reposync sync {self._repository} --allow-mass-delete`.",
        )
        error.facts = facts.as_json()
        return error
