"""What a run would do, without doing it: `reposync sync --plan`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from reposync.errors import DeletionBlocked
from reposync.sources.port import path_text
from reposync.store.repository import Repository
from reposync.sync.audit import IndexState, inspect_index
from reposync.sync.brake import Brake
from reposync.sync.index_versions import VersionChoice
from reposync.sync.pipeline import read_batches
from reposync.sync.prepare import ContentWorkers
from reposync.sync.progress import RunProgress
from reposync.sync.target import SyncParts, SyncSettings, read_target, rules_fingerprint
from reposync.sync.version_update import make_work


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
    current = await rules_fingerprint(settings, attributes)
    unchanged = head.sha == version.commit_sha and version.fingerprint == current and not situation.builds
    if unchanged and state.audit.clean and not state.failed and not full:
        return Preview(repository.name, head.sha, repository.last_commit)
    target = await read_target(parts.source, settings, head, attributes)
    full_from = repository.epoch if full else None
    work = await make_work(parts, target, situation, state, full_from_epoch=full_from)
    plan = work.plan
    progress.files_total = len(plan.read)
    copied = {row.path for row in work.copied}
    entries = [entry for entry in plan.read if path_text(entry.path) not in copied]
    stored, chunks = len(copied), sum(row.chunks for row in work.copied)
    skipped = characters = 0
    to_embed: set[str] = set()
    indexes = [index] if exists else []
    if live is not None and live.physical != version.physical:
        indexes.append(parts.open_index(live.physical))
    same_model = [each for each in indexes if spec.dimension and await each.spec() == spec]
    async with ContentWorkers(len(entries), settings.content) as workers:
        async for batch in read_batches(
            parts.source,
            entries,
            target.keeps_generated,
            max_file_bytes=settings.content.max_file_bytes,
            progress=progress,
        ):
            files = await workers.prepare(batch)
            stored += sum(1 for file in files if file.chunks)
            skipped += sum(1 for file in files if file.skipped)
            chunks += sum(len(file.chunks) for file in files)
            if spec.dimension:
                new = {chunk.content_hash: len(chunk.text) for file in files for chunk in file.chunks}
                known = set(to_embed)
                for other in same_model:
                    known |= set(await other.known(sorted(new.keys() - known)))
                new = {content_hash: length for content_hash, length in new.items() if content_hash not in known}
                to_embed |= new.keys()
                characters += sum(new.values())
            progress.advance(len(batch))
    try:
        Brake(repository.name, head.sha, plan.listed, approved=False, approval=None).check_plan(work.losses)
        blocked = None
    except DeletionBlocked as error:
        blocked = error.message
    return Preview(
        repository=repository.name,
        commit=head.sha,
        commit_before=repository.last_commit,
        files=plan.listed,
        files_to_read=len(plan.read),
        files_to_store=stored,
        files_to_skip=skipped + len(plan.skip),
        files_to_delete=len(plan.delete_points),
        files_renamed=plan.renamed,
        files_unchanged=plan.unchanged,
        chunks=chunks,
        chunks_to_embed=len(to_embed),
        characters_to_embed=characters,
        index_notice=state.why,
        blocked=blocked,
    )
