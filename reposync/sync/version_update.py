"""Updates one version of the index to a commit: reads files, stores them, deletes what is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from reposync.content.model import Skip
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.embedding.sparse import document_vector
from reposync.errors import DeletionBlocked, IndexChanged, SourceCorrupt, SourceError
from reposync.ordering import in_order
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Ancestry, TreeEntry, path_bytes, path_text
from reposync.store.changes import MAX_CHANGES
from reposync.store.manifest import ManifestRow
from reposync.store.run import Run
from reposync.symbol import read_names, read_symbols
from reposync.sync.audit import IndexState
from reposync.sync.brake import UNREADABLE, VANISHED, Brake, Losses
from reposync.sync.content_pool import RunContent
from reposync.sync.index_versions import Situation
from reposync.sync.lease import Lease
from reposync.sync.pipeline import BATCH_BYTES, DenseVectors, chunks_at_once, read_batches, run_pipeline
from reposync.sync.plan import Work, plan_work
from reposync.sync.point_audit import audit_ids
from reposync.sync.prepare import PreparedFile, RawFile
from reposync.sync.progress import RunProgress
from reposync.sync.shown_texts import hide_paths, mask_texts
from reposync.sync.stored_points import own_text, stored_chunk
from reposync.sync.target import SyncParts, TargetTree
from reposync.sync.writer import Writer, pages
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import PointWrite, StoredPoint, WriteScope

log = logging.getLogger(__name__)

# Unreadable files are problems of these files, up to this many or half of what was read; beyond that, of the source.
UNREADABLE_FILES = 20
UNREADABLE_SHARE = 0.5
# Changed files that are listed of a run that finds nothing indexed.
FIRST_CHANGES = 100
# Files whose points are kept at once: 0.7 MB for a file with 100 chunks of 7,000 characters; most have one or two.
_KEPT_AT_ONCE = 64


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
    recorded = searched = await parts.manifests.load(situation.working.id)
    if situation.builds:
        searched = await parts.manifests.load(situation.live.id) if situation.live is not None else {}
    masked = await parts.findings.first_lines(parts.repository.id)
    rules, live = target.secrets.fingerprint, situation.live
    known = [recorded] if situation.working.secret_rules == rules else []
    known += [searched] if live is not None and live.secret_rules == rules else []
    target = await hide_paths(parts.content, replace(target, masked=masked), known)
    planned = partial(plan_work, damaged=state.audit.damaged, full_from_epoch=full_from_epoch, repair=repair)
    return await asyncio.to_thread(planned, target, situation, recorded, searched)


@dataclass(slots=True)
class VersionUpdate:
    """One attempt of a run. Safe to repeat and to abandon at any await: what is stored is recorded, and the next
    attempt continues from there."""

    parts: SyncParts
    run: Run
    lease: Lease
    progress: RunProgress
    embedder: Embedder
    situation: Situation
    state: IndexState
    work: Work
    words_only: bool
    """Points are stored without dense vectors, which `Meaning` adds."""

    @property
    def target(self) -> TargetTree:
        return self.work.target

    async def apply(self) -> None:
        """Raises DeletionBlocked, SourceCorrupt, IndexChanged, LeaseLost, and what source, embedder, index and store
        raise."""
        parts, situation, work, plan = self.parts, self.situation, self.work, self.work.plan
        await self._check_brake(None)
        index = parts.open_index(situation.working.physical)
        scope = await self._begin(index)
        writer = Writer(
            parts,
            self.run,
            index,
            scope,
            self.target,
            recorded=work.recorded,
            damaged=self.state.audit.damaged,
            # A run that was killed between writing points and their rows leaves points without a row.
            orphans_possible=bool(self.state.audit.orphans),
            progress=self.progress,
            with_secrets=set(await parts.findings.first_lines(parts.repository.id)),
            searched=work.searched,
            room=await self._room_for_changes(),
        )
        spec = situation.wanted.spec
        others = {version.physical for version in situation.versions} - {situation.working.physical}
        vectors = DenseVectors(
            self.embedder,
            replace(spec, dimension=0) if self.words_only else spec,
            index,
            self.progress,
            others=await indexes_of_model(parts, others, spec),
            version_id=situation.working.id,
            recorded=work.recorded,
            removed={posixpath.basename(path): path for path in plan.delete_points},
        )
        self.progress.files_total = len(plan.read)
        self.progress.enter("words" if self.words_only else "indexing")
        if self.run.attempt > 1 or situation.builds:  # the live version was updated first
            await parts.runs.forget_problems(self.run, Skip.FAILED)
        if plan.read:
            await self._read(writer, vectors)
        if vectors.windows.embedded or vectors.windows.reused:
            log.info("%d windows embedded, %d reused", vectors.windows.embedded, vectors.windows.reused)
        stored = {file.path: writer.row(file) for file in writer.deferred}
        if situation.builds:
            await self._keep_unreadable(writer, vectors)
            stored = await parts.manifests.load(situation.working.id) | stored
        await self._check_brake(await asyncio.to_thread(self._lost, stored))
        await writer.drop_deferred()
        await writer.delete(plan)
        indexed = {path: shown for path, shown in self.target.hidden.items() if path in work.recorded}
        await parts.runs.hide_problems(self.run, indexed)
        await writer.record(plan.skip)
        await writer.keep_unlisted(plan.doubtful)
        self.progress.enter("checking")
        await self._settle(index, scope)

    async def _room_for_changes(self) -> int:
        """A few are enough for a first sync: everything is new."""
        most = MAX_CHANGES if self.work.searched else FIRST_CHANGES
        begins = self.run.attempt == 1 and not self.situation.builds
        return most if begins else min(most, await self.parts.runs.room_for_changes(self.run))

    async def _check_brake(self, read: Losses | None) -> None:
        """`read`: losses that were found while reading; None before."""
        brake = Brake(
            self.parts.repository.name, self.target.head.sha, self.work.plan.listed, approval=self.run.approval
        )
        try:
            facts = brake.check(self.work.losses, read)
        except DeletionBlocked as error:
            losses = self.work.losses if read is None else self.work.losses + read
            if cause := await self._likely_cause(losses):
                error.message = f"{error.message} The likely cause: {cause}."
            await self.parts.runs.record_risk(self.run, await asyncio.to_thread(sorted, losses.paths))
            raise
        if facts is not None:
            await self.parts.runs.record_brake(self.run, facts.as_json())

    async def _likely_cause(self, losses: Losses) -> str | None:
        settings, reason = self.parts.settings, losses.counts.most_common(1)[0][0]
        if reason == VANISHED:
            before = self.situation.live.branch_name if self.situation.live is not None else None
            with contextlib.suppress(SourceError):  # it is only an explanation
                now = await self.parts.source.branch(fresh=True)
                if None not in (before, now) and before != now and await self._left_behind():
                    return f"the {'' if settings.branch else 'default '}branch changed from {before} to {now}"
            return None
        path, _ = losses.examples[reason]
        if reason == Skip.NOT_INCLUDED:
            return f"`include: {list(settings.include)}` of the registry matches no path like {path}"
        if rule := self.target.rules.attributes.rule(path_bytes(path), f"linguist-{reason}"):
            file, pattern = rule
            return f"the rule `{pattern} linguist-{reason}` of {file.decode(errors='replace')}"
        return None

    async def _left_behind(self) -> bool:
        """Whether the head does not follow the indexed commit, as far as the source can tell: after a push to the new
        branch, the change of branches is no cause any more."""
        live = self.situation.live
        if live is None or live.commit_sha is None:
            return True
        answer = await self.parts.source.ancestry(live.commit_sha, self.target.head.sha)
        return answer is not Ancestry.CONTAINED

    async def _begin(self, index: QdrantIndex) -> WriteScope:
        """Begin the epoch of this attempt's writes. From now on the manifest is a mixture of old and new."""
        repository, version = self.parts.repository, self.situation.working
        self.lease.check()
        epoch = await self.parts.versions.begin_epoch(
            self.run,
            version,
            identity=self.state.identity,
            # After the database was restored to an older state, deletes with its epoch would miss newer points.
            above=await index.later_epoch(version.id, repository.epoch),
        )
        return WriteScope(version.id, repository.name, self.target.head.sha, epoch, self.lease.check)

    async def _read(self, writer: Writer, vectors: DenseVectors) -> None:
        settings = self.situation.wanted.content
        judge = partial(_judge, self.work.plan.read, self.work)
        window = None if self.words_only else await self.embedder.window_of_workers()
        content = RunContent(self.parts.content, settings, self.parts.settings.secrets, window)
        self.parts.content.warm()

        async def prepare(batch: Sequence[RawFile]) -> Sequence[PreparedFile]:
            files = await content.prepare(batch)
            self.progress.read(len(files), sum(len(file.chunks) for file in files))
            return files

        async def store(batch: Sequence[PreparedFile], files: Sequence[PreparedFile]) -> None:
            await writer.store(files)
            vectors.stored(chunk.content_hash for file in batch for chunk in file.chunks)

        batches = read_batches(
            self.parts.source, self.work.plan.read, self.target, settings, self.progress, judge, self._batch_bytes
        )
        await run_pipeline(batches, prepare, vectors.embed, store, self.progress)
        if paths := content.over_budget:
            first = await mask_texts(self.parts.content, paths[:5], self.parts.settings.secrets)
            log.warning("%d files have no symbols, parsing them takes too long: %s", len(paths), ", ".join(first))

    def _batch_bytes(self) -> int:
        return min(BATCH_BYTES, chunks_at_once(self.progress) * self.situation.wanted.content.chunk_size)

    async def _keep_unreadable(self, writer: Writer, vectors: DenseVectors) -> None:
        """Copy the points of files that cannot be read, or may still exist, from the live version to the one that is
        built."""
        live, made, searched = self.situation.live, self.situation.live_settings, self.work.searched
        if live is None or (made is not None and made.source != self.situation.wanted.source):
            return  # files of a different project are not older states of this one's
        blobs = {path: "" for path in self.work.plan.doubtful if not writer.has_points(path)} | writer.failed
        rows = [row for path in blobs if (row := searched.get(path)) is not None and row.chunks]
        index = self.parts.open_index(live.physical)
        for page in pages(rows, _KEPT_AT_ONCE):
            points = [point async for stored in index.chunks(live.id, [row.path for row in page]) for point in stored]
            files = await vectors.embed(await asyncio.to_thread(_stored_files, live.id, page, points))
            kept = {file.path: file for file in files if file.chunks}
            # At the same blob its chunks are of other settings: it is not what this version should have, either.
            await writer.keep(
                list(kept.values()),
                [
                    row._replace(wanted_sha=blobs[row.path] if blobs[row.path] != row.blob_sha else "")
                    for row in page
                    if row.path in kept
                ],
            )

    def _lost(self, stored: Mapping[str, ManifestRow]) -> Losses:
        """Files that are searchable now and would have no points, because of their content, as they are `stored`."""
        losses = Losses(self.work.losses.before)
        gone = set(self.work.plan.delete_rows)
        for path, row in stored.items():
            before = self.work.searched.get(path)
            if before is None or not before.chunks or row.chunks or row.size_bytes is None or path in gone:
                continue
            reason = row.skip_reason or "empty"
            detail = f"{row.size_bytes:,} bytes" if reason == Skip.TOO_LARGE else ""
            losses.add(UNREADABLE if reason == Skip.FAILED else reason, path, detail)
        return losses

    async def _settle(self, index: QdrantIndex, scope: WriteScope) -> None:
        """Check that the index is what the manifest says. Extra points are deleted. If points are missing, something
        else deletes in this collection, and the run fails."""
        manifests, version_id = self.parts.manifests, scope.version_id
        totals = await manifests.totals(version_id)
        points = await index.count(version_id, expected=totals.chunks)
        if not self.run.repair and points == totals.chunks:
            return
        audit = await audit_ids(index, version_id, await manifests.load(version_id))
        if audit.orphans:
            await index.remove_points(scope, await asyncio.to_thread(in_order, audit.orphans, str))
        if audit.damaged or await index.count(version_id, expected=totals.chunks) != totals.chunks:
            raise IndexChanged(
                f"The index has {points:,} points; this run stored or found {totals.chunks:,}.",
                remedy="Something else writes to this collection; the next run repairs it.",
            )


