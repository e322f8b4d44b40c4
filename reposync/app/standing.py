"""How all repositories are: which are current, and what keeps the others from it. The first page and `reposync status`
say it alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from reposync.catalog.overview import late_repositories
from reposync.store.index_queries import VersionSummary, repository_glances, version_summaries
from reposync.store.repository import RepositoryGlance
from reposync.store.status import ACTIVE, RunStatus

if TYPE_CHECKING:
    from reposync.app.application import Application

_BAD = frozenset({RunStatus.FAILED, RunStatus.BLOCKED})

Concern = Literal["blocked", "failed", "files", "words", "behind", "late"]
"""Why a repository needs attention, the gravest first: its last run waits for a person, or failed; files could not be
read; nothing continues its first sync, so that only words are searched; nothing brings it to its head; it was not
synced at the last two ticks of its schedule."""


@dataclass(frozen=True, slots=True)
class Attention:
    """`since`: of the first concern, None if that is not known."""

    concerns: Sequence[Concern]
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """`latest`: the status of the newest run, of repositories whose run is active, failed or blocked, by name.
    `attention`: what needs it, by name."""

    now: datetime
    states: Sequence[RepositoryGlance]
    latest: Mapping[str, RunStatus | str]
    versions: Sequence[VersionSummary]
    attention: Mapping[str, Attention]

    def with_latest(self, *statuses: RunStatus) -> frozenset[str]:
        return frozenset(name for name, status in self.latest.items() if status in statuses)

    def concerned(self, *concerns: Concern) -> frozenset[str]:
        """The repositories that need attention for one of these reasons."""
        return frozenset(name for name, found in self.attention.items() if not {*concerns}.isdisjoint(found.concerns))

    @property
    def active(self) -> frozenset[str]:
        return frozenset(state.name for state in self.states if state.state == "active")

    @property
    def behind(self) -> frozenset[str]:
        """Also those that a run brings to their head."""
        return frozenset(state.name for state in self.states if state.is_active and state.behind_since is not None)

    @property
    def new(self) -> frozenset[str]:
        """Never synced."""
        return frozenset(state.name for state in self.states if state.is_active and state.last_sync_at is None)

    @property
    def current(self) -> frozenset[str]:
        """Active, synced, not behind its head, and without anything that needs attention."""
        return self.active.difference(self.attention, self.behind, self.new)


async def standing_of(app: Application) -> Standing:
    now, states = app.now(), await repository_glances(app.database)
    latest = await app.history.latest_statuses(_BAD | ACTIVE)
    versions = await version_summaries(app.database)
    attention = _attention(states, latest, versions, await late_repositories(states, now))
    return Standing(now, states, latest, versions, attention)


def _attention(
    states: Collection[RepositoryGlance],
    latest: Mapping[str, RunStatus | str],
    versions: Sequence[VersionSummary],
    late: Collection[str],
) -> dict[str, Attention]:
    """By name. What a run that waits or runs is about to change needs none."""
    live = [version for version in versions if version.is_live]
    under_way = {name for name, status in latest.items() if status in ACTIVE}
    concerned: dict[Concern, set[str]] = {
        "blocked": {name for name, status in latest.items() if status is RunStatus.BLOCKED},
        "failed": {name for name, status in latest.items() if status is RunStatus.FAILED},
        "files": {version.repository for version in live if version.lacks_files},
        "words": {version.repository for version in live if version.by_words} - under_way,
        "behind": {state.name for state in states if state.is_active and state.behind_since} - under_way,
        "late": set(late) - under_way,
    }
    found = dict[str, Attention]()
    for state in states:
        concerns = [concern for concern, names in concerned.items() if state.name in names]
        since = {"behind": state.behind_since, "late": state.last_sync_at, "words": state.last_sync_at}
        if concerns:
            found[state.name] = Attention(concerns, since.get(concerns[0]))
    return found
