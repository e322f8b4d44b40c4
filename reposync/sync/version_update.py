"""Updates one version of the index to a commit: reads or copies files, stores them, deletes what is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from reposync.content.model import Skip
from reposync.embedding.port import Embedder
from reposync.embedding.sparse import document_vector
from reposync.errors import DeletionBlocked, IndexChanged, SourceCorrupt
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import TreeEntry, path_text
from reposync.store.manifest import ManifestRow
from reposync.sync.audit import IndexState, audit_ids, audit_points
from reposync.sync.brake import UNREADABLE, Brake, BrakeFacts, Losses, with_cause
from reposync.sync.dense import DenseVectors
from reposync.sync.index_versions import Situation
from reposync.sync.pipeline import BATCH_BYTES, run_pipeline
from reposync.sync.plan import Work, plan_work
from reposync.sync.prepare import DEATH, ContentWorkers, Deaths, PreparedChunk, PreparedFile, death_of
from reposync.sync.target import RunContext, SyncParts, TargetTree, fingerprint_before_02, same_content_before_02
from reposync.sync.writer import Writer, pages
from reposync.vectors.port import Index, StoredPoint, WriteScope

# A model that windows its input runs on these cores: small batches show progress, and a kill loses little.
WINDOWED_BATCH_BYTES = 120_000
# Unreadable files are problems of these files, up to this many or half of what was read; beyond that, of the source.
UNREADABLE_FILES = 20
UNREADABLE_SHARE = 0.5
# Files whose chunks are copied at once: 0.7 MB for a file with 100 chunks of 7,000 characters; most have one or two.
_COPIED_AT_ONCE = 64


async def make_work(
    parts: SyncParts,
    target: TargetTree,
    situation: Situation,
    state: IndexState,
    *,
    full_from_epoch: int | None = None,
    repair: bool = False,
) -> Work:
    """Load the manifests and plan; the keywords are those of `plan_work`."""
    recorded = await parts.manifests.load(situation.working.id)
    live = await parts.manifests.load(situation.live.id) if situation.live is not None and situation.builds else {}
    planned = partial(plan_work, damaged=state.audit.damaged, full_from_epoch=full_from_epoch, repair=repair)
    return await asyncio.to_thread(planned, target, situation, recorded, live)


class VersionUpdate:
    """One attempt of a run. Safe to repeat and to abandon at any await: what is stored is recorded, and the next
    attempt continues from there."""

    def __init__(
        self, context: RunContext, embedder: Embedder, situation: Situation, target: TargetTree, work: Work
    ) -> None:
        self._context = context
        self._parts = context.parts
        self._repository = context.repository
        self._run = context.run
        self._lease = context.lease
        self._progress = context.progress
        self._embedder = embedder
        self._situation = situation
        self._target = target
        self._work = work
        self.writer: Writer | None = None
        self.vectors: DenseVectors | None = None
        self.lost_before = 0
        """Files whose points should have been copied from the live version, which had lost them."""

    async def apply(self, state: IndexState) -> None:
        """Raises DeletionBlocked, SourceCorrupt, IndexChanged, LeaseLost, and what source, embedder, index and store
        raise."""
        situation, target, work = self._situation, self._target, self._work
        version, plan = situation.working, work.plan
        brake = Brake(
            self._repository.name,
            target.head.sha,
            plan.listed,
            approved=self._run.approved,
            approval=BrakeFacts.read(self._run.brake),
        )
        await self._check_brake(partial(brake.check_plan, work.losses), work.losses)
        index = self._parts.open_index(version.physical)
        scope = await self._begin(index, state)
        writer = self.writer = Writer(
            self._context,
            index,
            scope,
            target,
            recorded=work.recorded,
            damaged=state.audit.damaged,
            # A run that was killed between writing points and their rows leaves points without a row.
            orphans_possible=bool(state.audit.orphans),
        )
        self.vectors = vectors = DenseVectors(
            self._embedder,
            situation.wanted.spec,
            index,
            index_holds_points=await index.count() > 0,
            others=await self._same_model(),
        )
        self._progress.files_total = len(plan.read)
        self._progress.enter("indexing")
        if self._run.attempt > 1:
            await self._parts.runs.forget_problems(self._run, Skip.FAILED)
        await self._read(await self._copy_chunks(writer, vectors), writer, vectors)
        lost = writer.lost(work.losses.before)
        if situation.builds:
            await self._keep_unreadable(writer, vectors)
            lost = await self._lost_by_building()
        await self._check_brake(partial(brake.check_all, work.losses, lost), work.losses + lost)
        await writer.drop_deferred()
        await writer.delete(plan)
        await writer.skip(plan.skip)
        await writer.keep_unlisted([*plan.doubtful, *work.unlisted])
        self._progress.enter("checking")
        await self._settle(index, scope)

    async def _check_brake(self, check: Callable[[], BrakeFacts | None], losses: Losses) -> None:
        try:
            facts = check()
        except DeletionBlocked as error:
            source, settings = self._parts.source, self._context.settings
            raise await with_cause(error, source, self._situation, self._target, settings, losses) from error
        if facts is not None:
            await self._parts.runs.record_brake(self._run, facts.as_json())

    async def _begin(self, index: Index, state: IndexState) -> WriteScope:
        """Begin the epoch of this attempt's writes. From now on the manifest is a mixture of old and new."""
        self._lease.check()
        version, repository, head = self._situation.working, self._repository, self._target.head
        # Programs before 0.2 read every file again if this fingerprint is not theirs.
        today = fingerprint_before_02(self._context.settings, self._target.attributes)
        is_todays = version.commit_sha is None or same_content_before_02(repository.content_fingerprint, today)
        # After the database was restored to an older state, deletes with its epoch would miss newer points.
        later = await index.later_epoch(version.id, repository.epoch)
        epoch = await self._parts.versions.begin_epoch(
            self._run,
            version,
            identity=state.identity,
            fingerprint_before_02=today if is_todays else None,
            above=later,
        )
        return WriteScope(version.id, repository.name, head.sha, epoch, self._lease.check)

    async def _same_model(self) -> list[Index]:
        """The collections of the repository's other versions that have vectors of the same model."""
        physical = {each.physical for each in self._situation.versions} - {self._situation.working.physical}
        indexes = [self._parts.open_index(name) for name in sorted(physical)]
        spec = self._situation.wanted.spec
        return [index for index in indexes if spec.dimension and await index.spec() == spec]

    async def _copy_chunks(self, writer: Writer, vectors: DenseVectors) -> set[str]:
        """Copy chunks that the live version has. Returns the paths that have to be read."""
        to_read = {path_text(entry.path) for entry in self._work.plan.read}
        copied, live = self._work.copied, self._situation.live
        if not copied or live is None:
            return to_read
        left = await _copy_files(self._parts.open_index(live.physical), live.id, copied, vectors, writer, wanted={})
        self.lost_before = len(left)
        return to_read - {row.path for row in copied} | set(left)

    async def _read(self, paths: set[str], writer: Writer, vectors: DenseVectors) -> None:
        entries = [entry for entry in self._work.plan.read if path_text(entry.path) in paths]
        if not entries:
            return
        wanted = self._situation.wanted
        async with ContentWorkers(len(entries), wanted.content, await self._deaths(entries)) as workers:
            await run_pipeline(
                self._parts.source,
                entries,
                keep_generated=self._target.keeps_generated,
                max_file_bytes=wanted.content.max_file_bytes,
                batch_bytes=WINDOWED_BATCH_BYTES if wanted.spec.multivector else BATCH_BYTES,
                workers=workers,
                vectors=vectors,
                store=writer.store,
                judge=partial(_judge, entries, self._work),
                progress=self._progress,
            )

    async def _deaths(self, entries: Sequence[TreeEntry]) -> Deaths:
        """In how many runs each file killed its worker. A run that reads everything tries each once more."""
        earlier = await self._parts.runs.failures(self._repository.id, DEATH)
        if not earlier:
            return {}
        deaths = {each: earlier.get(each, 0) for each in (death_of(entry.path, entry.sha) for entry in entries)}
        again = self._run.full or self._run.repair
        return {each: 1 if again else number for each, number in deaths.items() if number}

    async def _keep_unreadable(self, writer: Writer, vectors: DenseVectors) -> None:
        """Copy files that cannot be read, or may still exist, from the live version to the one that is built."""
        live, made, work = self._situation.live, self._situation.live_settings, self._work
        if live is None or (made is not None and made.source != self._situation.wanted.source):
            return  # files of a different project are not older states of this one's
        blobs = writer.failed | dict.fromkeys(work.unlisted, "")
        rows = {path: row for path in blobs if (row := work.live.get(path)) is not None and row.chunks}
        if rows:
            # A file at the same blob has chunks of other settings: it is not what this version should have, either.
            wanted = {path: blobs[path] if blobs[path] != row.blob_sha else "" for path, row in rows.items()}
            index = self._parts.open_index(live.physical)
            await _copy_files(index, live.id, list(rows.values()), vectors, writer, wanted=wanted)

    async def _lost_by_building(self) -> Losses:
        """Files that have points in the live version and not in the one that is built, because of their content."""
        losses = Losses(self._work.losses.before)
        built = await self._parts.manifests.load(self._situation.working.id)
        for entry in self._target.tree.entries:
            path = path_text(entry.path)
            live, mine = self._work.live.get(path), built.get(path)
            if live is None or not live.chunks or mine is None or mine.chunks or mine.size_bytes is None:
                continue
            reason = mine.skip_reason or "empty"
            detail = f"{mine.size_bytes:,} bytes" if reason == Skip.TOO_LARGE else ""
            losses.add(UNREADABLE if reason == Skip.FAILED else reason, path, detail)
        return losses

    async def _settle(self, index: Index, scope: WriteScope) -> None:
        """Check that the index is what the manifest says. Extra points are deleted. If points are missing, something
        else deletes in this collection, and the run fails."""
        manifests, version_id = self._parts.manifests, scope.repository_id
        totals = await manifests.totals(version_id)
        if not self._run.repair and await index.count(version_id) == totals.chunks:
            return
        recorded = await manifests.load(version_id)
        if self._run.repair:
            audit = (await audit_points(index, version_id, self._repository.name, recorded)).audit
        else:
            audit = await audit_ids(index, version_id, recorded)
        if audit.orphans:
            self._lease.check()
            await index.remove_points(scope, sorted(audit.orphans, key=str))
        if audit.damaged or await index.count(version_id) != totals.chunks:
            raise IndexChanged(
                f"The index lacks {audit.lost} of {totals.chunks} points that this run stored or found.",
                remedy="Something else writes to this collection; the next run repairs it.",
            )