async def indexes_of_model(parts: SyncParts, collections: Set[str], spec: EmbeddingSpec) -> list[QdrantIndex]:
    """The indexes of those collections that have vectors of the model."""
    indexes = [parts.open_index(each) for each in sorted(collections)]
    return [each for each in indexes if spec.dimension and await each.spec() == spec]


def _judge(entries: Sequence[TreeEntry], work: Work, unreadable: UnreadableBlobs) -> None:
    """Raises SourceCorrupt if so many files cannot be read that the source must be at fault. Files that could not be
    read before at the same blob do not count."""
    known = {
        (path, row.wanted_sha or row.blob_sha)
        for rows in (work.recorded, work.searched)
        for path, row in rows.items()
        if row.is_failed
    }
    expected = [entry for entry in entries if (path_text(entry.path), entry.sha) not in known]
    bad = [entry for entry in expected if entry.sha in unreadable.reasons]
    most = len(bad) > UNREADABLE_FILES and len(bad) > len(expected) * UNREADABLE_SHARE
    if bad and (most or len(bad) == len(expected)):
        raise SourceCorrupt(
            f"{len(bad):,} of {len(expected):,} files cannot be read: {unreadable.message} The index stays unchanged.",
            remedy=unreadable.remedy,
        ) from unreadable


