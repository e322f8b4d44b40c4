"""Updates one version of the index to a commit: reads or copies files, stores them, deletes what is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from reposync.content.model import Skip
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.errors import DeletionBlocked, IndexChanged, SourceCorrupt, SourceError
from reposync.ordering import in_order
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Ancestry, TreeEntry, path_bytes, path_text
from reposync.store.manifest import ManifestRow
from reposync.store.tables import IndexVersion
from reposync.symbol import read_symbols
from reposync.sync.audit import IndexState
from reposync.sync.brake import UNREADABLE, VANISHED, Brake, Losses
from reposync.sync.content_pool import DEATH, Deaths, RunContent, death_of
from reposync.sync.index_versions import Situation, VersionSettings
from reposync.sync.pipeline import BATCH_BYTES, DenseVectors, read_batches, run_pipeline
from reposync.sync.plan import Work, plan_work
from reposync.sync.point_audit import audit_ids
from reposync.sync.prepare import PreparedFile, StoredFile
from reposync.sync.progress import RunProgress
from reposync.sync.stored_points import stored_chunk
from reposync.sync.target import RunContext, SyncParts, TargetTree
from reposync.sync.writer import Writer
from reposync.vectors.collection import SCHEMA_REVISION
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import StoredPoint, WriteScope

log = logging.getLogger(__name__)

# So much of the model's work is in a batch, if its speed allows a full one: a cancelled or killed run loses little.
BATCH_SECONDS = 3.0
_FIRST_BATCH_CHUNKS, _LEAST_BATCH_CHUNKS = 20, 4
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


@dataclass(slots=True)
class VersionUpdate:
    """One attempt of a run. Safe to repeat and to abandon at any await: what is stored is recorded, and the next
    attempt continues from there."""

    context: RunContext
    embedder: Embedder
    situation: Situation
    target: TargetTree
    work: Work

    async def apply(self, state: IndexState) -> None:
        """Raises DeletionBlocked, SourceCorrupt, IndexChanged, LeaseLost, and what source, embedder, index and store
        raise."""
        context, situation, work, plan = self.context, self.situation, self.work, self.work.plan
        run, progress = context.run, context.progress
        await self._check_brake(None)
        index = context.parts.open_index(situation.working.physical)
        scope = await self._begin(index, state)
        writer = Writer(
            context,
            index,
            scope,
            self.target,
            recorded=work.recorded,
            damaged=state.audit.damaged,
            # A run that was killed between writing points and their rows leaves points without a row.
            orphans_possible=bool(state.audit.orphans),
        )
        spec = situation.wanted.spec
        others = {each.physical for each in situation.versions} - {situation.working.physical}
        vectors = DenseVectors(
            self.embedder,
            replace(spec, dimension=0) if situation.wanted.words_only else spec,
            index,
            index_holds_points=await index.count() > 0,
            others=await indexes_of_model(context.parts, others, spec),
            version_id=situation.working.id,
            recorded=work.recorded,
            removed=work.removed,
            figures=context.figures,
            progress=progress,
        )
        progress.files_total = len(plan.read)
        progress.enter("words" if situation.wanted.words_only else "indexing")
        if run.attempt > 1 or situation.builds:  # the live version was updated first
            await context.parts.runs.forget_problems(run, Skip.FAILED)
        left: list[str] = []
        if work.copied and situation.live is not None:
            left = await _copy_files(situation.live, work.copied, vectors, writer, wanted={}, exact=True)
        await self._read(await asyncio.to_thread(work.to_read, left), writer, vectors)
        if vectors.windows.embedded or vectors.windows.reused:
            log.info("%d windows embedded, %d reused", vectors.windows.embedded, vectors.windows.reused)
        lost = await asyncio.to_thread(writer.lost, work.losses.before)
        if situation.builds:
            await self._keep_unreadable(writer, vectors)
            lost = await self._lost_by_building()
        await self._check_brake(lost)
        await writer.drop_deferred()
        await writer.delete(plan)
        await writer.record(plan.skip)
        await writer.keep_unlisted([*plan.doubtful, *work.unlisted])
        progress.enter("checking")
        await self._settle(index, scope)

    async def _check_brake(self, read: Losses | None) -> None:
        """`read`: losses that were found while reading; None before."""
        run = self.context.run
        name, head = self.context.repository.name, self.target.head.sha
        brake = Brake(name, head, self.work.plan.listed, run.approval)
        try:
            facts = brake.check(self.work.losses, read)
        except DeletionBlocked as error:
            if cause := await self._likely_cause(self.work.losses if read is None else self.work.losses + read):
                error.message = f"{error.message} The likely cause: {cause}."
            raise
        if facts is not None:
            await self.context.parts.runs.record_brake(run, facts.as_json())

    async def _likely_cause(self, losses: Losses) -> str | None:
        settings, reason = self.context.settings, losses.counts.most_common(1)[0][0]
        if reason == VANISHED:
            before = self.situation.live.branch_name if self.situation.live is not None else None
            with contextlib.suppress(SourceError):  # it is only an explanation
                now = await self.context.parts.source.branch(fresh=True)
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
        answer = await self.context.parts.source.ancestry(live.commit_sha, self.target.head.sha)
        return answer is not Ancestry.CONTAINED

    async def _begin(self, index: QdrantIndex, state: IndexState) -> WriteScope:
        """Begin the epoch of this attempt's writes. From now on the manifest is a mixture of old and new."""
        context, version = self.context, self.situation.working
        context.lease.check()
        epoch = await context.parts.versions.begin_epoch(
            context.run,
            version,
            identity=state.identity,
            # After the database was restored to an older state, deletes with its epoch would miss newer points.
            above=await index.later_epoch(version.id, context.repository.epoch),
        )
        return WriteScope(version.id, context.repository.name, self.target.head.sha, epoch, context.lease.check)

    async def _read(self, entries: Sequence[TreeEntry], writer: Writer, vectors: DenseVectors) -> None:
        if not entries:
            return
        wanted = self.situation.wanted
        deaths = await self._deaths(entries)
        source, progress = self.context.parts.source, self.context.progress
        judge = partial(_judge, entries, self.work)
        batches = read_batches(source, entries, self.target, wanted.content, progress, judge, self._batch_bytes)
        content = RunContent(self.context.parts.content, wanted.content, deaths)
        if not deaths:
            content.pool.warm()
        await run_pipeline(batches, content.prepare, vectors, writer.store, progress)
        if paths := content.over_budget:
            log.warning("%d files have no symbols, parsing them takes too long: %s", len(paths), ", ".join(paths[:5]))

    def _batch_bytes(self) -> int:
        return min(BATCH_BYTES, _batch_chunks(self.context.progress) * self.situation.wanted.content.chunk_size)

    async def _deaths(self, entries: Sequence[TreeEntry]) -> Deaths:
        """In how many runs each file killed its worker. A run that reads everything tries each once more."""
        run = self.context.run
        earlier = await self.context.parts.runs.failures(self.context.repository.id, DEATH)
        if not earlier:
            return {}
        tries_again = run.full or run.repair

        def of_these() -> Deaths:
            mine = (death_of(path_text(entry.path), entry.sha) for entry in entries)
            return {each: 1 if tries_again else earlier[each] for each in mine if each in earlier}

        return await asyncio.to_thread(of_these)

    async def _keep_unreadable(self, writer: Writer, vectors: DenseVectors) -> None:
        """Copy files that cannot be read, or may still exist, from the live version to the one that is built."""
        live, made, work = self.situation.live, self.situation.live_settings, self.work
        if live is None or (made is not None and made.source != self.situation.wanted.source):
            return  # files of a different project are not older states of this one's
        blobs = writer.failed | dict.fromkeys(work.unlisted, "")
        rows = {path: row for path in blobs if (row := work.live.get(path)) is not None and row.chunks}
        if rows:
            # A file at the same blob has chunks of other settings: it is not what this version should have, either.
            wanted = {path: blobs[path] if blobs[path] != row.blob_sha else "" for path, row in rows.items()}
            await _copy_files(live, list(rows.values()), vectors, writer, wanted=wanted, exact=False)

    async def _lost_by_building(self) -> Losses:
        """Files that have points in the live version and not in the one that is built, because of their content."""
        built = await self.context.parts.manifests.load(self.situation.working.id)
        return await asyncio.to_thread(self._lost_of, built)

    def _lost_of(self, built: Mapping[str, ManifestRow]) -> Losses:
        losses = Losses(self.work.losses.before)
        for entry in self.target.tree.entries:
            path = path_text(entry.path)
            live, mine = self.work.live.get(path), built.get(path)
            if live is None or not live.chunks or mine is None or mine.chunks or mine.size_bytes is None:
                continue
            reason = mine.skip_reason or "empty"
            detail = f"{mine.size_bytes:,} bytes" if reason == Skip.TOO_LARGE else ""
            losses.add(UNREADABLE if reason == Skip.FAILED else reason, path, detail)
        return losses

    async def _settle(self, index: QdrantIndex, scope: WriteScope) -> None:
        """Check that the index is what the manifest says. Extra points are deleted. If points are missing, something
        else deletes in this collection, and the run fails."""
        manifests, version_id = self.context.parts.manifests, scope.version_id
        totals = await manifests.totals(version_id)
        points = await index.count(version_id, expected=totals.chunks)
        if not self.context.run.repair and points == totals.chunks:
            return
        audit = await audit_ids(index, version_id, await manifests.load(version_id))
        if audit.orphans:
            await index.remove_points(scope, await asyncio.to_thread(in_order, audit.orphans, str))
        if audit.damaged or await index.count(version_id, expected=totals.chunks) != totals.chunks:
            raise IndexChanged(
                f"The index lacks some of the {totals.chunks} points that this run stored or found.",
                remedy="Something else writes to this collection; the next run repairs it.",
            )


