"""Removing a repository, its points, manifest and row: as a run of its own, so that no sync writes beside it."""

from __future__ import annotations

from collections.abc import Sequence

from reposync.errors import RepositoryNotFound
from reposync.store.claims import REMOVED_BEFORE
from reposync.store.manifest import Manifests
from reposync.store.repositories import Repositories, Repository
from reposync.store.run import Run, RunFigures
from reposync.sync.lease import Lease
from reposync.sync.progress import Outcome
from reposync.vectors.port import Index


class RemovalRun:
    """Points first, the row last: who is killed in between has not removed the repository, and can do it again."""

    def __init__(
        self,
        repository: Repository,
        places: Sequence[tuple[Index, str]],
        repositories: Repositories,
        manifests: Manifests,
        run: Run,
        lease: Lease,
    ) -> None:
        """`places`: where its points may be, and under which id: every version of its index has its own."""
        self._repository = repository
        self._places = places
        self._repositories = repositories
        self._manifests = manifests
        self._run = run
        self._lease = lease
        self._files = 0

    @property
    def figures(self) -> RunFigures:
        return RunFigures(commit_before=self._repository.last_commit, files_deleted=self._files)

    async def execute(self) -> Outcome:
        """Raises LeaseLost, and what index and store raise."""
        totals = await self._manifests.totals(self._repository.live_version or self._repository.id)
        for index, version_id in self._places:
            self._lease.check()
            await index.remove_repository(version_id, check=self._lease.check)
        self._lease.check()
        await self._repositories.remove(self._repository.name, by=self._run)
        self._files = totals.files
        return Outcome()


class RemovedBefore:
    """The removal of a repository whose row an earlier attempt removed, and with it all that there was to do."""

    figures = RunFigures()

    async def execute(self) -> Outcome:
        return Outcome(notice=REMOVED_BEFORE)


class LeftoverRemoval:
    """Points of a repository that is registered no more. Where it was registered anew meanwhile its points are its own:
    its next sync takes out what does not belong there."""

    def __init__(self, run: Run, indexes: Sequence[Index], repositories: Repositories, lease: Lease) -> None:
        self._run = run
        self._indexes = indexes
        self._repositories = repositories
        self._lease = lease

    @property
    def figures(self) -> RunFigures:
        return RunFigures()

    async def execute(self) -> Outcome:
        """Its notice says what was removed. Raises LeaseLost, and what index and store raise."""
        removed = 0
        for index in self._indexes:
            number = await index.count(self._run.repository_id)
            if not number:
                continue
            # Asked last: as long as this run goes on no sync of that id begins, but it may have been taken over from a
            # worker that died, with time for anything in between.
            if await self._is_registered():
                return Outcome(notice="It is registered again; nothing was removed.")
            self._lease.check()
            await index.remove_repository(self._run.repository_id, check=self._lease.check)
            removed += number
        notice = f"Mended on request: {removed:,} points of a repository that is not registered were removed."
        return Outcome(notice=notice)

    async def _is_registered(self) -> bool:
        try:
            await self._repositories.by_id(self._run.repository_id)
        except RepositoryNotFound:
            return False
        return True
