"""One run: brings the index of a repository to the head commit of its branch."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace

from reposync.embedding.port import Embedder
from reposync.errors import EmbeddingError, GateClosed
from reposync.sources.port import Commit, path_bytes, path_text
from reposync.store.repository import Repository
from reposync.store.run import Run, RunFigures
from reposync.store.versions import AttributeFiles, Published
from reposync.sync.audit import IndexState, inspect_index
from reposync.sync.index_versions import Retirement, Situation, VersionChoice
from reposync.sync.lease import Lease
from reposync.sync.plan import Work
from reposync.sync.progress import FILES_FAILED, INDEX_REBUILT, Outcome, RunProgress
from reposync.sync.target import (
    Counts,
    RunContext,
    SyncParts,
    SyncSettings,
    fingerprint_before_02,
    read_target,
    rules_fingerprint,
)
from reposync.sync.version_update import VersionUpdate, make_work
from reposync.vectors.collection import give_name

# If the link of one file is unchanged, so are those of all.
_SAMPLE_PATH = b"p"


class SyncRun:
    """Safe to repeat and to abandon at any await: what is stored is recorded, and the next run continues from there."""

    def __init__(
        self,
        parts: SyncParts,
        settings: SyncSettings,
        repository: Repository,
        run: Run,
        lease: Lease,
        *,
        progress: RunProgress,
    ) -> None:
        self._parts = replace(parts, embedder=parts.embedder.watched(progress.wait_for))
        self._settings = settings
        self._repository = repository
        self._run = run
        self._progress = progress
        self._counts = Counts()
        self._published: str | None = None
        self._context = RunContext(self._parts, settings, repository, run, lease, progress, self._counts)
        self._retirement = Retirement(self._context)

    @property
    def figures(self) -> RunFigures:
        """What was done so far; also reported if the run fails or is cancelled."""
        before = self._repository.last_commit
        return RunFigures(**asdict(self._counts), commit_before=before, commit_after=self._published)

    async def execute(self) -> Outcome:
        """Raises DeletionBlocked, GateClosed, IndexHeld, DefinitionChanged, LeaseLost, and what source, embedder, index
        and store raise."""
        self._progress.enter("listing")
        head = await self._parts.source.head()
        situation = await VersionChoice(self._parts, self._settings, self._repository, self._run).situation()
        await self._retirement.remove_unversioned(situation)
        strays = await self._retirement.remove_elsewhere(situation)
        state = await self._inspect(situation)
        attributes = await self._parts.versions.attributes(situation.working.id)
        if await self._is_unchanged(head, situation, state, attributes):
            await self._publish(situation, state, attributes, head)
            return Outcome()

        self._progress.enter("planning")
        target = await read_target(self._parts.source, self._settings, head, attributes)
        full = None
        if self._run.full:
            # What an earlier attempt of this run stored is not read again.
            full = self._repository.epoch if self._run.full_from_epoch is None else self._run.full_from_epoch
        work = await make_work(self._parts, target, situation, state, full_from_epoch=full, repair=self._run.repair)
        lost_before = 0
        if not work.plan.is_empty or state.audit.orphans or situation.builds:
            update = VersionUpdate(self._context, self._embedder(situation), situation, target, work)
            lost_before = await update.apply(state)
        if situation.builds:
            await self._pass_gate(situation)
        await self._publish(situation, state, target.attributes, head)
        wrong_rows = 0
        if self._run.repair and head.sha == situation.working.commit_sha:
            wrong_rows = _wrong_rows(state, work)
        return self._outcome(head, state, lost_before, strays, wrong_rows)

    def _embedder(self, situation: Situation) -> Embedder:
        """Of the version's model: a live version that a person holds keeps its own."""
        if not situation.held:
            return self._parts.embedder
        model = situation.wanted.spec
        embedder = self._parts.embedder_for(model)
        if embedder is None:
            raise EmbeddingError(
                f"The index of {self._repository.name} was made with {model.model}, which is no longer configured.",
                remedy=f"Configure it again, or `reposync index resume {self._repository.name}`.",
            )
        return embedder.watched(self._progress.wait_for)

    async def _inspect(self, situation: Situation) -> IndexState:
        version, run = situation.working, self._run
        repaired = self._repository.name if run.repair else None
        index, spec = self._parts.open_index(version.physical), situation.wanted.spec
        state = await inspect_index(index, spec, version, self._parts.manifests, thorough=run.full, repaired=repaired)
        await give_name(self._parts.open_index, version.collection, version.physical)
        return state

    async def _is_unchanged(
        self, head: Commit, situation: Situation, state: IndexState, attributes: AttributeFiles
    ) -> bool:
        version = situation.working
        return (
            not situation.builds
            and head.sha == version.commit_sha
            and state.audit.clean
            and state.failed == 0
            and version.index_identity == state.identity
            and not self._run.full
            and not self._run.repair
            and version.fingerprint == await rules_fingerprint(self._settings, attributes)
        )

    async def _pass_gate(self, situation: Situation) -> None:
        """Raises GateClosed, unless a person approved the run."""
        if self._parts.gate is None or situation.live is None or self._run.approved:
            return
        self._progress.enter("evaluating")
        reason = await self._parts.gate(situation.live, situation.working)
        if reason is not None:
            raise GateClosed(
                f"The new index version of {self._repository.name} does not become live: {reason}.",
                remedy="Approve the run (`reposync runs approve`) to make it live all the same.",
            )

    async def _publish(self, situation: Situation, state: IndexState, attributes: AttributeFiles, head: Commit) -> None:
        source, version = self._parts.source, situation.working
        totals = await self._parts.manifests.totals(version.id)
        self._counts.files_failed = totals.failed
        links = source.url(_SAMPLE_PATH, head, 1, 1)
        if links != version.links and not situation.builds:
            # The project's path, its host or the branch changed: so did the links of all files.
            await self._parts.open_index(version.physical).relink(
                version.id,
                lambda path, first, last: source.url(path_bytes(path), head, first, last),
                check=self._context.lease.check,
            )
        # An approved deletion may be due to a new default branch, which must not be named as the cause of the next one.
        branch = None if self._run.approved else version.branch_name
        if branch is None:
            branch = await source.branch(fresh=self._run.approved)
        fingerprint = await rules_fingerprint(self._settings, attributes)
        before_02 = await asyncio.to_thread(fingerprint_before_02, self._settings, attributes)
        self._context.lease.check()
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
        self._progress.enter("done")

    def _outcome(self, head: Commit, state: IndexState, lost_before: int, strays: int, wrong_rows: int) -> Outcome:
        if failed := self._counts.files_failed:
            files = "1 file" if failed == 1 else f"{failed:,} files"
            notice = f"{files} of commit {head.sha[:10]} could not be read; the index keeps their previous version."
            return Outcome(FILES_FAILED, notice, failed)
        rebuilt = [state.why] if state.why else []
        if lost_before:
            rebuilt.append(f"The previous version had lost points of {lost_before:,} files; they were read.")
        if strays:
            rebuilt.append(f"{strays:,} points in other collections were removed.")
        if wrong_rows:
            rebuilt.append(f"The manifest was wrong about {wrong_rows:,} files of the commit.")
        # What a repair fixed was requested.
        is_rebuilt = rebuilt and (state.remade or not self._run.repair)
        notice = " ".join([*rebuilt, *([state.note] if state.note else [])])
        return Outcome(INDEX_REBUILT if is_rebuilt else None, notice or None)


def _wrong_rows(state: IndexState, work: Work) -> int:
    """How many files the manifest recorded differently than the same commit has them."""
    plan = work.plan
    changed = 0
    for entry in plan.read:
        row = work.recorded.get(path_text(entry.path))
        is_same_blob = row is not None and row.blob_sha == entry.sha and not row.is_outdated
        if row is not None and is_same_blob and (row.skip_reason or row.path in state.audit.damaged):
            continue
        changed += 1
    return changed + len(plan.skip) + len(plan.delete_rows)
