"""One run: bring the index of one repository to the head commit of its branch, exactly."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.errors import EmbeddingError, GateClosed
from reposync.sources.paths import path_bytes, path_text
from reposync.sources.port import Commit
from reposync.store.repository import Repository
from reposync.store.run import Run, RunFigures
from reposync.store.version_attributes import AttributeFiles
from reposync.store.versions import IndexVersion, Published
from reposync.sync.audit import IndexState, inspect_index
from reposync.sync.audit_points import inspect_for_repair
from reposync.sync.bring import Bringing, Work, plan_work
from reposync.sync.lease import Lease
from reposync.sync.progress import FILES_FAILED, INDEX_REBUILT, Outcome, RunProgress, Watch
from reposync.sync.retire import Retirement
from reposync.sync.target import SyncParts, SyncSettings, Target, fingerprint_before_02, read_target, rules_fingerprint
from reposync.sync.versions import Situation, VersionChoice, WrittenVersions
from reposync.vectors.names import give_name

# The link of any file tells whether those of all have changed.
_SAMPLE_PATH = b"p"


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
        self._parts = replace(parts, embedder=parts.embedder.watched(self._wait), embedder_for=self._former_embedder)
        self._embedder_for = parts.embedder_for
        self._settings = settings
        self._repository = repository
        self._run = run
        self._lease = lease
        self._progress = progress
        self._watch = watch
        self._retirement = Retirement(self._parts, repository, run, lease)
        self._bringing: Bringing | None = None
        self._published: str | None = None
        self._failed = 0

    @property
    def figures(self) -> RunFigures:
        """What was done so far: a run that failed or was cancelled reports it as well."""
        writer = self._bringing.writer if self._bringing else None
        vectors = self._bringing.vectors if self._bringing else None
        return RunFigures(
            files_processed=writer.processed if writer else 0,
            files_deleted=writer.deleted if writer else 0,
            files_skipped=writer.skipped if writer else 0,
            files_failed=self._failed,
            chunks_embedded=vectors.embedded if vectors else 0,
            chunks_reused=vectors.reused if vectors else 0,
            commit_before=self._repository.last_commit,
            commit_after=self._published,
        )

    async def execute(self) -> Outcome:
        """Raises DeletionBlocked, GateClosed, IndexHeld, DefinitionChanged, LeaseLost, and what source, embedder, index
        and store raise."""
        self._enter("listing")
        head = await self._parts.source.head()
        book = WrittenVersions(self._parts.versions, self._run)
        choice = VersionChoice(self._parts, self._settings, self._repository, book)
        situation = await choice.situation(await self._parts.source.project_id())
        await self._retirement.remove_strays(situation)
        strays = await self._remove_elsewhere(situation)
        version = situation.working
        state = await self._inspect(situation)
        attributes = await self._parts.versions.attributes(version.id)
        if await self._is_unchanged(head, situation, state, attributes):
            await self._publish(situation, state, attributes, head)
            return Outcome()

        self._enter("planning")
        target = await read_target(self._parts.source, self._settings, head, attributes)
        work = await self._plan(target, situation, state)
        if not work.is_empty or state.audit.orphans or situation.builds:
            embedder = self._embedder(situation)
            self._bringing = Bringing(
                self._parts,
                self._settings,
                self._repository,
                self._run,
                self._lease,
                embedder=embedder,
                progress=self._progress,
                watch=self._watch,
            )
            await self._bringing.apply(situation, target, state, work)
        if situation.builds:
            await self._pass_gate(situation)
        await self._publish(situation, state, target.attributes, head)
        return self._outcome(head, version, state, work, strays)

    def _embedder(self, situation: Situation) -> Embedder:
        """Of the version's model: a live version that a person holds keeps its own."""
        if not situation.held:
            return self._parts.embedder
        embedder = self._parts.embedder_for(situation.wanted.spec)
        if embedder is None:
            raise EmbeddingError(
                f"The index of {self._repository.name} was made by {situation.wanted.spec.model}, which is not "
                "configured any more.",
                remedy=f"Configure it again, or `reposync index resume {self._repository.name}`.",
            )
        return embedder

    async def _inspect(self, situation: Situation) -> IndexState:
        version, spec = situation.working, situation.wanted.spec
        index = self._parts.open_index(version.physical)
        if self._run.repair:
            state = await inspect_for_repair(index, spec, version, self._repository.name, self._parts.manifests)
        else:
            state = await inspect_index(index, spec, version, self._parts.manifests, thorough=self._run.full)
        await give_name(self._parts.open_index, version.collection, version.physical)
        return state

    async def _plan(self, target: Target, situation: Situation, state: IndexState) -> Work:
        manifests, live = self._parts.manifests, situation.live
        recorded = await manifests.load(situation.working.id)
        full = None
        if self._run.full:
            # What this run stored in an attempt before is not read again.
            full = self._repository.epoch if self._run.full_from_epoch is None else self._run.full_from_epoch
        indexed = await manifests.load(live.id) if live is not None and situation.builds else {}
        return await asyncio.to_thread(
            plan_work,
            target,
            situation,
            recorded,
            indexed,
            state,
            full_from_epoch=full,
            repair=self._run.repair,
        )

    async def _remove_elsewhere(self, situation: Situation) -> int:
        """How many points of the repository were in collections in which it is not."""
        found = 0
        for name in self._parts.elsewhere:
            index = self._parts.open_index(name)
            if await index.spec() is None:
                continue
            for version in situation.versions:
                if version.physical != name and (number := await index.count(version.id)):
                    self._lease.check()
                    await index.remove_repository(version.id, check=self._lease.check)
                    found += number
        return found

    async def _is_unchanged(
        self, head: Commit, situation: Situation, state: IndexState, attributes: AttributeFiles
    ) -> bool:
        version = situation.working
        return (
            not situation.builds
            and head.sha == version.commit
            and state.audit.clean
            and state.failed == 0
            and version.index_identity == state.identity
            and not self._run.full
            and not self._run.repair
            and version.fingerprint == await rules_fingerprint(self._settings, attributes)
        )

    async def _pass_gate(self, situation: Situation) -> None:
        """Raises GateClosed. What a person approved passes."""
        if self._parts.gate is None or situation.live is None or self._run.approved:
            return
        self._enter("evaluating")
        reason = await self._parts.gate(situation.live, situation.working)
        if reason is not None:
            raise GateClosed(
                f"The new version of the index of {self._repository.name} stays beside the live one: {reason}.",
                remedy="Approve the run (`reposync runs approve`) to make it live all the same.",
            )

    async def _publish(self, situation: Situation, state: IndexState, attributes: AttributeFiles, head: Commit) -> None:
        source, version = self._parts.source, situation.working
        totals = await self._parts.manifests.totals(version.id)
        self._failed = totals.failed
        links = source.url(_SAMPLE_PATH, head, 1, 1)
        if links != version.links and not situation.builds:
            await self._relink(version, head)
        # What a person approved may have been another default branch, which is not the cause of the next deletion.
        branch = None if self._run.approved else version.branch_name
        if branch is None:
            branch = await source.branch(fresh=self._run.approved)
        fingerprint = await rules_fingerprint(self._settings, attributes)
        before_02 = await asyncio.to_thread(fingerprint_before_02, self._settings, attributes)
        self._lease.check()
        await self._parts.versions.publish(
            self._run,
            version,
            self._repository,
            Published(
                commit=head.sha,
                committed_at=head.committed_at,
                complete=totals.failed == 0,
                index_identity=state.identity,
                fingerprint=fingerprint,
                fingerprint_before_02=before_02,
                attributes=attributes,
                links=links,
                branch_name=branch,
                project_id=await source.project_id(),
            ),
        )
        self._published = head.sha
        await self._retirement.settle(situation)
        self._enter("done")

    async def _relink(self, version: IndexVersion, head: Commit) -> None:
        """The project's path, its host or the branch is another one: so are the links of all files."""
        source = self._parts.source
        await self._parts.open_index(version.physical).relink(
            version.id,
            lambda path, first, last: source.url(path_bytes(path), head, first, last),
            check=self._lease.check,
        )

    def _outcome(self, head: Commit, version: IndexVersion, state: IndexState, work: Work, strays: int) -> Outcome:
        if self._failed:
            files = "1 file" if self._failed == 1 else f"{self._failed:,} files"
            notice = f"{files} of commit {head.sha[:10]} could not be read; what the index had of them stays."
            return Outcome(FILES_FAILED, notice, self._failed)
        unlisted = self._unlisted(head, version, state, work)
        told = [state.why] if state.why else []
        if self._bringing is not None and self._bringing.lost_before:
            told.append(f"The version before had lost points of {self._bringing.lost_before:,} files, which were read.")
        if strays:
            told.append(f"{strays:,} points in other collections were removed.")
        if unlisted:
            told.append(f"The manifest had {unlisted:,} files otherwise than the commit has them.")
        notice = " ".join([*told, *([state.note] if state.note else [])])
        # What a repair mended was asked for.
        is_rebuilt = told and (state.remade or not self._run.repair)
        return Outcome(INDEX_REBUILT if is_rebuilt else None, notice or None)

    def _unlisted(self, head: Commit, version: IndexVersion, state: IndexState, work: Work) -> int:
        """Of a repair at the recorded commit: how many files the manifest had otherwise than the commit has them."""
        if not self._run.repair or head.sha != version.commit or self._bringing is None:
            return 0
        plan = work.plan
        changed = 0
        for entry in plan.read:
            row = work.recorded.get(path_text(entry.path))
            known = row is not None and row.blob_sha == entry.sha and not row.is_outdated
            if known and (row is None or row.skip_reason or row.path in state.audit.damaged):
                continue
            changed += 1
        return changed + len(plan.skip) + len(plan.forget)

    def _former_embedder(self, spec: EmbeddingSpec) -> Embedder | None:
        former = self._embedder_for(spec)
        return None if former is None else former.watched(self._wait)

    def _wait(self, what: str | None) -> None:
        self._progress.waiting_for = what
        self._watch(self._progress)

    def _enter(self, phase: str) -> None:
        self._progress.phase = phase
        self._watch(self._progress)
