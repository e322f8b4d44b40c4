"""Bringing one version of the index to a commit: what is read, taken over, stored and taken out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from reposync.content.model import Skip
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.errors import DeletionBlocked, IndexChanged, SourceCorrupt
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.paths import path_bytes, path_text
from reposync.sources.port import TreeEntry
from reposync.store.manifest import ManifestRow
from reposync.store.repository import Repository
from reposync.store.run import Run
from reposync.store.versions import IndexVersion
from reposync.sync.audit import IndexState, audit_index
from reposync.sync.audit_points import audit_points
from reposync.sync.brake import UNREADABLE, Brake, Facts, Losses, losses_of
from reposync.sync.carry import carry_over
from reposync.sync.causes import with_cause
from reposync.sync.dense import DenseVectors
from reposync.sync.lease import Lease
from reposync.sync.pipeline import run_pipeline
from reposync.sync.plan import Plan, make_plan
from reposync.sync.progress import RunProgress, Watch
from reposync.sync.target import SyncParts, SyncSettings, Target, fingerprint_before_02, same_content_before_02
from reposync.sync.versions import Situation, VersionSettings
from reposync.sync.workers import DEATH, ContentWorkers, Deaths, death_of
from reposync.sync.writer import Ledger, LineUrl, Writer
from reposync.vectors.port import Index, WriteScope

Check = Callable[[], Facts | None]

# A model that windows its input runs here, on these cores: small batches show progress, and a kill loses little.
WINDOWED_BATCH_BYTES = 120_000
BATCH_BYTES = 500_000
# Up to so many files that cannot be read are problems of these files; more, and over half of what was read, are one of
# the source.
UNREADABLE_FILES = 20
UNREADABLE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does to a version. `recorded`: its manifest. `live`: that of the version which is searched, if it is
    another one. `carried`: files of the plan that the live version has, just so. `unlisted`: paths that it has, and
    that a tree which is not proven to be complete lacks."""

    plan: Plan
    recorded: Mapping[str, ManifestRow]
    live: Mapping[str, ManifestRow]
    carried: Sequence[ManifestRow]
    unlisted: Sequence[str]
    losses: Losses

    @property
    def is_empty(self) -> bool:
        return self.plan.is_empty


def plan_work(
    target: Target,
    situation: Situation,
    recorded: Mapping[str, ManifestRow],
    live: Mapping[str, ManifestRow],
    state: IndexState,
    *,
    full_from_epoch: int | None,
    repair: bool,
) -> Work:
    """Pure, and for a thread: it looks at every path. `full_from_epoch`: files of later epochs need not
    be read again for `--full`; None where nothing is. `live`: as in `Work`. `repair`: files that were left out for
    their content are looked at again."""

    def reread(entry: TreeEntry, row: ManifestRow) -> bool:
        doubted = repair and row.skip_reason is not None
        demanded = full_from_epoch is not None and row.epoch <= full_from_epoch
        return doubted or demanded or target.reads_otherwise(entry, row)

    plan = make_plan(target.tree, recorded, target.decide, reread=reread, damaged=state.audit.damaged)
    indexed = live if situation.builds else recorded
    # What another branch or another source had is no hint of what this one has.
    stays = not target.tree.proven and not (situation.builds and _is_elsewhere(situation))
    losses = losses_of(indexed, target.tree.entries, target.decide, proven=not stays)
    carried = _carried(target, situation, plan, live) if full_from_epoch is None else []
    return Work(plan, recorded, live, carried, _unlisted(target, recorded, live) if stays else [], losses)


def _is_elsewhere(situation: Situation) -> bool:
    """Whether the live version's files come from another place than those of the one that is built."""
    made = VersionSettings.read(situation.live.settings) if situation.live is not None else None
    return made is None or (made.source, made.branch) != (situation.wanted.source, situation.wanted.branch)


def _unlisted(target: Target, recorded: Mapping[str, ManifestRow], live: Mapping[str, ManifestRow]) -> list[str]:
    listed = {path_text(entry.path) for entry in target.tree.entries}
    return [path for path, row in live.items() if row.chunks and path not in listed and path not in recorded]


def _carried(target: Target, situation: Situation, plan: Plan, live: Mapping[str, ManifestRow]) -> list[ManifestRow]:
    """Files to read of which the live version has the same chunks."""
    made = VersionSettings.read(situation.live.settings) if situation.live is not None else None
    if made is None or not situation.builds or not made.chunks_as(situation.wanted):
        return []
    limit = situation.wanted.content.max_file_bytes
    found = []
    for entry in plan.read:
        row = live.get(path_text(entry.path))
        if row is None or not row.chunks or row.blob_sha != entry.sha or row.is_outdated:
            continue
        if (row.size_bytes or 0) <= limit and not target.reads_otherwise(entry, row):
            found.append(row)
    return found


