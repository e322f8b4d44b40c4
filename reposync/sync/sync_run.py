"""One run: brings the index of a repository to the head commit of its branch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import replace

from reposync.embedding.port import Embedder
from reposync.errors import ConfigError, EmbeddingError, RepoSyncError, SecretRulesUnavailable, SourceError
from reposync.sources.port import SAMPLE_PATH, Commit, path_bytes
from reposync.store.columns import sanitize_text
from reposync.store.run import Run, RunFigures
from reposync.store.tables import IndexVersion, VersionState
from reposync.store.versions import AttributeFiles, Published
from reposync.sync.audit import IndexState, inspect_index
from reposync.sync.commit_words import refresh_commit_words
from reposync.sync.index_versions import (
    Situation,
    VersionChoice,
    VersionSettings,
    remove_elsewhere,
    remove_retired,
)
from reposync.sync.lease import Lease
from reposync.sync.meaning import Meaning
from reposync.sync.pipeline import DenseVectors
from reposync.sync.progress import FILES_FAILED, INDEX_REBUILT, MANY_HIDDEN, Outcome, RunProgress
from reposync.sync.secret_purge import SecretPurge
from reposync.sync.shown_texts import mask_error, mask_texts
from reposync.sync.target import (
    SyncParts,
    SyncSettings,
    TargetTree,
    read_target,
    rules_fingerprint,
)
from reposync.sync.version_update import VersionUpdate, indexes_of_model, make_work
from reposync.vectors.port import WriteScope

log = logging.getLogger(__name__)

# Files from which on a first sync stores words before it computes their meaning: below, all takes a moment.
WORDS_FIRST_FILES = 100


class SyncRun:
    """Safe to repeat and to abandon at any await: what is stored is recorded, and the next run continues from there."""

    def __init__(self, parts: SyncParts, run: Run, lease: Lease, progress: RunProgress) -> None:
        self._parts = replace(parts, embedder=parts.embedder.watched(progress.wait_for))
        self._run = run
        self._lease = lease
        self._progress = progress
        self._choice = VersionChoice(self._parts, run)
        self._target: TargetTree | None = None
        self._notices: list[str] = []
        self.figures = progress.figures
        """What was done so far; also reported if the run fails or is cancelled."""

    async def execute(self) -> Outcome:
        """Raises DeletionBlocked, DefinitionChanged, LeaseLost, and what source, embedder, index and store raise, with
        secrets masked."""
        try:
            return await self._execute()
        except RepoSyncError as error:
            await self._mask(error)
            raise

    async def _mask(self, error: RepoSyncError) -> None:
        parts = self._parts
        await mask_error(parts.content, error, parts.settings.secrets, known=parts.settings.location)

    async def _execute(self) -> Outcome:
        parts, run = self._parts, self._run
        self._progress.enter("listing")
        try:
            head = await parts.source.head()
        except SourceError:
            await self._purge_without_source()
            raise
        if head.sha != parts.repository.head_commit:
            await parts.versions.record_head(run, head.sha, parts.repository.head_commit)
        if head.sha != parts.repository.last_commit:
            await self._describe(head)
        full = None
        if run.full:
            # What an earlier attempt of this run stored is not read again.
            full = parts.repository.epoch if run.full_from_epoch is None else run.full_from_epoch
        situation = await self._choice.situation()
        if (of_live := situation.of_live) is not None:
            await self._follow(of_live, head)
            situation = await self._choice.situation()
        strays = await remove_elsewhere(parts, situation, self._lease)
        state = await self._inspect(situation)
        words_first = await self._words_first(situation, head)
        published = await self._update(
            situation, state, head, parts.embedder, full_from_epoch=full, words_only=words_first
        )
        if published.meaning_pending is not None:
            log.info("words can be searched, meaning follows", extra={"chunks": published.meaning_pending})
            await self._complete_meaning(replace(situation, working=published, live=published), state, head)
        self.figures.commit_after = head.sha
        if head.sha != parts.repository.last_commit:
            await refresh_commit_words(parts, run, self._lease, head.sha)
        await remove_retired(parts, situation, run, self._lease)
        self._progress.enter("done")
        return self._outcome(head, state, strays, await self._secrets_notice())

    async def _describe(self, head: Commit) -> None:
        """The commit for people, as far as the source has said it already."""
        progress, title, author = self._progress, head.title, head.author
        progress.commit = head.sha
        if not title:
            return
        # Without rules nothing is indexed either, which the run says itself.
        with contextlib.suppress(SecretRulesUnavailable):
            parts = self._parts
            title, author = await mask_texts(parts.content, [title, author], parts.settings.secrets)
            progress.commit_title = self.figures.commit_title = sanitize_text(title)
            progress.commit_author = self.figures.commit_author = sanitize_text(author)

    async def _purge_secrets(self, situation: Situation, embedder: Embedder, *, words_only: bool) -> bool:
        """Apply other rules for secrets to what the index holds; whether they hold for all of it now."""
        parts, version = self._parts, situation.working
        if version.secret_rules == parts.settings.secrets.fingerprint:
            return True
        index, spec = parts.open_index(version.physical), situation.wanted.spec
        vectors = None
        if spec.dimension and not words_only:
            vectors = DenseVectors(embedder, spec, index, self._progress, version_id=version.id)
        purge = SecretPurge(parts, self._run, self._lease, self._progress, index, version, vectors)
        await purge.apply()
        if purge.notice is not None:
            self._notices.append(purge.notice)
        return not purge.failed

    async def _purge_without_source(self) -> None:
        """A source that does not answer does not keep secrets in the index. Files that need it keep their masks."""
        parts = self._parts
        versions = await parts.versions.of(parts.repository.id)
        live = next((version for version in versions if version.state is VersionState.LIVE), None)
        made = None if live is None else VersionSettings.read(live.settings)
        if live is None or made is None or live.secret_rules == parts.settings.secrets.fingerprint:
            return
        if await parts.open_index(live.physical).spec() is None:
            return
        situation = Situation(made, versions, live, live)
        words_only = live.meaning_pending is not None
        embedder = parts.embedder if words_only else await self._embedder_of(made)
        await self._purge_secrets(situation, embedder, words_only=words_only)
        for notice in self._notices:
            log.info("%s: %s", parts.repository.name, notice)

    async def _words_first(self, situation: Situation, head: Commit) -> bool:
        """Whether words are searched before dense vectors are there, which take nearly all of the time of a first
        sync."""
        if situation.live is not None or not situation.wanted.spec.dimension or self._run.repair:
            return False
        if await self._parts.embedder.window_of_workers() is not None:
            return False
        self._progress.enter("planning")
        return (await self._read_target(head, {})).files >= WORDS_FIRST_FILES

    async def _complete_meaning(self, situation: Situation, state: IndexState, head: Commit) -> None:
        """Add the dense vectors that the live version lacks, of this run or an earlier one."""
        parts, version, spec = self._parts, situation.working, situation.wanted.spec
        index = parts.open_index(version.physical)
        others = {other.physical for other in situation.versions} - {version.physical}
        await Meaning(
            parts,
            self._run,
            WriteScope(version.id, parts.repository.name, head.sha, version.epoch, self._lease.check),
            self._progress,
            index,
            DenseVectors(
                parts.embedder, spec, index, self._progress, others=await indexes_of_model(parts, others, spec)
            ),
        ).complete()
        attributes = await parts.versions.attributes(version.id)
        await self._publish(situation, state, attributes, head, meaning_pending=None)

    async def _follow(self, situation: Situation, head: Commit) -> None:
        """Bring the live version to the head before a different one is built, which may take hours: in each turn of the
        run, with the model that it was made with, if that can still be used, or by its words if these alone are
        searched."""
        words_only = situation.working.meaning_pending is not None
        try:
            with self._uncounted():
                embedder = self._parts.embedder if words_only else await self._embedder_of(situation.wanted)
                state = await self._inspect(situation)
                if not state.remade:  # else nothing of it can be searched, and the new version is complete as soon
                    await self._update(situation, state, head, embedder, words_only=words_only)
        except (ConfigError, EmbeddingError) as error:
            name = self._parts.repository.name
            await self._mask(error)
            log.warning("the index of %s follows no commits until its new version is live: %s", name, error)

    @contextlib.contextmanager
    def _uncounted(self) -> Iterator[None]:
        """A version that is only searched until the next one is complete: files are counted when that one has them,
        embeddings and what changed for those who search whenever it happens."""
        self._progress.figures = RunFigures()
        try:
            yield
        finally:
            for name in ("chunks_embedded", "files_added", "files_changed", "files_deleted"):
                setattr(self.figures, name, getattr(self.figures, name) + getattr(self._progress.figures, name))
            self._progress.figures = self.figures
            self._progress.restart()

    async def _embedder_of(self, made: VersionSettings) -> Embedder:
        """Raises ConfigError and EmbeddingError if the model cannot be used any more."""
        if await self._parts.embedder.spec(made.spec) == made.spec:
            return self._parts.embedder
        embedder = self._parts.embedder_for(made.spec)
        if embedder is None or await embedder.spec(made.spec) != made.spec:
            raise EmbeddingError(f"its model {made.spec.model} is not configured any more.")
        return embedder.watched(self._progress.wait_for)

    async def _inspect(self, situation: Situation) -> IndexState:
        parts, version = self._parts, situation.working
        state = await inspect_index(parts, situation, repair=self._run.repair)
        await parts.open_index(version.collection).lead_to(version.physical, if_free=True)
        return state

    async def _read_target(self, head: Commit, cached: AttributeFiles) -> TargetTree:
        """Listed once in a run, whatever the number of versions."""
        if self._target is None:
            self._target = await read_target(self._parts.source, self._parts.settings, head, cached)
        return self._target

    async def _update(
        self,
        situation: Situation,
        state: IndexState,
        head: Commit,
        embedder: Embedder,
        *,
        full_from_epoch: int | None = None,
        words_only: bool = False,
    ) -> IndexVersion:
        """Bring a version to the head and make it live; its row. `words_only`: without dense vectors of what is new in
        it."""
        parts, run = self._parts, self._run
        attributes = await parts.versions.attributes(situation.working.id)
        requested = run.repair or full_from_epoch is not None
        if requested or not await is_unchanged(parts.settings, head, situation, state, attributes):
            self._progress.enter("planning")
            target = await self._read_target(head, attributes)
            attributes = target.attributes
            work = await make_work(parts, target, situation, state, full_from_epoch=full_from_epoch, repair=run.repair)
            plan = work.plan
            counts = {"listed": plan.listed, "to_read": len(plan.read), "to_remove": len(plan.delete_points)}
            log.info("planned", extra={"commit": head.sha[:10], **counts, "renamed": plan.renamed})
            if not plan.is_empty or state.audit.orphans or situation.builds:
                attempt = (run, self._lease, self._progress)
                await VersionUpdate(parts, *attempt, embedder, situation, state, work, words_only).apply()
        # After the files that changed: they are searched first.
        is_purged = await self._purge_secrets(situation, embedder, words_only=words_only)
        pending = situation.working.meaning_pending
        if words_only and pending is None:
            pending = (await parts.manifests.totals(situation.working.id)).chunks
        return await self._publish(situation, state, attributes, head, meaning_pending=pending, is_purged=is_purged)

    async def _publish(
        self,
        situation: Situation,
        state: IndexState,
        attributes: AttributeFiles,
        head: Commit,
        *,
        meaning_pending: int | None,
        is_purged: bool = True,
    ) -> IndexVersion:
        parts, source, version = self._parts, self._parts.source, situation.working
        totals = await parts.manifests.totals(version.id)
        self._progress.figures.files_failed = totals.failed
        index = parts.open_index(version.physical)
        links = source.url(SAMPLE_PATH, head, 1, 1)
        is_new = situation.builds and version.links is None
        if links != version.links and not is_new:
            # The name, the project's path, its host or the branch changed: so did the links of all files.
            await index.relink(
                version.id,
                parts.repository.name,
                lambda path, first, last: source.url(path_bytes(path), head, first, last),
                check=self._lease.check,
            )
        # An approved deletion may be due to a new default branch, which must not be named as the cause of the next one.
        is_known = version.branch_name is not None and not self._run.approval
        fingerprint = await rules_fingerprint(parts.settings, attributes)
        self._lease.check()
        return await parts.versions.publish(
            self._run,
            version,
            parts.repository,
            Published(
                commit=head.sha,
                committed_at=head.committed_at,
                complete=totals.failed == 0,
                index_identity=state.identity,
                fingerprint=fingerprint,
                attributes=attributes,
                links=links,
                branch_name=version.branch_name if is_known else await source.branch(fresh=bool(self._run.approval)),
                project_id=await source.project_id(),
                meaning_pending=meaning_pending,
                secret_rules=parts.settings.secrets.fingerprint if is_purged else version.secret_rules,
            ),
        )

    async def _secrets_notice(self) -> str | None:
        """A warning if secrets were found in so many files that a rule is likely to be wrong. Only of a run that read
        files."""
        if not self.figures.files_processed:
            return None
        hidden = await self._parts.findings.hidden_files(self._parts.repository.id)
        if not hidden:
            return None
        files = (await self._parts.manifests.totals((await self._choice.situation()).working.id)).files
        if hidden <= files * MANY_HIDDEN:
            return None
        return (
            f"Secrets are masked in {hidden:,} of {files:,} files, which is so many that a rule may be wrong: see "
            "`reposync secrets`, and `secrets` of the registry."
        )

    def _outcome(self, head: Commit, state: IndexState, strays: int, warning: str | None) -> Outcome:
        if failed := self.figures.files_failed:
            files = "1 file" if failed == 1 else f"{failed:,} files"
            notice = f"{files} of commit {head.sha[:10]} could not be read; the index keeps their previous version."
            return Outcome(FILES_FAILED, " ".join([notice, *self._notices]), failed)
        rebuilt = [state.why] if state.why else []
        if strays:
            rebuilt.append(f"{strays:,} points in other collections were removed.")
        # What a repair fixed was requested.
        notices = [*rebuilt, *self._notices, *([warning] if warning else [])]
        is_rebuilt = rebuilt and (state.remade or not self._run.repair)
        return Outcome(INDEX_REBUILT if is_rebuilt else None, " ".join(notices) or None)


async def is_unchanged(
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