async def indexes_of_model(parts: SyncParts, collections: Set[str], spec: EmbeddingSpec) -> list[QdrantIndex]:
    """Of these collections, those that have vectors of the model."""
    indexes = [parts.open_index(each) for each in sorted(collections)]
    return [each for each in indexes if spec.dimension and await each.spec() == spec]


def _judge(entries: Sequence[TreeEntry], work: Work, unreadable: UnreadableBlobs) -> None:
    """Raises SourceCorrupt if so many files cannot be read that the source must be at fault. Files that could not be
    read before at the same blob do not count."""
    known = {
        (path, row.wanted_sha or row.blob_sha)
        for rows in (work.recorded, work.live)
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


async def _copy_files(
    live: IndexVersion,
    rows: Sequence[ManifestRow],
    vectors: DenseVectors,
    writer: Writer,
    *,
    wanted: Mapping[str, str],
    exact: bool,
) -> list[str]:
    """Copy the files that the live version records as `rows`; the texts come from there, and so do the vectors if the
    model is the same. `wanted`: see `Writer.store_copies`. `exact`: only files whose symbols can be found again without
    the file. Returns the other paths, those of which points are missing there, and those which the model refuses: these
    have to be read."""
    made = VersionSettings.read(live.settings)
    has_symbols = made is not None and made.schema == SCHEMA_REVISION
    settings = writer.context.settings.content
    content = RunContent(writer.context.parts.content, settings)
    index = writer.context.parts.open_index(live.physical)
    left: list[str] = []
    by_path = await asyncio.to_thread(lambda: {row.path: row for row in in_order(rows, lambda row: row.path)})
    progress = writer.context.progress

    async def pages() -> AsyncGenerator[dict[str, list[StoredPoint]], None]:
        for page in _pages_to_copy(by_path, progress):
            found: dict[str, list[StoredPoint]] = {path: [] for path in page}
            async for points in index.chunks(live.id, page):
                for point in points:
                    found[point.payload["metadata"]["path"]].append(point)
            yield found

    async def prepare(found: dict[str, list[StoredPoint]]) -> list[PreparedFile]:
        files = await asyncio.to_thread(_from_points, found, by_path, with_symbols=has_symbols)
        prepared = [file for file in await content.prepare(files) if file.is_exact or not exact]
        left.extend(found.keys() - {file.path for file in prepared})
        return prepared

    async def store(batch: Sequence[PreparedFile]) -> None:
        left.extend(file.path for file in batch if file.skipped)
        if taken := [file for file in batch if not file.skipped]:
            mine = {file.path: wanted[file.path] for file in taken if file.path in wanted}
            await writer.store_copies(taken, by_path, wanted=mine)

    await run_pipeline(pages(), prepare, vectors, store, progress)
    return left


def _batch_chunks(progress: RunProgress) -> int:
    rate = progress.chunks_per_second
    return max(_LEAST_BATCH_CHUNKS, int(rate * BATCH_SECONDS)) if rate else _FIRST_BATCH_CHUNKS


def _pages_to_copy(rows: Mapping[str, ManifestRow], progress: RunProgress) -> Iterator[list[str]]:
    page: list[str] = []
    chunks, most = 0, _batch_chunks(progress)
    for path, row in rows.items():
        page.append(path)
        chunks += row.chunks
        if chunks >= most or len(page) == _COPIED_AT_ONCE:
            yield page
            page, chunks, most = [], 0, _batch_chunks(progress)
    if page:
        yield page


def _from_points(
    found: Mapping[str, Sequence[StoredPoint]], rows: Mapping[str, ManifestRow], *, with_symbols: bool
) -> list[StoredFile]:
    """The files of which all points are there. `with_symbols`: those of the points are what this program would find."""
    files = []
    for path, points in found.items():
        row = rows[path]
        mine = [each for each in points if each.payload["metadata"]["blob_sha"] == row.blob_sha]
        mine.sort(key=lambda each: each.payload["metadata"]["chunk_index"])
        if [each.payload["metadata"]["chunk_index"] for each in mine] != list(range(row.chunks)):
            continue
        known = [read_symbols(each.payload["metadata"].get("symbols")) for each in mine] if with_symbols else None
        chunks = [stored_chunk(each) for each in mine]
        files.append(StoredFile(path, row.mode, row.blob_sha, row.size_bytes or 0, row.language, chunks, known))
    return files
