"""What a run would do, without writing anything (`reposync sync --plan`)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from reposync.errors import DeletionBlocked
from reposync.sync.audit import IndexState, inspect_index
from reposync.sync.brake import Brake
from reposync.sync.index_versions import VersionChoice
from reposync.sync.pipeline import read_files
from reposync.sync.progress import RunProgress
from reposync.sync.stored_points import own_text
from reposync.sync.sync_run import is_unchanged
from reposync.sync.target import SyncParts, read_target
from reposync.sync.version_update import indexes_of_model, make_work


@dataclass(slots=True)
class Preview:
    """`chunks` would be stored, or completed by their meaning; `chunks_to_embed` of them, with `characters_to_embed`,
    would go to the embedding model, the others have vectors in the index. `blocked`: why the run would stop and wait
    for approval, None if not."""

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


async def preview(parts: SyncParts, *, full: bool, progress: RunProgress) -> Preview:
    """Read what would be read and count it. Writes neither to the index nor to the database, and creates no
    collection."""
    settings, repository = parts.settings, parts.repository
    progress.enter("planning")
    head = await parts.source.head()
    situation = await VersionChoice(parts, None).situation()
    version, spec = situation.working, situation.wanted.spec
    state = IndexState("")
    if await parts.open_index(version.physical).spec() is not None:
        state = await inspect_index(parts, situation)
    attributes = await parts.versions.attributes(version.id)
    found = Preview(repository.name, head.sha, repository.last_commit)
    unchanged = not full and await is_unchanged(settings, head, situation, state, attributes)
    if unchanged and version.meaning_pending is None:
        return found
    target = await read_target(parts.source, settings, head, attributes)
    work = await make_work(parts, target, situation, state, full_from_epoch=repository.epoch if full else None)
    plan = work.plan
    progress.files_total = found.files_to_read = len(plan.read)
    found.files, found.files_unchanged, found.files_renamed = plan.listed, plan.unchanged, plan.renamed
    found.files_to_skip, found.files_to_delete = len(plan.skip), len(plan.delete_points)
    found.index_notice = state.why
    names = {each.physical for each in (version, situation.live) if each is not None}
    same_model = await indexes_of_model(parts, names, spec)
    to_embed: dict[str, int] = {}

    async def add(new: dict[str, int]) -> None:
        for other in same_model:
            for known in await other.known(sorted(new.keys() - to_embed.keys())):
                new.pop(known, None)
        to_embed.update(new)

    if version.meaning_pending is not None and state.identity:
        async for page in parts.open_index(version.physical).points_without_vector(version.id):
            texts = [(point, text) for point in page if (text := own_text(point, version.id)) is not None]
            found.chunks += len(texts)
            await add({point.payload["metadata"]["content_hash"]: len(text) for point, text in texts})
    batches = read_files(
        parts.content, parts.source, plan.read, work.target, settings.content, settings.secrets, progress
    )
    async with contextlib.aclosing(batches):
        async for files in batches:
            found.files_to_store += sum(1 for file in files if file.chunks)
            found.files_to_skip += sum(1 for file in files if file.skipped)
            found.chunks += sum(len(file.chunks) for file in files)
            if spec.dimension:
                await add({chunk.content_hash: len(chunk.text) for file in files for chunk in file.chunks})
            progress.advance(len(files))
    found.chunks_to_embed, found.characters_to_embed = len(to_embed), sum(to_embed.values())
    try:
        Brake(repository.name, head.sha, plan.listed).check(work.losses)
    except DeletionBlocked as error:
        found.blocked = error.message
    return found
