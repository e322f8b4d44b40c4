"""The deletion brake: a run that would delete most of an index stops, and a person decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any

from reposync.content.model import Skipped
from reposync.errors import DeletionBlocked
from reposync.sources.port import TreeEntry, path_text
from reposync.store.columns import known_fields
from reposync.store.manifest import ManifestRow
from reposync.store.run import IN_ADVANCE

# Deleting up to this many files is never suspicious: small repositories are reorganised all the time.
BRAKE_MINIMUM_FILES = 20
BRAKE_SHARE = 0.5
MAX_FOLDERS = 100

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
    "secret": "hold secrets now",
}


@dataclass(slots=True)
class Losses:
    """Files that have points now and would have none: their `paths`, `counts` by reason, and `examples`, for each
    reason one path and its detail."""

    before: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, str]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)

    def add(self, reason: str, path: str, detail: str = "") -> None:
        self.counts[reason] += 1
        self.paths.append(path)
        self.examples.setdefault(reason, (path, detail))

    def __add__(self, other: Losses) -> Losses:
        return Losses(
            self.before, self.counts + other.counts, other.examples | self.examples, [*self.paths, *other.paths]
        )

    def is_suspicious(self, listed: int, allowed: Mapping[str, int] = MappingProxyType({})) -> bool:
        """Whether more than half of the files, and more than 20, would be lost, not counting those that are allowed; or
        any, because the commit has no files."""
        lost = self.counts.total() - sum(allowed.values())
        left = self.before - sum(allowed.values())
        return lost > 0 and (listed == 0 or (lost > BRAKE_MINIMUM_FILES and lost > left * BRAKE_SHARE))

    def folders(self) -> dict[str, int]:
        """How many of them are in each folder at the top ("": in none), the most first."""
        counted = Counter(path.partition("/")[0] if "/" in path else "" for path in self.paths)
        return dict(counted.most_common(MAX_FOLDERS))

    def in_words(self) -> str:
        """`40 are excluded now (src/a.py: matches src/), 2 are too large now`."""
        said = []
        for reason, count in self.counts.most_common():
            example = ": ".join(filter(None, self.examples.get(reason, ())))
            what = _WORDS.get(reason, f"are {reason} now")
            said.append(f"{count:,} {what}{f' ({example})' if example else ''}")
        return ", ".join(said)


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
    be lost, by reason, because of the tree and the rules; `losses`: these and those found while reading files;
    `folders`: how many of them are in each folder at the top."""

    commit: str = ""
    planned: Mapping[str, int] = field(default_factory=dict)
    losses: Mapping[str, int] = field(default_factory=dict)
    indexed: int = 0
    folders: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lost(self) -> int:
        return sum(self.losses.values())


def read_brake(stored: Mapping[str, Any] | None) -> BrakeFacts | None:
    """The facts of a blocked run or of an approval; None if they name no commit: an older program blocked the run, or a
    newer one for a different reason."""
    facts = BrakeFacts(**known_fields(BrakeFacts, stored or {}))
    return facts if facts.commit else None


@dataclass(frozen=True, slots=True)
class Brake:
    """The brake of one run."""

    repository: str
    commit: str
    listed: int
    """The commit has this number of files."""
    approval: Mapping[str, Any] | None = None
    """What a person allowed: IN_ADVANCE, or facts, which hold for that commit and for at most the counts that they
    name. Fewer may be left, if an earlier attempt deleted some."""

    def check(self, planned: Losses, read: Losses | None = None) -> BrakeFacts | None:
        """Before anything is written, and again with the losses found while reading (`read`), before the first file
        loses its points. Returns the facts to record if the run was approved in advance, None if there are none. Raises
        DeletionBlocked."""
        losses = planned if read is None else planned + read
        # The run would not have come to reading if the planned losses had needed an approval that it does not have.
        allowed = planned.counts if read is not None and planned.is_suspicious(self.listed) else {}
        if not losses.is_suspicious(self.listed, allowed):
            return None
        facts = BrakeFacts(self.commit, dict(planned.counts), dict(losses.counts), losses.before, losses.folders())
        approved = read_brake(self.approval)
        if approved is not None and approved.commit == self.commit:
            counts = approved.planned if read is None else approved.losses
            if losses.counts <= Counter(counts):
                return None
        if self.approval == IN_ADVANCE:
            return facts
        what = f"{losses.counts.total():,} of the {losses.before:,} indexed files of {self.repository} would be lost"
        again = "What was approved is not what would be lost now. " if self.approval is not None else ""
        empty = "The commit has no files. " if not self.listed else ""
        error = DeletionBlocked(
            f"{again}{empty}{what} at commit {self.commit[:10]}: {losses.in_words()}. Nothing was deleted.",
            remedy=f"If that is right, approve it with `reposync sync {self.repository} --allow-mass-delete`.",
        )
        error.facts = facts.as_json()
        raise error
