"""What a run would do, without doing any of it: `reposync sync --plan`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from reposync.errors import DeletionBlocked
from reposync.store.repositories import Repository
from reposync.sync.audit import IndexState, inspect_index
from reposync.sync.pipeline import read_batches
from reposync.sync.progress import RunProgress, Watch
from reposync.sync.run import BATCH_BYTES, SyncParts, SyncSettings, fingerprint, make_target
from reposync.sync.workers import ContentWorkers


@dataclass(frozen=True, slots=True)
class Preview:
    """`chunks` will be stored; `chunks_to_embed` of them, with `characters_to_embed`, go to the embedding model, the
    others take vectors that the index already has. `blocked`: why the run would stop for a person, None if not."""

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
    parts: SyncParts,
    settings: SyncSettings,
    repository: Repository,
    *,
    full: bool,
    progress: RunProgress,
    watch: Watch,
) -> Preview:
    """Read what would be read and count it. Writes neither to the index nor to the database; a collection that does not
    exist yet is not made."""
    progress.phase = "planning"
    watch(progress)
    head = await parts.source.head()
    recorded = await parts.index.spec()
    exists = recorded is not None
    spec = await parts.embedder.spec(recorded)
    state = IndexState("", remade=True)
    if exists:
        state = await inspect_index(parts.index, spec, repository, parts.manifests, thorough=full)
    current = fingerprint(settings, repository.attributes)
    if head.sha == repository.last_commit and state.intact and not full and repository.content_fingerprint == current:
        return Preview(repository.name, head.sha, repository.last_commit)
    target = await make_target(parts, settings, repository, head, state, reread=full)
    plan = target.plan
    progress.files_total = len(plan.read)
    stored = skipped = chunks = characters = 0
    hashes: set[str] = set()
    async with ContentWorkers(len(plan.read), settings.content) as workers:
        async for batch in read_batches(
            parts.source,
            plan.read,
            target.rules.keeps_generated,
            max_file_bytes=settings.content.max_file_bytes,
            batch_bytes=BATCH_BYTES,
            progress=progress,
        ):
            new: dict[str, int] = {}
            for file in await workers.prepare(batch):
                stored += bool(file.chunks)
                skipped += file.skipped is not None
                chunks += len(file.chunks)
                new |= {each.content_hash: len(each.text) for each in file.chunks if each.content_hash not in hashes}
            known = await parts.index.known(list(new)) if exists and spec.dimension and new else {}
            hashes.update(new)
            wanted = {each: length for each, length in new.items() if each not in known}
            characters += sum(wanted.values())
            hashes.difference_update(known)
            progress.files_done += len(batch)
            watch(progress)
    try:
        plan.stop_if_suspicious(approved=False)
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
        files_to_delete=len(plan.unindex),
        files_renamed=plan.renamed,
        files_unchanged=plan.unchanged,
        chunks=chunks,
        chunks_to_embed=len(hashes),
        characters_to_embed=characters,
        index_notice=state.why,
        blocked=blocked,
    )
