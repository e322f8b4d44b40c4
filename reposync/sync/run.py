"""One run: bring the index of one repository to the head commit of its branch, exactly."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from reposync.content.rules import CONTENT_REVISION, PathRules
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.errors import IndexChanged
from reposync.sources.paths import path_bytes, path_text
from reposync.sources.port import Commit, Source
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.repositories import Repositories, Repository
from reposync.store.runs import Run, RunFigures, Runs
from reposync.sync.attributes import parse_attributes, read_attributes
from reposync.sync.audit import IndexState, audit_index, inspect_index
from reposync.sync.audit_points import audit_points, inspect_for_repair
from reposync.sync.dense import DenseVectors
from reposync.sync.lease import Lease
from reposync.sync.pipeline import run_pipeline
from reposync.sync.plan import Plan, make_plan
from reposync.sync.prepare import ContentSettings
from reposync.sync.progress import RunProgress, Watch
from reposync.sync.workers import ContentWorkers
from reposync.sync.writer import Ledger, Writer
from reposync.vectors.port import Index, WriteScope

# A model that windows its input runs here, on these cores: small batches show progress, and a kill loses little.
WINDOWED_BATCH_BYTES = 120_000
BATCH_BYTES = 500_000


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Which files of a repository are indexed, and how."""

    include: tuple[str, ...]
    exclude: tuple[str, ...]
    content: ContentSettings


@dataclass(frozen=True, slots=True)
class SyncParts:
    """What a run works with, built once in one place and handed down."""

    source: Source
    embedder: Embedder
    index: Index
    repositories: Repositories
    manifests: Manifests
    runs: Runs
    former_index: Index | None = None
    """Where the repository's points still are, when it is configured to be in another collection now."""
    elsewhere: Sequence[Index] = ()
    """The other collections, in which a repair looks for points of the repository."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the head commit asks for: its plan, what the manifest said before, and the `.gitattributes` in force."""

    plan: Plan
    recorded: Mapping[str, ManifestRow]
    attributes: dict[str, list[str]]
    rules: PathRules