def _stored_files(version_id: str, rows: Sequence[ManifestRow], points: Sequence[StoredPoint]) -> list[PreparedFile]:
    """The files of which all points of their rows' blobs are there."""
    chunks: defaultdict[tuple[str, str], list[PointWrite]] = defaultdict(list)
    for point in points:
        with contextlib.suppress(LookupError, TypeError):  # another program changed it
            if own_text(point, version_id) is not None:
                metadata = point.payload["metadata"]
                chunks[metadata["path"], metadata["blob_sha"]].append(_stored_point(point))
    files = []
    for row in rows:
        stored = in_order(chunks[row.path, row.blob_sha], lambda chunk: chunk.chunk_index)
        if [chunk.chunk_index for chunk in stored] == list(range(row.chunks)):
            files.append(PreparedFile(row.path, row.mode, row.blob_sha, row.size_bytes, row.language, tuple(stored)))
    return files


def _stored_point(point: StoredPoint) -> PointWrite:
    metadata, chunk = point.payload["metadata"], stored_chunk(point)
    symbols = read_symbols(metadata.get("symbols"))
    return PointWrite(
        metadata["chunk_index"],
        chunk.text,
        chunk.start_line,
        chunk.end_line,
        metadata["content_hash"],
        url=None,
        dense=None,
        sparse=document_vector(chunk.text, path=metadata["path"], names=[symbol.name for symbol in symbols]),
        symbols=symbols,
        start_index=chunk.start_index,
        calls=read_names(metadata.get("calls")),
    )
