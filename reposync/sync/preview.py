"""What a run would do, without doing any of it: `reposync sync --plan`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from reposync.errors import DeletionBlocked
from reposync.sources.paths import path_text
from reposync.store.repository import Repository
from reposync.sync.audit import IndexState, inspect_index
from reposync.sync.brake import Brake
from reposync.sync.bring import BATCH_BYTES, plan_work
from reposync.sync.pipeline import read_batches
from reposync.sync.progress import RunProgress, Watch
from reposync.sync.target import SyncParts, SyncSettings, read_target, rules_fingerprint
from reposync.sync.versions import ForeseenVersions, VersionChoice
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
    choice = VersionChoice(parts, settings, repository, ForeseenVersions(repository))
    situation = await choice.situation(await parts.source.project_id())
    index = parts.open_index(situation.working.physical)
    exists = await index.spec() is not None
    state = IndexState("")
    if exists:
        spec = situation.wanted.spec
        state = await inspect_index(index, spec, situation.working, parts.manifests, thorough=full)
    version = situation.working
    attributes = await parts.versions.attributes(version.id)
    current = await rules_fingerprint(settings, attributes)
    unchanged = head.sha == version.commit and version.fingerprint == current and not situation.builds
    if unchanged and state.audit.clean and not state.failed and not full:
        return Preview(repository.name, head.sha, repository.last_commit)
    target = await read_target(parts.source, settings, head, attributes)
    recorded = await parts.manifests.load(version.id)
    live = situation.live
    indexed = await parts.manifests.load(live.id) if live is not None and situation.builds else {}
    work = await asyncio.to_thread(
        plan_work,
        target,
        situation,
        recorded,
        indexed,
        state,
        full_from_epoch=repository.epoch if full else None,
        repair=False,
    )
    plan = work.plan
    progress.files_total = len(plan.read)
    carried = {row.path for row in work.carried}
    entries = [entry for entry in plan.read if path_text(entry.path) not in carried]
    stored, chunks = len(carried), sum(row.chunks for row in work.carried)
    skipped = characters = 0
    hashes: set[str] = set()
    embeds = situation.wanted.spec.dimension > 0
    known_by = [index] if exists else []
    if live is not None and live.physical != version.physical:
        known_by.append(parts.open_index(live.physical))
    asked = [each for each in known_by if embeds and await each.spec() == situation.wanted.spec]
    async with ContentWorkers(len(entries), settings.content) as workers:
        async for batch in read_batches(
            parts.source,
            entries,
            target.keeps_generated,
            max_file_bytes=settings.content.max_file_bytes,
            batch_bytes=BATCH_BYTES,
            progress=progress,
        ):
            new: dict[str, int] = {}
            for file in await workers.prepare(batch):
                stored += bool(file.chunks)
                skipped += file.skipped is not None
                chunks += len(file.chunks)
                if not embeds:
                    continue
                new |= {each.content_hash: len(each.text) for each in file.chunks if each.content_hash not in hashes}
            known = {each for other in asked if new for each in await other.known(list(new))}
            hashes.update(new)
            wanted = {each: length for each, length in new.items() if each not in known}
            characters += sum(wanted.values())
            hashes.difference_update(known)
            progress.files_done += len(batch)
            watch(progress)
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
        files_to_delete=len(plan.unindex),
        files_renamed=plan.renamed,
        files_unchanged=plan.unchanged,
        chunks=chunks,
        chunks_to_embed=len(hashes),
        characters_to_embed=characters,
        index_notice=state.why,
        blocked=blocked,
    )
