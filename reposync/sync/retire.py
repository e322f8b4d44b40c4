"""Versions that are not searched any more: their points, their manifests, and the collections that they leave empty."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta

from reposync.errors import LeaseLost, RepoSyncError
from reposync.store.repository import Repository
from reposync.store.run import Run
from reposync.store.versions import IndexVersion, VersionState
from reposync.sync.lease import Lease
from reposync.sync.target import SyncParts
from reposync.sync.versions import Situation
from reposync.vectors.names import drop_if_empty, move_name

log = logging.getLogger(__name__)


class Retirement:
    """Of one repository."""

    def __init__(self, parts: SyncParts, repository: Repository, run: Run, lease: Lease) -> None:
        self._parts = parts
        self._repository = repository
        self._run = run
        self._lease = lease

    async def remove_strays(self, situation: Situation) -> None:
        """A program before 0.2 writes under the repository's own id, also where no version has that id any more. Before
        this run takes an epoch: until then no search finds these points (see `Served`). Raises LeaseLost, and what
        index and store raise."""
        row, versions = self._repository, situation.versions
        if not versions or any(version.id == row.id for version in versions):
            return
        places = {version.physical for version in versions} | {row.collection, row.indexed_collection or row.collection}
        for place in sorted(places):
            await self._remove_points(place, row.id)
        if await self._parts.manifests.counts([row.id]):
            self._lease.check()
            await self._parts.manifests.clear(self._run, row.id)

    async def settle(self, situation: Situation) -> None:
        """After the run has published. What fails here is done by the next run. Raises LeaseLost."""
        if not situation.builds and len(situation.versions) == 1 and situation.working.id == self._repository.id:
            return  # one version, the first: nothing can be left of another
        try:
            versions = await self._parts.versions.of(self._repository.id)
            # Before the points go that the name still leads to; and again, for a name that was a collection itself.
            await self._move_name(versions)
            await self._remove(versions)
            await self._move_name(versions)
            await self._drop_empty(situation, versions)
        except LeaseLost:
            raise
        except RepoSyncError as error:
            log.warning("What was retired of %s could not be removed yet: %s", self._repository.name, error)

    async def _remove(self, versions: Sequence[IndexVersion]) -> None:
        """Every retired version whose time is over. One that was never live is of no use to anybody."""
        oldest = self._parts.runs.now() - timedelta(seconds=self._parts.keep_retired_seconds)
        for version in versions:
            if version.state is not VersionState.RETIRED or version.retired_at is None:
                continue
            if version.live_at is None or version.retired_at <= oldest:
                await self._remove_points(version.physical, version.id)
                self._lease.check()
                await self._parts.versions.remove(self._run, version.id)

    async def _remove_points(self, physical: str, version_id: str) -> None:
        index = self._parts.open_index(physical)
        if await index.spec() is not None and await index.count(version_id):
            self._lease.check()
            await index.remove_repository(version_id, check=self._lease.check)

    async def _move_name(self, versions: Sequence[IndexVersion]) -> None:
        """When all repositories of a collection are live in the same physical one, its name leads there."""
        for live in versions:
            if live.state is VersionState.LIVE and not await self._parts.versions.not_on(
                live.collection, live.physical
            ):
                await move_name(self._parts.open_index, live.collection, live.physical)

    async def _drop_empty(self, situation: Situation, versions: Sequence[IndexVersion]) -> None:
        live = {version.physical for version in versions if version.state is VersionState.LIVE}
        for physical in sorted({version.physical for version in situation.versions} - live):
            if not await self._parts.versions.uses(physical):
                await drop_if_empty(self._parts.open_index, physical)
