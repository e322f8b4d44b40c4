"""Removal of a repository, or of points whose repository is not registered; in a run of its own, so that no sync writes
at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reposync.store.attempts import REMOVED_BEFORE
from reposync.store.manifest import Manifests
from reposync.store.repositories import Repositories
from reposync.store.repository import Repository
from reposync.store.run import Run, RunFigures
from reposync.sync.lease import Lease
from reposync.sync.progress import Outcome

if TYPE_CHECKING:
    from reposync.vectors.index import QdrantIndex


@dataclass
class RemovalRun:
    """Points first and the row last: a removal that is interrupted can be repeated. A run with `repair` removes points
    of a repository that is not registered. `repository`: None if it is not. `places`: collections that may hold its
    points, with the id of the version there."""

    repository: Repository | None
    places: Sequence[tuple[QdrantIndex, str]]
    repositories: Repositories
    manifests: Manifests
    run: Run
    lease: Lease
    figures: RunFigures = field(default_factory=RunFigures)

    async def execute(self) -> Outcome:
        """Raises LeaseLost, and what index and store raise."""
        if self.repository is None and not self.run.repair:
            return Outcome(notice=REMOVED_BEFORE)
        if self.repository is not None and self.run.repair:
            # Its next sync, which does not begin before this run has ended, removes what is outdated.
            return Outcome(notice="It is registered again; nothing was removed.")
        points = 0
        for index, version_id in self.places:
            points += await index.count(version_id)
            self.lease.check()
            await index.remove_version(version_id, check=self.lease.check)
        if self.repository is None:
            removed = f"{points:,} points of a repository that is not registered were removed."
            return Outcome(notice=f"Repaired on request: {removed}")
        totals = await self.manifests.totals(self.repository.live_version or self.repository.id)
        self.lease.check()
        await self.repositories.remove(self.repository.name, by=self.run)
        self.figures = RunFigures(files_deleted=totals.files)
        return Outcome()
