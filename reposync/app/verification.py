"""Verify that the index matches its manifest, while syncs continue, and repair the differences."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reposync.app.application import Application
from reposync.app.command_runs import FOLLOW_SECONDS, sync
from reposync.clock import elapsed_seconds
from reposync.errors import RepoSyncError, StoreUnavailable
from reposync.runs.endings import ExecutionPolicy
from reposync.sources.port import CommitRewritten
from reposync.store.repository import MAX_NAME_CHARS, Repository
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.store.tables import IndexVersion, VersionState
from reposync.store.versions import unwritten_version
from reposync.sync.audit import audit_source
from reposync.sync.point_audit import Difference, DifferenceKind, audit_points
from reposync.sync.progress import Watch

# How often a repository is read again because it was synced meanwhile.
READS = 5
_RUNS_LOOKED_AT = 100

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one repository. `counts`: points (or chunks, or files), by kind of difference; `differences`:
    one a path and kind, at most 10,000. `failed`: files that could not be read or embedded, so that the index
    differs from the commit. `note`: further information. `trouble`: why the index could not be verified."""

    repository: str
    collection: str | None = None
    commit: str | None = None
    files: int = 0
    chunks: int = 0
    points: int = 0
    counts: Mapping[DifferenceKind, int] = field(default_factory=dict)
    differences: Sequence[Difference] = ()
    failed: int = 0
    note: str | None = None
    trouble: str | None = None

    @property
    def exact(self) -> bool:
        return self.trouble is None and not self.counts and not self.failed

    @property
    def needs_full(self) -> bool:
        """Whether only a run that reads every file again repairs it."""
        return DifferenceKind.CONTENT in self.counts