class SyncRun:
    """Safe to repeat, and to abandon at any await: what is stored is recorded, and the next run goes on from there."""

    def __init__(
        self,
        parts: SyncParts,
        settings: SyncSettings,
        repository: Repository,
        run: Run,
        lease: Lease,
        *,
        progress: RunProgress,
        watch: Watch,
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._repository = repository
        self._run = run
        self._lease = lease
        self._progress = progress
        self._watch = watch
        self._writer: Writer | None = None
        self._vectors: DenseVectors | None = None
        self._published: str | None = None

    @property
    def figures(self) -> RunFigures:
        """What was done so far: a run that failed or was cancelled tells it as well."""
        writer, vectors = self._writer, self._vectors
        return RunFigures(
            files_processed=writer.processed if writer else 0,
            files_deleted=writer.deleted if writer else 0,
            files_skipped=writer.skipped if writer else 0,
            chunks_embedded=vectors.embedded if vectors else 0,
            chunks_reused=vectors.reused if vectors else 0,
            commit_before=self._repository.last_commit,
            commit_after=self._published,
        )

    async def execute(self) -> str | None:
        """Returns what was wrong with the index before, where the run had to mend it. Raises DeletionBlocked,
        LeaseLost, and what source, embedder, index and store raise."""
        if self._parts.former_index is not None:
            # It must not be found in the collection before. A run that dies in between does it again.
            self._lease.check()
            await self._parts.former_index.remove_repository(self._repository.id, check=self._lease.check)
        strays = await self._remove_elsewhere()
        self._enter("listing")
        head = await self._parts.source.head()
        # A server whose model and dimension the collection knows already is not asked for them again.
        spec = await self._parts.embedder.spec(await self._parts.index.spec())
        state = await self._inspect(spec)
        if self._is_unchanged(head, state):
            await self._publish(head, state, self._repository.attributes)
            return None

        self._enter("planning")
        target = await make_target(self._parts, self._settings, self._repository, head, state, reread=self._run.full)
        target.plan.stop_if_suspicious(approved=self._run.approved)
        await self._apply(head, spec, state, target)
        await self._publish(head, state, target.attributes)
        return _notice(state.why, strays, unlisted=self._unlisted(head, state, target))

    async def _inspect(self, spec: EmbeddingSpec) -> IndexState:
        index, manifests = self._parts.index, self._parts.manifests
        if self._run.repair:
            return await inspect_for_repair(index, spec, self._repository, manifests)
        return await inspect_index(index, spec, self._repository, manifests, thorough=self._run.full)

    async def _remove_elsewhere(self) -> int:
        """How many points of the repository were in collections in which it is not."""
        found = 0
        for index in self._parts.elsewhere:
            if await index.spec() is None:
                continue
            if number := await index.count(self._repository.id):
                self._lease.check()
                await index.remove_repository(self._repository.id, check=self._lease.check)
                found += number
        return found

    def _unlisted(self, head: Commit, state: IndexState, target: Target) -> int:
        """Of a repair at the recorded commit: how many files the manifest had otherwise than the commit has them."""
        plan = target.plan
        if not self._run.repair or state.remade or head.sha != self._repository.last_commit:
            return 0
        read = sum(1 for entry in plan.read if path_text(entry.path) not in state.audit.damaged)
        return read + len(plan.skip) + len(plan.forget)

    def _is_unchanged(self, head: Commit, state: IndexState) -> bool:
        return (
            head.sha == self._repository.last_commit
            and state.intact
            and not self._run.full
            and not self._run.repair
            and self._repository.content_fingerprint == fingerprint(self._settings, self._repository.attributes)
        )

    async def _apply(self, head: Commit, spec: EmbeddingSpec, state: IndexState, target: Target) -> None:
        plan = target.plan
        if plan.is_empty and state.intact:
            return
        parts, scope = self._parts, await self._begin(head, state, target)
        self._writer = writer = Writer(
            Ledger(self._run, self._lease, parts.manifests, parts.runs),
            parts.index,
            scope,
            recorded=target.recorded,
            # Points that no row accounts for: a run that was killed between the points and their rows left them.
            orphans_possible=bool(state.audit.orphans) or state.remade,
            line_url=lambda path, first, last: parts.source.url(path_bytes(path), head, first, last),
            progress=self._progress,
            watch=self._watch,
        )
        self._progress.files_total = len(plan.read)
        self._enter("indexing")
        holds_points = await parts.index.count() > 0
        self._vectors = vectors = DenseVectors(parts.embedder, spec, parts.index, index_holds_points=holds_points)
        if plan.read:
            async with ContentWorkers(len(plan.read), self._settings.content) as workers:
                await run_pipeline(
                    parts.source,
                    plan.read,
                    keep_generated=target.rules.keeps_generated,
                    max_file_bytes=self._settings.content.max_file_bytes,
                    batch_bytes=WINDOWED_BATCH_BYTES if spec.multivector else BATCH_BYTES,
                    workers=workers,
                    vectors=vectors,
                    store=writer.store,
                    progress=self._progress,
                )
        await writer.remove(plan)
        await writer.skip(plan.skip)
        self._enter("checking")
        await self._settle(scope)

    async def _begin(self, head: Commit, state: IndexState, target: Target) -> WriteScope:
        """The epoch under which this run writes. From here on the manifest is a mixture of old and new settings where
        these changed, so the recorded fingerprint holds only if it is the same, or if nothing was recorded."""
        self._lease.check()
        if state.remade:
            await self._parts.manifests.clear(self._run, self._repository.id)
        current = fingerprint(self._settings, target.attributes)
        known = not target.recorded or same_content(self._repository.content_fingerprint, current)
        # After the database was restored to an older state, the index is ahead of it, and deletes would pass by its
        # points.
        later = await self._parts.index.later_epoch(self._repository.id, self._repository.epoch)
        epoch = await self._parts.repositories.begin_epoch(
            self._run,
            self._repository.id,
            content_fingerprint=current if known else None,
            collection=self._repository.collection,
            above=later,
        )
        return WriteScope(self._repository.id, self._repository.name, head.sha, epoch, self._lease.check)

    async def _settle(self, scope: WriteScope) -> None:
        """Never call a run completed whose index is not what the manifest says. Points too many are removed; points
        too few mean that something else deletes in this collection, and the run fails in words."""
        parts, repository_id = self._parts, self._repository.id
        totals = await parts.manifests.totals(repository_id)
        if not self._run.repair and await parts.index.count(repository_id) == totals.chunks:
            return
        recorded = await parts.manifests.load(repository_id)
        if self._run.repair:
            audit = (await audit_points(parts.index, repository_id, self._repository.name, recorded)).audit
        else:
            audit = await audit_index(parts.index, repository_id, recorded)
        if audit.orphans:
            self._lease.check()
            await parts.index.remove_points(scope, sorted(audit.orphans, key=str))
        if audit.damaged or await parts.index.count(repository_id) != totals.chunks:
            raise IndexChanged(
                f"The index lacks {audit.lost} of {totals.chunks} points that this run stored or found.",
                remedy="Something else writes to this collection; the next run repairs it.",
            )

    async def _publish(self, head: Commit, state: IndexState, attributes: Mapping[str, Sequence[str]]) -> None:
        self._lease.check()
        await self._parts.repositories.publish(
            self._run,
            self._repository.id,
            commit=head.sha,
            committed_at=head.committed_at,
            index_identity=state.identity,
            fingerprint=fingerprint(self._settings, attributes),
            attributes=attributes,
            when=datetime.now(UTC),
            project_id=await self._parts.source.project_id(),
        )
        self._published = head.sha
        self._enter("done")

    def _enter(self, phase: str) -> None:
        self._progress.phase = phase
        self._watch(self._progress)


async def make_target(
    parts: SyncParts,
    settings: SyncSettings,
    repository: Repository,
    head: Commit,
    state: IndexState,
    *,
    reread: bool,
) -> Target:
    """List the commit, and compare it with what is recorded and still in the index."""
    tree = (await parts.source.tree(head)).entries
    attributes = await read_attributes(parts.source, tree, repository.attributes)
    rules = path_rules(settings, attributes)
    recorded = {} if state.remade else await parts.manifests.load(repository.id)
    current = fingerprint(settings, attributes)
    plan = await asyncio.to_thread(
        make_plan,
        tree,
        recorded,
        rules.decide,
        reread=reread or (bool(recorded) and not same_content(repository.content_fingerprint, current)),
        damaged=state.audit.damaged,
    )
    return Target(plan, recorded, attributes, rules)


def _notice(why: str | None, strays: int, *, unlisted: int) -> str | None:
    """What a person should know of a completed run: what was wrong before it."""
    more = [f"{strays:,} points in other collections were removed."] if strays else []
    if unlisted:
        more.append(f"The manifest had {unlisted:,} files otherwise than the commit has them.")
    return " ".join([*([why] if why else []), *more]) or None


def path_rules(settings: SyncSettings, attributes: Mapping[str, Sequence[str]]) -> PathRules:
    return PathRules(settings.include, settings.exclude, parse_attributes(attributes))


def fingerprint(settings: SyncSettings, attributes: Mapping[str, Sequence[str]]) -> str:
    """Of everything that decides what a commit's index looks like: `<of the path rules>:<of reading and chunking>`.

    Whether a file that calls itself generated is kept is decided by path, but seen only when the file is read: what
    decides it counts among the second.
    """
    kept = [(path, text) for path, (_, text) in sorted(attributes.items()) if "linguist-generated" in text]
    reading = repr((CONTENT_REVISION, settings.content, settings.include, kept))
    content = hashlib.sha256(reading.encode()).hexdigest()[:16]
    return f"{path_rules(settings, attributes).fingerprint}:{content}"


def same_content(recorded: str | None, current: str) -> bool:
    """Whether files recorded under one fingerprint were decoded and chunked as the other one does."""
    return recorded is not None and recorded.rpartition(":")[2] == current.rpartition(":")[2]
