"""Verify that the index matches its manifest, while syncs continue, and repair the differences."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from reposync.app import documents
from reposync.app.application import Application
from reposync.app.command_runs import FOLLOW_SECONDS
from reposync.clock import elapsed_seconds
from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.runs.endings import ExecutionPolicy
from reposync.sources.port import CommitRewritten
from reposync.store.repository import MAX_NAME_CHARS, Repository
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.store.tables import IndexVersion, VersionState
from reposync.sync.audit import audit_source
from reposync.sync.point_audit import Audit, Difference, DifferenceKind, PointComparison, audit_points

# How often a repository is read again because it was synced meanwhile.
READS = 5


@dataclass(frozen=True)
class Verification:
    """Reads without a lock, also while syncs run: what a sync changed meanwhile is read again. Repairs are ordinary
    runs. `wait_seconds`: for a running sync, at most. `report`: called with a sentence about what it waits for."""

    app: Application
    against_source: bool
    wait_seconds: float = math.inf
    report: Callable[[str], None] = lambda _: None

    async def verify(self, name: str, identity: str | None = None) -> documents.Verdict:
        """By its `identity`, if given. Raises StoreUnavailable; any other error is in the verdict."""
        try:
            if identity is not None or await self.app.repositories.list([name]):
                return await self._verify(name, identity)
        except StoreUnavailable:
            raise
        except RepoSyncError as error:
            return _unread(name, trouble=str(error))
        return _unread(name, note="It was never synced.")

    async def _verify(self, name: str, identity: str | None) -> documents.Verdict:
        deadline = time.monotonic() + self.wait_seconds
        for _ in range(READS):
            row, running = await self._moment(name, identity)
            if running is not None:
                self.report(f"{name}: waits for run {running.id}")
            while running is not None:
                if time.monotonic() >= deadline:
                    return _unread(name, trouble=f"Run {running.id} of it has not ended yet.")
                await asyncio.sleep(FOLLOW_SECONDS)
                row, running = await self._moment(name, identity)
            verdict = await self._read(row)
            after, running = await self._moment(name, identity)
            if running is None and _written(after) == _written(row):
                return verdict
        trouble = f"It was synced during each of {READS} attempts to read it. `--repair` checks it in a run."
        return _unread(name, trouble=trouble)

    async def _moment(self, name: str, identity: str | None) -> tuple[Repository, Run | None]:
        """Its row and its running run, if that may still write. The row first: a run that begins after this begins a
        new epoch before it writes."""
        row, now = await self.app.repositories.get(name, identity), self.app.history.now()
        running = [run for run in await self.app.history.active(row.id) if run.status is RunStatus.RUNNING]
        return row, next((run for run in running if run.lease_until is None or run.lease_until >= now), None)

    async def _read(self, row: Repository) -> documents.Verdict:
        versions = await self.app.versions.of(row.id)
        if not versions:
            return _unread(row.name, row.collection, note="No sync of it was completed yet.")
        live = next((version for version in versions if version.state is VersionState.LIVE), versions[-1])
        recorded = await self.app.manifests.load(live.id)
        index = self.app.index(live.physical)
        comparison = PointComparison(index, live, row.name, await self.app.versions.origin(live))
        audit = await audit_points(comparison, recorded)
        await self._find_elsewhere(live, audit)
        if recorded and live.fingerprint is None:
            what = "a run ended after it had begun to store its commit; the index may be between two commits"
            audit.add(Difference(DifferenceKind.UNFINISHED, None, what))
        trouble = note = None
        if self.against_source:
            target = self.app.catalog.of_row(row)
            try:
                async with self.app.parts(target) as parts:
                    await audit_source(parts, comparison, recorded, audit)
            except CommitRewritten:
                trouble = _compared_with_nothing(live, differs=bool(audit.differences))
        if failed := sum(1 for file in recorded.values() if file.is_failed):
            at = f"commit {live.partial_commit[:10]}" if live.partial_commit else "the commit"
            note = f"It holds {at} except for {failed:,} files, which could not be read; the next sync tries again."
        if recorded and await index.spec() is None:
            note = f"There is no collection {live.physical!r} that reposync made."
        counts = audit.counts
        return documents.Verdict(
            repository=row.name,
            exact=trouble is None and not counts and not failed,
            collection=live.collection,
            commit=live.commit_sha,
            files=sum(1 for file in recorded.values() if file.skip_reason is None),
            chunks=sum(file.chunks for file in recorded.values()),
            points=audit.points,
            needs_full=DifferenceKind.CONTENT in counts,
            counts={kind.value: points for kind, points in counts.items()},
            differences=[
                documents.Difference(difference.kind.value, difference.path, difference.what, difference.points)
                for difference in sorted(audit.differences, key=lambda each: (each.path or "", each.kind))
            ],
            failed=failed,
            note=note,
            trouble=trouble,
        )

    async def _find_elsewhere(self, live: IndexVersion, audit: Audit) -> None:
        for name in sorted(await self.app.collections() - {live.physical}):
            index = self.app.index(name)
            if await index.spec() is not None and (points := await index.count(live.id)):
                what = f"the collection {name!r} has {points:,} points of it, which belong in {live.physical!r}"
                audit.add(Difference(DifferenceKind.ELSEWHERE, None, what, points))


def _unread(
    name: str, collection: str | None = None, *, note: str | None = None, trouble: str | None = None
) -> documents.Verdict:
    """The verdict on an index that was not read."""
    return documents.Verdict(
        repository=name,
        exact=trouble is None,
        collection=collection,
        commit=None,
        files=0,
        chunks=0,
        points=0,
        failed=0,
        note=note,
        trouble=trouble,
        needs_full=False,
        counts={},
        differences=[],
    )


def _written(row: Repository) -> tuple[object, ...]:
    """What changes with every sync that writes."""
    return row.epoch, row.name, row.collection, row.live_version, row.last_commit, row.last_sync_at


async def find_orphaned_points(app: Application) -> list[documents.Leftover]:
    """In the collections of this installation, by collection and name. Raises what index and store raise."""
    found = []
    for collection in sorted(await app.collections()):
        index = app.index(collection)
        if await index.spec() is None:
            continue
        points = await index.versions()
        nameless = await index.count() - sum(points.values())
        # Read last: a repository that is registered in between has no points yet.
        versions = await app.versions.all()
        registered = {row.id for row in await app.repositories.list()}
        registered |= {version.id for each in versions.values() for version in each}
        unknown = [identity for identity in points if identity not in registered]
        known = await app.history.past_names(unknown)
        for identity in unknown:
            left = await index.count(identity)
            if not left:
                continue  # it was removed just now
            name = known.get(identity) or next(iter(await index.names_of(identity)), None)
            found.append(documents.Leftover(collection, identity, name, left, identity in known))
        if nameless > 0:
            found.append(documents.Leftover(collection, None, None, nameless, False))
    return sorted(found, key=lambda each: (each.collection, each.repository or "", each.repository_id or ""))


async def remove_orphaned_points(app: Application, identity: str, name: str) -> Run | None:
    """Remove them from all collections in a run of their own, and return it as it ended. None if the repository is
    registered again, or has an active run. Raises LeaseLost, StoreUnavailable, CancelledError."""
    since, policy = elapsed_seconds(), ExecutionPolicy()
    worker = app.worker
    run = await app.runs.claim_orphan_removal(identity, name[:MAX_NAME_CHARS], worker, policy.lease_seconds)
    if run is None:
        return None
    return await app.execute(app.execution(run, policy, claimed_since=since))


def _compared_with_nothing(live: IndexVersion, *, differs: bool) -> str:
    """Why an index cannot be compared with its commit, which a rewritten branch no longer has."""
    points = "Its points differ from the manifest" if differs else "Its points agree with the manifest"
    return (
        f"Commit {(live.commit_sha or '')[:10]}, which it holds, is no longer on the server, because the branch was "
        f"rewritten: there is nothing to compare it with. {points}. The next sync indexes the new head."
    )