class Bringing:
    """Of one run. Safe to repeat, and to abandon at any await: what is stored is recorded, and the next attempt goes on
    from there."""

    def __init__(
        self,
        parts: SyncParts,
        settings: SyncSettings,
        repository: Repository,
        run: Run,
        lease: Lease,
        *,
        embedder: Embedder,
        progress: RunProgress,
        watch: Watch,
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._repository = repository
        self._run = run
        self._lease = lease
        self._embedder = embedder
        self._progress = progress
        self._watch = watch
        self.writer: Writer | None = None
        self.vectors: DenseVectors | None = None
        self.lost_before = 0
        """Files of which the live version should have points to take over, and has not."""

    async def apply(self, situation: Situation, target: Target, state: IndexState, work: Work) -> None:
        """Raises DeletionBlocked, SourceCorrupt, IndexChanged, LeaseLost, and what source, embedder, index and store
        raise."""
        version, plan = situation.working, work.plan
        brake = Brake(
            self._repository.name,
            target.head.sha,
            plan.listed,
            approved=self._run.approved,
            approval=Facts.read(self._run.brake),
        )
        await self._asked(partial(brake.check_plan, work.losses), target, situation, work.losses)
        index = self._parts.open_index(version.physical)
        scope = await self._begin(index, situation, target, state)
        spec = situation.wanted.spec
        writer = self.writer = Writer(
            Ledger(self._run, self._lease, self._parts.manifests, self._parts.runs),
            index,
            scope,
            recorded=work.recorded,
            damaged=state.audit.damaged,
            # Points that no row accounts for: a run that was killed between the points and their rows left them.
            orphans_possible=bool(state.audit.orphans),
            line_url=self._line_url(target),
            reader=target.reader,
            progress=self._progress,
            watch=self._watch,
        )
        holds_points = await index.count() > 0
        others = await self._same_model(situation, spec)
        self.vectors = DenseVectors(self._embedder, spec, index, index_holds_points=holds_points, others=others)
        self._progress.files_total = len(plan.read)
        self._enter("indexing")
        if self._run.attempt > 1:
            await self._parts.runs.forget_problems(self._run, Skip.FAILED)
        left = await self._carry(situation, work, writer)
        await self._read(target, situation, work, left, spec, writer)
        lost = writer.lost(work.losses.before)
        if situation.builds:
            await self._keep_unreadable(situation, work, writer)
            lost = await self._lost_by_building(situation, target, work)
        check = partial(brake.check_all, work.losses, lost)
        await self._asked(check, target, situation, work.losses + lost)
        await writer.drop_deferred()
        await writer.remove(plan)
        await writer.skip(plan.skip)
        await writer.doubt([*plan.doubtful, *work.unlisted])
        self._enter("checking")
        await self._settle(index, scope)

    async def _asked(self, check: Check, target: Target, situation: Situation, losses: Losses) -> None:
        try:
            facts = check()
        except DeletionBlocked as error:
            raise await with_cause(error, self._parts.source, situation, target, self._settings, losses) from error
        if facts is not None:
            await self._parts.runs.note_brake(self._run, facts.as_json())

    async def _begin(self, index: Index, situation: Situation, target: Target, state: IndexState) -> WriteScope:
        """The epoch under which this run writes. From here on the manifest is a mixture of old and new."""
        self._lease.check()
        version, repository = situation.working, self._repository
        # Programs before 0.2 read the manifest again where its fingerprint is not today's.
        today = fingerprint_before_02(self._settings, target.attributes)
        # After the database was restored to an older state, the index is ahead of it, and deletes would pass by its
        # points.
        later = await index.later_epoch(version.id, repository.epoch)
        epoch = await self._parts.versions.begin_epoch(
            self._run,
            version,
            identity=state.identity,
            fingerprint_before_02=today if _is_todays(repository, version, today) else None,
            above=later,
        )
        return WriteScope(version.id, repository.name, target.head.sha, epoch, self._lease.check)

    async def _same_model(self, situation: Situation, spec: EmbeddingSpec) -> list[Index]:
        """Other collections with vectors of this model: those of the repository's other versions."""
        physical = {each.physical for each in situation.versions} - {situation.working.physical}
        indexes = [self._parts.open_index(name) for name in sorted(physical)]
        return [index for index in indexes if spec.dimension and await index.spec() == spec]

    async def _carry(self, situation: Situation, work: Work, writer: Writer) -> set[str]:
        """The paths that have to be read."""
        to_read = {path_text(entry.path) for entry in work.plan.read}
        if not work.carried or situation.live is None or self.vectors is None:
            return to_read
        index = self._parts.open_index(situation.live.physical)
        left = await carry_over(index, situation.live.id, work.carried, self.vectors, writer, wanted={})
        self.lost_before = len(left)
        return to_read - {row.path for row in work.carried} | set(left)

    async def _read(
        self,
        target: Target,
        situation: Situation,
        work: Work,
        paths: set[str],
        spec: EmbeddingSpec,
        writer: Writer,
    ) -> None:
        entries = [entry for entry in work.plan.read if path_text(entry.path) in paths]
        if not entries or self.vectors is None:
            return
        content = situation.wanted.content
        async with ContentWorkers(len(entries), content, await self._deaths(entries)) as workers:
            await run_pipeline(
                self._parts.source,
                entries,
                keep_generated=target.keeps_generated,
                max_file_bytes=content.max_file_bytes,
                batch_bytes=WINDOWED_BATCH_BYTES if spec.multivector else BATCH_BYTES,
                workers=workers,
                vectors=self.vectors,
                store=writer.store,
                judge=partial(_judge, entries, work),
                progress=self._progress,
            )

    async def _deaths(self, entries: Sequence[TreeEntry]) -> Deaths:
        """Of the workers that prepared these files. A run that is to read everything tries each once more."""
        earlier = await self._parts.runs.failures(self._repository.id, DEATH)
        if not earlier:
            return {}
        deaths = {each: earlier.get(each, 0) for each in (death_of(entry.path, entry.sha) for entry in entries)}
        again = self._run.full or self._run.repair
        return {each: 1 if again else number for each, number in deaths.items() if number}

    async def _keep_unreadable(self, situation: Situation, work: Work, writer: Writer) -> None:
        """Of files that cannot be read, or are not known to be gone, the version that is built gets what the live one
        has."""
        made = VersionSettings.read(situation.live.settings) if situation.live is not None else None
        if made is not None and made.source != situation.wanted.source:
            return  # a file of another project is not an older state of this one's
        blobs = writer.failed | dict.fromkeys(work.unlisted, "")
        rows = {path: row for path in blobs if (row := work.live.get(path)) is not None and row.chunks}
        if rows and situation.live is not None and self.vectors is not None:
            index = self._parts.open_index(situation.live.physical)
            # A file at the same blob has the chunks of other settings: it is not what this version is to have, either.
            wanted = {path: sha if (sha := blobs[path]) != row.blob_sha else "" for path, row in rows.items()}
            await carry_over(index, situation.live.id, list(rows.values()), self.vectors, writer, wanted=wanted)

    async def _lost_by_building(self, situation: Situation, target: Target, work: Work) -> Losses:
        """What the version that is built has not and the live one has, beside what the listing and the rules took."""
        losses = Losses(work.losses.before)
        built = await self._parts.manifests.load(situation.working.id)
        for entry in target.tree.entries:
            path = path_text(entry.path)
            live, mine = work.live.get(path), built.get(path)
            if live is None or not live.chunks or mine is None or mine.chunks or mine.size_bytes is None:
                continue
            reason = mine.skip_reason or "empty"
            detail = f"{mine.size_bytes:,} bytes" if reason == Skip.TOO_LARGE else ""
            losses.add(UNREADABLE if reason == Skip.FAILED else reason, path, detail)
        return losses

    async def _settle(self, index: Index, scope: WriteScope) -> None:
        """Never call a run completed whose index is not what the manifest says. Points too many are removed; points
        too few mean that something else deletes in this collection, and the run fails in words."""
        manifests, version_id = self._parts.manifests, scope.repository_id
        totals = await manifests.totals(version_id)
        if not self._run.repair and await index.count(version_id) == totals.chunks:
            return
        recorded = await manifests.load(version_id)
        if self._run.repair:
            audit = (await audit_points(index, version_id, self._repository.name, recorded)).audit
        else:
            audit = await audit_index(index, version_id, recorded)
        if audit.orphans:
            self._lease.check()
            await index.remove_points(scope, sorted(audit.orphans, key=str))
        if audit.damaged or await index.count(version_id) != totals.chunks:
            raise IndexChanged(
                f"The index lacks {audit.lost} of {totals.chunks} points that this run stored or found.",
                remedy="Something else writes to this collection; the next run repairs it.",
            )

    def _line_url(self, target: Target) -> LineUrl:
        source, head = self._parts.source, target.head
        return lambda path, first, last: source.url(path_bytes(path), head, first, last)

    def _enter(self, phase: str) -> None:
        self._progress.phase = phase
        self._watch(self._progress)


def _is_todays(repository: Repository, version: IndexVersion, today: str) -> bool:
    return version.commit is None or same_content_before_02(repository.content_fingerprint, today)


def _judge(entries: Sequence[TreeEntry], work: Work, unreadable: UnreadableBlobs) -> None:
    """Raises SourceCorrupt where so many files cannot be read that it is the source that fails. Files that could not be
    read before, at the same blob, are no news."""
    known = (work.recorded, work.live)
    asked = [
        entry
        for entry in entries
        if not any(_known_to_fail(rows.get(path_text(entry.path)), entry.sha) for rows in known)
    ]
    bad = [entry for entry in asked if entry.sha in unreadable.reasons]
    most = len(bad) > UNREADABLE_FILES and len(bad) > len(asked) * UNREADABLE_SHARE
    if bad and (most or len(bad) == len(asked)):
        raise SourceCorrupt(
            f"{len(bad):,} of {len(asked):,} files cannot be read: {unreadable.message} The index stays as it is.",
            remedy=unreadable.remedy,
        ) from unreadable


def _known_to_fail(row: ManifestRow | None, sha: str) -> bool:
    if row is None:
        return False
    if row.is_outdated:
        return sha == (row.wanted_sha or row.blob_sha)
    return row.skip_reason == "failed" and row.blob_sha == sha