@dataclass(frozen=True)
class Verification:
    """Reads without a lock, also while syncs run: what a sync changed meanwhile is read again. Repairs are ordinary
    runs. `report`: called with a sentence about what it waits for."""

    app: Application
    against_source: bool
    report: Report

    async def names(self, words: Sequence[str]) -> list[str]:
        """The repositories with these names, paths or URLs, or all. Raises RepositoryNotFound, UsageError."""
        registered = await self.app.repositories.names()
        if words:
            named = [word if word in registered else (await self.app.catalog.find(word)).name for word in words]
            return list(dict.fromkeys(named))
        return list(registered)

    async def verify(self, name: str) -> Verdict:
        """Raises StoreUnavailable; any other error is in the verdict."""
        try:
            return await self._verify(name)
        except StoreUnavailable:
            raise
        except RepoSyncError as error:
            return Verdict(name, trouble=str(error))

    async def repair(self, name: str, watch: Watch, *, full: bool = False, asked_by: str = "") -> Run:
        """Repair it in a run, executed here or by a worker, and return the run as it ended. `full`: reads every file
        again, which repairs what only their content shows.

        Raises RepositoryNotFound if it left the configuration, LeaseLost, CancelledError."""
        rows = await self.app.repositories.list([name])
        target = self.app.catalog.of_row(rows[0]) if rows else await self.app.catalog.find(name)
        return await sync(self.app, target, full=full, approved=False, repair=True, watch=watch, asked_by=asked_by)

    # Reading ---------------------------------------------------------------------------------------------------------

    async def _verify(self, name: str) -> Verdict:
        if not await self.app.repositories.list([name]):
            return Verdict(name, note="It was never synced.")
        for _ in range(READS):
            row, running = await self._moment(name)
            if running is not None:
                self.report(f"{name}: waits for run {running.id}")
            while running is not None:
                await asyncio.sleep(FOLLOW_SECONDS)
                row, running = await self._moment(name)
            verdict = await self._read(row)
            after, running = await self._moment(name)
            if running is None and _written(after) == _written(row):
                return verdict
        trouble = f"It was synced during each of {READS} attempts to read it. `--repair` checks it in a run."
        return Verdict(name, trouble=trouble)

    async def _moment(self, name: str) -> tuple[Repository, Run | None]:
        """Its row and its running run. The row first: a run that begins after this begins a new epoch before it
        writes."""
        row = await self.app.repositories.get(name)
        for run in await self.app.history.active(row.id):
            if run.status is RunStatus.RUNNING and await self._is_alive(run):
                return row, run
        return row, None

    async def _is_alive(self, run: Run) -> bool:
        """Whether its worker may still write: its lease is valid, and it is not known to be dead."""
        over = run.lease_until is not None and run.lease_until < self.app.history.now()
        return not over and not await asyncio.to_thread(self.app.presence.is_dead, run.worker or "")

    async def _read(self, row: Repository) -> Verdict:
        live = await self._live(row)
        recorded = await self.app.manifests.load(live.id)
        index = self.app.index(live.physical)
        origin = await self.app.versions.origin(live)
        found = await audit_points(index, live, row.name, recorded, origin)
        counts = Counter(found.counts)
        more = [*await self._elsewhere(live), *await self._unfinished(row, live, bool(recorded))]
        trouble = None
        if self.against_source:
            try:
                more += await self._unlisted(row, live)
            except CommitRewritten:
                trouble = _compared_with_nothing(live, differs=bool(found.counts or more))
        for each in more:
            counts[each.kind] += max(each.points, 1)
        note = None
        failed = sum(1 for each in recorded.values() if each.is_failed)
        if live.commit_sha is None and not recorded:
            note = "No sync of it was completed yet."
        elif recorded and await index.spec() is None:
            note = f"There is no collection {live.physical!r} that reposync made."
        elif failed:
            at = f"commit {live.partial_commit[:10]}" if live.partial_commit else "the commit"
            note = f"It holds {at} except for {failed:,} files, which could not be read; the next sync tries again."
        return Verdict(
            repository=row.name,
            collection=live.collection,
            commit=live.commit_sha,
            files=sum(1 for each in recorded.values() if each.skip_reason is None),
            chunks=sum(each.chunks for each in recorded.values()),
            points=found.points,
            counts=dict(counts),
            differences=[*more, *found.differences],
            failed=failed,
            note=note,
            trouble=trouble,
        )

    async def _live(self, row: Repository) -> IndexVersion:
        """The live version, or the one being built, or none yet."""
        versions = await self.app.versions.of(row.id)
        live = [version for version in versions if version.state is VersionState.LIVE]
        if found := live or versions:
            return found[-1]
        behind = await self.app.index(row.collection).resolve()
        physical = behind.physical if behind is not None else row.collection
        columns: dict[str, Any] = {"collection": row.collection, "physical": physical, "commit_sha": row.last_commit}
        columns["committed_at"] = row.last_committed_at
        return unwritten_version(row, VersionState.LIVE, columns)

    async def _elsewhere(self, live: IndexVersion) -> list[Difference]:
        found = []
        for name in sorted(await self.app.collections() - {live.physical}):
            index = self.app.index(name)
            if await index.spec() is not None and (points := await index.count(live.id)):
                what = f"the collection {name!r} has {points:,} points of it, which belong in {live.physical!r}"
                found.append(Difference(DifferenceKind.ELSEWHERE, None, what, points))
        return found

    async def _unfinished(self, row: Repository, live: IndexVersion, has_rows: bool) -> list[Difference]:
        """An interrupted run leaves complete files, but an index between two commits."""
        for run in await self.app.history.runs(row.name, limit=_RUNS_LOOKED_AT):
            if run.repository_id != row.id or run.status is RunStatus.COMPLETED:
                break
            wrote = run.files_processed or run.files_deleted or run.files_skipped or run.error_code == "RUN_ABANDONED"
            if not run.removal and (wrote or run.status is RunStatus.RUNNING):
                what = f"run {run.id} is {run.status} and stored a part of its commit; the index is between two commits"
                return [Difference(DifferenceKind.UNFINISHED, None, what)]
        if live.commit_sha is None and live.partial_commit is None and has_rows:
            what = "no sync was completed since it was registered, or changed"
            return [Difference(DifferenceKind.UNFINISHED, None, what)]
        return []

    async def _unlisted(self, row: Repository, live: IndexVersion) -> list[Difference]:
        target = self.app.catalog.of_row(row)
        async with self.app.parts(target, row) as parts:
            return await audit_source(parts, target.settings(), live)


def _written(row: Repository) -> tuple[object, ...]:
    """What changes with every sync that writes."""
    return row.epoch, row.name, row.collection, row.live_version, row.last_commit, row.last_sync_at


@dataclass(frozen=True, slots=True)
class OrphanedPoints:
    """Points whose repository is not registered. `repository_id` None: points without a repository, which reposync
    never writes. `known`: this database has runs of the repository; otherwise it may belong to a different installation
    that uses the same collection."""

    collection: str
    repository_id: str | None
    repository: str | None
    points: int
    known: bool


async def find_orphaned_points(app: Application) -> list[OrphanedPoints]:
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
            found.append(OrphanedPoints(collection, identity, name, left, identity in known))
        if nameless > 0:
            found.append(OrphanedPoints(collection, None, None, nameless, False))
    return sorted(found, key=lambda each: (each.collection, each.repository or "", each.repository_id or ""))


async def remove_orphaned_points(app: Application, identity: str, name: str) -> Run | None:
    """Remove them from all collections in a run of their own, and return it as it ended. None if the repository is
    registered again, or has an active run. Raises LeaseLost, StoreUnavailable, CancelledError."""
    since, policy = elapsed_seconds(), ExecutionPolicy()
    worker = app.presence.name
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
