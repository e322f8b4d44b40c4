"""What a run stopped at that waits for a person, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reposync.store.run import Run
from reposync.sync.brake import BrakeFacts, Losses


@dataclass(frozen=True, slots=True)
class Brake:
    """What a run stopped at, and what an approval of it is for: at `commit`, `losses` (files by reason) of the
    `indexed` files would lose their points; `planned` of these by the listing and the rules alone."""

    commit: str
    planned: dict[str, int]
    losses: dict[str, int]
    indexed: int

    @property
    def lost(self) -> int:
        return sum(self.losses.values())

    def in_words(self) -> str:
        """`40 of the 43 indexed files at commit 1a2b3c4d5e: 40 are not in the commit`."""
        reasons = Losses(self.indexed, Counter(self.losses)).in_words()
        return f"{self.lost:,} of the {self.indexed:,} indexed files at commit {self.commit[:10]}: {reasons}"


def brake_of(run: Run) -> Brake | None:
    """None for a run that met no brake, also where an older program blocked it, or a newer one for another reason."""
    return read_brake(run.brake)


def read_brake(said: Mapping[str, Any] | None) -> Brake | None:
    """What a run recorded, or an approval repeats; None for what names no files."""
    facts = BrakeFacts.read(said) if said else None
    if facts is None or not facts.commit:
        return None
    return Brake(facts.commit, dict(facts.planned), dict(facts.losses), facts.indexed)
