"""Removal of a repository, and of points whose repository is no longer registered; each in a run of its own, so that no
sync writes at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from reposync.errors import RepositoryNotFound
from reposync.store.attempts import REMOVED_BEFORE
from reposync.store.manifest import Manifests
from reposync.store.repositories import Repositories
from reposync.store.repository import Repository
from reposync.store.run import Run, RunFigures
from reposync.sync.lease import Lease
from reposync.sync.progress import Outcome
from reposync.vectors.port import Index


class RemovalRun:
    """Points first and the row last: a removal that is interrupted can be repeated."""

    def __init__(
        self,
        repository: Repository | None,
        places: Sequence[tuple[Index, str]],
        repositories: Repositories,
        manifests: Manifests,
        run: Run,
        lease: Lease,
    ) -> None:
        """`repository` None: an earlier attempt removed the row, which is the last step. `places`: collections that may
        hold its points, with the id of the version there."""
        self._repository = repository
        self._places = places
        self._repositories = repositories
        self._manifests = manifests
        self._run = run
        self._lease = lease
        self._files = 0

    @property
    def figures(self) -> RunFigures:
        commit = self._repository.last_commit if self._repository is not None else None
        return RunFigures(commit_before=commit, files_deleted=self._files)

    async def execute(self) -> Outcome:
        """Raises LeaseLost, and what index and store raise."""
        if self._repository is None:
            return Outcome(notice=REMOVED_BEFORE)
        totals = await self._manifests.totals(self._repository.live_version or self._repository.id)
        for index, version_id in self._places:
            self._lease.check()
            await index.remove_repository(version_id, check=self._lease.check)
        self._lease.check()
        await self._repositories.remove(self._repository.name, by=self._run)
        self._files = totals.files
        return Outcome()


class OrphanedPointsRemoval:
    """Removes points of a repository that is not registered. If it was registered again meanwhile, nothing is removed:
    its next sync removes what is outdated."""

    figures = RunFigures()

    def __init__(self, run: Run, indexes: Sequence[Index], repositories: Repositories, lease: Lease) -> None:
        self._run = run
        self._indexes = indexes
        self._repositories = repositories
        self._lease = lease

    async def execute(self) -> Outcome:
        """Its notice says what was removed. Raises LeaseLost, and what index and store raise."""
        removed = 0
        for index in self._indexes:
            number = await index.count(self._run.repository_id)
            if not number:
                continue
            # Checked last: no sync of that id begins during this run, but the run may have been taken over from a dead
            # worker.
            if await self._is_registered():
                return Outcome(notice="It is registered again; nothing was removed.")
            self._lease.check()
            await index.remove_repository(self._run.repository_id, check=self._lease.check)
            removed += number
        return Outcome(
            notice=f"Repaired on request: {removed:,} points of a repository that is not registered were removed."
        )

    async def _is_registered(self) -> bool:
        try:
            await self._repositories.by_id(self._run.repository_id)
        except RepositoryNotFound:
            return False
        return True
