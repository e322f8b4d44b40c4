"""Removing a repository, its points, manifest and row: as a run of its own, so that no sync writes beside it."""

from __future__ import annotations

from collections.abc import Sequence

from reposync.store.manifest import Manifests
from reposync.store.repositories import Repositories, Repository
from reposync.store.run import Run, RunFigures
from reposync.sync.lease import Lease
from reposync.vectors.port import Index


class RemovalRun:
    """Points first, the row last: who is killed in between has not removed the repository, and can do it again."""

    def __init__(
        self,
        repository: Repository,
        indexes: Sequence[Index],
        repositories: Repositories,
        manifests: Manifests,
        run: Run,
        lease: Lease,
    ) -> None:
        self._repository = repository
        self._indexes = indexes
        self._repositories = repositories
        self._manifests = manifests
        self._run = run
        self._lease = lease
        self._files = 0

    @property
    def figures(self) -> RunFigures:
        return RunFigures(commit_before=self._repository.last_commit, files_deleted=self._files)

    async def execute(self) -> str | None:
        """Raises LeaseLost, and what index and store raise."""
        totals = await self._manifests.totals(self._repository.id)
        for index in self._indexes:
            self._lease.check()
            await index.remove_repository(self._repository.id)
        self._lease.check()
        await self._repositories.remove(self._repository.name, by=self._run)
        self._files = totals.files
        return None
