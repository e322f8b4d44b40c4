"""What a run works with and what it is to reach: its parts, its settings, the tree and the rules of the head commit."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from reposync.content.model import Skipped
from reposync.content.rules import CONTENT_REVISION, PathRules, read_differently
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.sources.port import Commit, Source, Tree, TreeEntry
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.repositories import Repositories
from reposync.store.runs import Runs
from reposync.store.version_attributes import AttributeFiles
from reposync.store.versions import IndexVersion, Versions
from reposync.sync.attributes import parse_attributes, read_attributes
from reposync.sync.prepare import ContentSettings
from reposync.vectors.port import Index

# How long one step of a thread matches paths: long enough to hide the hop (0.1 ms), short enough to cancel at once.
_STEP_SECONDS = 0.1
# The revision of the path rules and of reading that programs before 0.2 have.
_REVISION_BEFORE_02 = 1

OpenIndex = Callable[[str], Index]
"""Physical collection -> its index, opened once a process."""

Gate = Callable[[IndexVersion, IndexVersion], Awaitable[str | None]]
"""(live version, the one that would replace it) -> why it must not, None where it may."""


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Where a repository's files come from, which of them are indexed, and how. `server`: GitLab's address, on which a
    project's number is the same whatever becomes of its path."""

    location: str
    server: str | None
    branch: str | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    content: ContentSettings

    def source_key(self, project_id: int | None) -> str:
        """What stays as long as these are the same files: the project's number on its server, or the address."""
        return f"{self.server}#{project_id}" if self.server is not None and project_id is not None else self.location


@dataclass(frozen=True, slots=True)
class SyncParts:
    """What a run works with, built once in one place and handed down. `collection` is the configured name of where the
    points go. `embedder_for`: of a model that was configured before, None where it can no longer be asked."""

    source: Source
    embedder: Embedder
    embedder_for: Callable[[EmbeddingSpec], Embedder | None]
    open_index: OpenIndex
    collection: str
    repositories: Repositories
    manifests: Manifests
    versions: Versions
    runs: Runs
    keep_retired_seconds: float = 0.0
    gate: Gate | None = None
    elsewhere: Sequence[str] = ()
    """The physical collections in which a repair looks for points of the repository."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the head commit asks for: its files, the `.gitattributes` in force, the rules that both make, and what these
    decide about each path of the tree. `skipped`: by path, why it is not indexed; `kept`: paths that are indexed even
    if their content says that they are generated (`PathRules.keeps_generated`)."""

    head: Commit
    tree: Tree
    attributes: dict[str, list[str]]
    rules: PathRules
    skipped: Mapping[bytes, Skipped]
    kept: Set[bytes]

    def decide(self, entry: TreeEntry) -> Skipped | None:
        """Why the file is not indexed, None if it is."""
        return self.skipped.get(entry.path)

    def keeps_generated(self, path: bytes) -> bool:
        return path in self.kept

    def reader(self, path: bytes) -> str:
        """What decides, beside its content, what becomes of a file that is read."""
        return f"{CONTENT_REVISION}k" if self.keeps_generated(path) else str(CONTENT_REVISION)

    def reads_otherwise(self, entry: TreeEntry, row: ManifestRow) -> bool:
        """Whether the file may become something else now than when its row was written, its blob being the same."""
        if row.reader is not None:
            return row.reader != self.reader(entry.path)
        # Written by a program before 0.2.
        return read_differently(entry.path, row.size_bytes or 0)


async def read_target(source: Source, settings: SyncSettings, head: Commit, cached: AttributeFiles) -> Target:
    """List the commit. `cached`: `.gitattributes` that were read before; those that an unproven listing lacks hold on.
    Raises what the source raises."""
    tree = await source.tree(head)
    attributes = await read_attributes(source, tree.entries, cached)
    if not tree.proven:
        attributes = {path: list(entry) for path, entry in cached.items()} | attributes
    # Not on the event loop: 13 MB of lines take two seconds.
    rules = await asyncio.to_thread(path_rules, settings, attributes)
    skipped: dict[bytes, Skipped] = {}
    kept: set[bytes] = set()
    entries = iter(tree.entries)
    while await asyncio.to_thread(_decide_some, rules, entries, skipped, kept):
        pass  # a run that is cancelled ends here
    return Target(head, tree, attributes, rules, skipped, kept)


def _decide_some(
    rules: PathRules, entries: Iterator[TreeEntry], skipped: dict[bytes, Skipped], kept: set[bytes]
) -> bool:
    """In a thread: the next paths, for `_STEP_SECONDS`. False after the last one."""
    until = time.monotonic() + _STEP_SECONDS
    for entry in entries:
        reason = rules.decide(entry.path, entry.mode)
        if reason is not None:
            skipped[entry.path] = reason
        elif rules.keeps_generated(entry.path):
            kept.add(entry.path)
        if time.monotonic() >= until:
            return True
    return False


def path_rules(settings: SyncSettings, attributes: AttributeFiles) -> PathRules:
    return PathRules(settings.include, settings.exclude, parse_attributes(attributes))


async def rules_fingerprint(settings: SyncSettings, attributes: AttributeFiles) -> str:
    rules = await asyncio.to_thread(path_rules, settings, attributes)
    return rules.fingerprint


def fingerprint_before_02(settings: SyncSettings, attributes: AttributeFiles) -> str:
    """As programs before 0.2 write it: `<of the path rules>:<of reading and chunking>`. It tells this program whether
    an index that one of these left was made with today's settings, and them that it was."""
    kept = [(path, text) for path, (_, text) in sorted(attributes.items()) if "linguist-generated" in text]
    reading = repr((_REVISION_BEFORE_02, settings.content, settings.include, kept))
    content = hashlib.sha256(reading.encode()).hexdigest()[:16]
    return f"{path_rules(settings, attributes).fingerprint_of(_REVISION_BEFORE_02)}:{content}"


def same_content_before_02(recorded: str | None, current: str) -> bool:
    """Whether files recorded under one fingerprint were decoded and chunked as the other one does."""
    return recorded is not None and recorded.rpartition(":")[2] == current.rpartition(":")[2]
