"""Removal of a repository, and of points whose repository is no longer registered; each in a run of its own, so that no
sync writes at the same time."""

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
    """Points first and the row last: a removal that is interrupted can be repeated. `repository` None: an earlier
    attempt removed the row. `places`: collections that may hold its points, with the id of the version there."""

    repository: Repository | None
    places: Sequence[tuple[QdrantIndex, str]]
    repositories: Repositories
    manifests: Manifests
    run: Run
    lease: Lease
    files: int = 0

    @property
    def figures(self) -> RunFigures:
        return RunFigures(files_deleted=self.files)

    async def execute(self) -> Outcome:
        """Raises LeaseLost, and what index and store raise."""
        if self.repository is None:
            return Outcome(notice=REMOVED_BEFORE)
        totals = await self.manifests.totals(self.repository.live_version or self.repository.id)
        for index, version_id in self.places:
            self.lease.check()
            await index.remove_version(version_id, check=self.lease.check)
        self.lease.check()
        await self.repositories.remove(self.repository.name, by=self.run)
        self.files = totals.files
        return Outcome()


@dataclass
class OrphanedPointsRemoval:
    """Removes points of a repository that is not registered. If it was registered again meanwhile, nothing is removed:
    its next sync removes what is outdated."""

    run: Run
    indexes: Sequence[QdrantIndex]
    repositories: Repositories
    lease: Lease
    figures: RunFigures = field(default_factory=RunFigures)

    async def execute(self) -> Outcome:
        """Its notice says what was removed. Raises LeaseLost, and what index and store raise."""
        removed = 0
        for index in self.indexes:
            number = await index.count(self.run.repository_id)
            if not number:
                continue
            # Checked last: no sync of that id begins during this run, but the run may have been taken over from a dead
            # worker.
            if await self.repositories.names_of([self.run.repository_id]):
                return Outcome(notice="It is registered again; nothing was removed.")
            self.lease.check()
            await index.remove_version(self.run.repository_id, check=self.lease.check)
            removed += number
        return Outcome(
            notice=f"Repaired on request: {removed:,} points of a repository that is not registered were removed."
        )
