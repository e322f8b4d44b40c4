"""Which repositories somebody may see."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Visible:
    """A set of repositories by id, or all of them, also those that are registered later (None)."""

    ids: frozenset[str] | None

    def __contains__(self, repository_id: object) -> bool:
        return self.ids is None or repository_id in self.ids

    def __and__(self, other: Visible) -> Visible:
        """The repositories that are in both."""
        if self.ids is None or other.ids is None:
            return other if self.ids is None else self
        return Visible(self.ids & other.ids)

    @property
    def is_everything(self) -> bool:
        return self.ids is None


EVERYTHING = Visible(None)
NOTHING = Visible(frozenset())
