"""One run: brings the index of a repository to the head commit of its branch. And a preview of it, which writes
nothing (`reposync sync --plan`)."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass, replace
from typing import Any

from reposync.embedding.port import Embedder
from reposync.errors import DeletionBlocked, EmbeddingError, GateClosed
from reposync.sources.port import Commit, path_bytes, path_text
from reposync.store.repository import Repository
from reposync.store.run import Run, RunFigures
from reposync.store.versions import AttributeFiles, Published
from reposync.sync.audit import IndexState, inspect_index
from reposync.sync.brake import Brake
from reposync.sync.index_versions import Retirement, Situation, VersionChoice
from reposync.sync.lease import Lease
from reposync.sync.pipeline import read_batches
from reposync.sync.plan import Work
from reposync.sync.prepare import ContentWorkers
from reposync.sync.progress import FILES_FAILED, INDEX_REBUILT, Outcome, RunProgress
from reposync.sync.target import (
    Counts,
    RunContext,
    SyncParts,
    SyncSettings,
    TargetTree,
    fingerprint_before_02,
    read_target,
    rules_fingerprint,
)
from reposync.sync.version_update import VersionUpdate, make_work
from reposync.vectors.collection import give_name

# Files from which on the words of a first sync are stored before its meaning: below, all takes a moment.
WORDS_FIRST_FILES = 100
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
        if head.sha != self._repository.head_commit:
            await self._parts.versions.record_head(self._run, head.sha, self._repository.head_commit)
        choice = VersionChoice(self._parts, self._settings, self._repository, self._run)
        target = None if self._run.repair else await self._words_first(choice, head)
        situation = await choice.situation()
        await self._retirement.remove_unversioned(situation)
        strays = await self._retirement.remove_elsewhere(situation)
        state = await self._inspect(situation)
        attributes = await self._parts.versions.attributes(situation.working.id)
        requested = self._run.full or self._run.repair
        if not requested and await _is_unchanged(self._settings, head, situation, state, attributes):
            await self._publish(situation, state, attributes, head)
            self._progress.enter("done")
            return Outcome()

        self._progress.enter("planning")
        full = None
        if self._run.full and target is None:
            # What an earlier attempt of this run stored is not read again.
            full = self._repository.epoch if self._run.full_from_epoch is None else self._run.full_from_epoch
        target = target or await read_target(self._parts.source, self._settings, head, attributes)
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
        self._progress.enter("done")
        return self._outcome(head, state, lost_before, strays, wrong_rows)

    async def _words_first(self, choice: VersionChoice, head: Commit) -> TargetTree | None:
        """Make the words of a first sync searchable; the version with dense vectors is then built beside them, from
        their texts. Returns the listing, None if this is no first sync."""
        wanted = await choice.first()
        if wanted is None:
            return None
        self._progress.enter("planning")
        target = await read_target(self._parts.source, self._settings, head, {})
        if sum(1 for entry in target.tree.entries if target.decide(entry) is None) < WORDS_FIRST_FILES:
            return target
        situation = await choice.building(wanted)
        state = await self._inspect(situation)
        work = await make_work(self._parts, target, situation, state)
        # The figures of the run count each file once, when all of it is stored.
        context = replace(self._context, counts=Counts())
        await VersionUpdate(context, self._parts.embedder, situation, target, work).apply(state)
        # Begun before its words are searched: results say from the first on that meaning follows.
        await choice.situation()
        await self._publish(situation, state, target.attributes, head)
        self._published = None
        self._progress.restart()
        return target

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

    async def _pass_gate(self, situation: Situation) -> None:
        """Raises GateClosed, unless a person approved the run."""
        if self._parts.gate is None or situation.live is None or self._run.approved or situation.live_has_words_only:
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
        index = self._parts.open_index(version.physical)
        links = source.url(_SAMPLE_PATH, head, 1, 1)
        if links != version.links and not situation.builds:
            # The project's path, its host or the branch changed: so did the links of all files.
            await index.relink(
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
        return Outcome(INDEX_REBUILT if is_rebuilt else None, " ".join(rebuilt) or None)


async def _is_unchanged(
    settings: SyncSettings, head: Commit, situation: Situation, state: IndexState, attributes: AttributeFiles
) -> bool:
    version = situation.working
    return (
        not situation.builds
        and head.sha == version.commit_sha
        and state.audit.clean
        and state.failed == 0
        and version.index_identity == state.identity
        and version.fingerprint == await rules_fingerprint(settings, attributes)
    )


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


@dataclass(frozen=True, slots=True)
class Preview:
    """`chunks` would be stored; `chunks_to_embed` of them, with `characters_to_embed`, would go to the embedding model,
    the others have vectors in the index. `blocked`: why the run would stop and wait for approval, None if not."""

    repository: str
    commit: str
    commit_before: str | None
    files: int = 0
    files_to_read: int = 0
    files_to_store: int = 0
    files_to_skip: int = 0
    files_to_delete: int = 0
    files_renamed: int = 0
    files_unchanged: int = 0
    chunks: int = 0
    chunks_to_embed: int = 0
    characters_to_embed: int = 0
    index_notice: str | None = None
    blocked: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def preview(
    parts: SyncParts, settings: SyncSettings, repository: Repository, *, full: bool, progress: RunProgress
) -> Preview:
    """Read what would be read and count it. Writes neither to the index nor to the database, and creates no
    collection."""
    progress.enter("planning")
    head = await parts.source.head()
    situation = await VersionChoice(parts, settings, repository, None).situation()
    version, live, spec = situation.working, situation.live, situation.wanted.spec
    index = parts.open_index(version.physical)
    exists = await index.spec() is not None
    state = IndexState("")
    if exists:
        state = await inspect_index(index, spec, version, parts.manifests, thorough=full)
    attributes = await parts.versions.attributes(version.id)
    found = Preview(repository.name, head.sha, repository.last_commit)
    if not full and await _is_unchanged(settings, head, situation, state, attributes):
        return found
    target = await read_target(parts.source, settings, head, attributes)
    work = await make_work(parts, target, situation, state, full_from_epoch=repository.epoch if full else None)
    plan = work.plan
    progress.files_total = len(plan.read)
    copied = {row.path for row in work.copied}
    entries = [entry for entry in plan.read if path_text(entry.path) not in copied]
    found = replace(
        found,
        files=plan.listed,
        files_to_read=len(plan.read),
        files_to_store=sum(1 for row in work.copied if row.chunks),
        files_to_skip=len(plan.skip),
        files_to_delete=len(plan.delete_points),
        files_renamed=plan.renamed,
        files_unchanged=plan.unchanged,
        chunks=sum(row.chunks for row in work.copied),
        index_notice=state.why,
    )
    physical = ([version.physical] if exists else []) + ([live.physical] if live is not None else [])
    indexes = [parts.open_index(name) for name in dict.fromkeys(physical)]
    same_model = [each for each in indexes if spec.dimension and await each.spec() == spec]
    to_embed: dict[str, int] = {}
    batches = read_batches(
        parts.source, entries, target.keeps_generated, max_file_bytes=settings.content.max_file_bytes, progress=progress
    )
    async with ContentWorkers(len(entries), settings.content) as workers, contextlib.aclosing(batches):
        async for batch in batches:
            files = await workers.prepare(batch)
            found = replace(
                found,
                files_to_store=found.files_to_store + sum(1 for file in files if file.chunks),
                files_to_skip=found.files_to_skip + sum(1 for file in files if file.skipped),
                chunks=found.chunks + sum(len(file.chunks) for file in files),
            )
            if spec.dimension:
                new = {chunk.content_hash: len(chunk.text) for file in files for chunk in file.chunks}
                for other in same_model:
                    for known in await other.known(sorted(new.keys() - to_embed.keys())):
                        del new[known]
                to_embed |= new
            progress.advance(len(batch))
    found = replace(found, chunks_to_embed=len(to_embed), characters_to_embed=sum(to_embed.values()))
    try:
        Brake(repository.name, head.sha, plan.listed).check(work.losses)
    except DeletionBlocked as error:
        return replace(found, blocked=error.message)
    return found