def _judge(entries: Sequence[TreeEntry], work: Work, unreadable: UnreadableBlobs) -> None:
    """Raises SourceCorrupt if so many files cannot be read that the source must be at fault. Files that could not be
    read before at the same blob do not count."""
    known = (work.recorded, work.live)
    expected = [
        entry
        for entry in entries
        if not any(_known_to_fail(rows.get(path_text(entry.path)), entry.sha) for rows in known)
    ]
    bad = [entry for entry in expected if entry.sha in unreadable.reasons]
    most = len(bad) > UNREADABLE_FILES and len(bad) > len(expected) * UNREADABLE_SHARE
    if bad and (most or len(bad) == len(expected)):
        raise SourceCorrupt(
            f"{len(bad):,} of {len(expected):,} files cannot be read: {unreadable.message} The index stays unchanged.",
            remedy=unreadable.remedy,
        ) from unreadable


def _known_to_fail(row: ManifestRow | None, sha: str) -> bool:
    if row is None:
        return False
    if row.is_outdated:
        return sha == (row.wanted_sha or row.blob_sha)
    return row.skip_reason == "failed" and row.blob_sha == sha


async def _copy_files(
    index: Index,
    version_id: str,
    rows: Sequence[ManifestRow],
    vectors: DenseVectors,
    writer: Writer,
    *,
    wanted: Mapping[str, str],
) -> list[str]:
    """Copy the files that the version `version_id` records as `rows`; the texts come from there, and so do the vectors
    if the model is the same. `wanted`: see `Writer.store_copies`. Returns the paths of which points are missing there,
    or which the model refuses: these have to be read."""
    left: list[str] = []
    by_path = {row.path: row for row in rows}
    for page in pages(sorted(by_path), _COPIED_AT_ONCE):
        found: dict[str, list[StoredPoint]] = {path: [] for path in page}
        async for points in index.chunks(version_id, page):
            for point in points:
                found[point.payload["metadata"]["path"]].append(point)
        prepared = await asyncio.to_thread(_from_points, found, by_path)
        left += [path for path in page if path not in prepared]
        embedded = await vectors.embed(list(prepared.values()))
        refused = [each.file.path for each in embedded if each.file.skipped]
        taken = [each for each in embedded if not each.file.skipped]
        if taken:
            mine = {path: sha for path, sha in wanted.items() if path in prepared and path not in refused}
            await writer.store_copies(taken, by_path, wanted=mine)
            vectors.stored(taken)
        left += refused
    return left


def _from_points(
    found: Mapping[str, Sequence[StoredPoint]], rows: Mapping[str, ManifestRow]
) -> dict[str, PreparedFile]:
    """The files of which all points are there."""
    prepared = {}
    for path, points in found.items():
        row = rows[path]
        metadata = {
            each["chunk_index"]: (each, text) for each, text in map(_parts, points) if each["blob_sha"] == row.blob_sha
        }
        if sorted(metadata) != list(range(row.chunks)):
            continue
        chunks = tuple(_chunk(*metadata[number], path) for number in range(row.chunks))
        size = row.size_bytes or 0
        prepared[path] = PreparedFile(path, row.mode, row.blob_sha, size, row.language, chunks, None)
    return prepared


def _parts(point: StoredPoint) -> tuple[Mapping[str, Any], str]:
    return point.payload["metadata"], point.payload["page_content"]


def _chunk(metadata: Mapping[str, Any], text: str, path: str) -> PreparedChunk:
    vector = document_vector(text, path=path)
    return PreparedChunk(text, metadata["start_line"], metadata["end_line"], metadata["content_hash"], vector)
