"""What a run works with, and the tree of the commit that it brings the index to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from reposync.content.attributes import Attributes
from reposync.content.model import Skip, Skipped
from reposync.content.rules import CONTENT_REVISION, PathRules
from reposync.content.secret_policy import SecretPolicy
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.finding import Finding
from reposync.sources.port import Commit, Source, Tree, TreeEntry, path_bytes, path_text
from reposync.store.columns import path_key
from reposync.store.manifest import ManifestRow, Manifests
from reposync.store.repository import Repository
from reposync.store.runs import Runs
from reposync.store.secret_findings import SecretFindings
from reposync.store.versions import AttributeFiles, Versions
from reposync.sync.content_pool import ContentPool
from reposync.sync.prepare import ContentSettings
from reposync.vectors.index import QdrantIndex

# Time slice of matching paths in a thread: long enough to hide the hop (0.1 ms), short enough to cancel promptly.
_SLICE_SECONDS = 0.1
# Bounds on `.gitattributes`: a hostile repository may hold one in every folder; real ones hold a handful.
_MAX_ATTRIBUTE_FILES = 200
_MAX_ATTRIBUTE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SyncSettings:
    """Where a repository's files come from, which of them are indexed, and how. `server`: the address of GitLab, if the
    project is identified by its number there."""

    location: str
    server: str | None
    branch: str | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    content: ContentSettings
    secrets: SecretPolicy

    def source_key(self, project_id: int | None) -> str:
        """Identifies the project, also after it was moved: its number on the server, or else its address."""
        return f"{self.server}#{project_id}" if self.server is not None and project_id is not None else self.location


@dataclass(frozen=True, slots=True)
class SyncParts:
    """What a repository is synced with."""

    repository: Repository
    """The row of the repository."""
    settings: SyncSettings
    """The settings that the same row has."""
    source: Source
    embedder: Embedder
    embedder_for: Callable[[EmbeddingSpec], Embedder | None]
    """This returns an embedder of a model that was configured before, None if its address is unknown."""
    open_index: Callable[[str], QdrantIndex]
    """This returns the index of a name or physical collection, opened once a process."""
    collection: str
    """The configured name of the collection for its points."""
    manifests: Manifests
    versions: Versions
    runs: Runs
    findings: SecretFindings
    content: ContentPool
    keep_retired_seconds: float = 0.0
    elsewhere: Sequence[str] = ()
    """A repair looks for stray points of the repository in these physical collections."""


@dataclass(frozen=True, slots=True)
class TargetTree:
    """The tree of the head commit, its `.gitattributes`, and what the path rules decide."""

    head: Commit
    tree: Tree
    attributes: dict[str, list[str]]
    rules: PathRules
    secrets: SecretPolicy
    skipped: Mapping[bytes, Skipped]
    """By path, why it is not indexed."""
    kept: Set[bytes]
    """These paths are indexed even if their content is generated (`PathRules.keeps_generated`)."""
    masked: Mapping[str, int] = field(default_factory=dict)
    """Keys (`path_key`) of files whose whole text the index does not have, because secrets were found, with the line of
    the first."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Paths that hold a secret, with what the tree has in place of them."""
    in_paths: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    """The findings in paths, by these."""

    @property
    def files(self) -> int:
        """How many files are indexed."""
        return len(self.tree.entries) - len(self.skipped)

    def decide(self, entry: TreeEntry) -> Skipped | None:
        """Why the file is not indexed, None if it is."""
        return self.skipped.get(entry.path)

    def keeps_generated(self, path: bytes) -> bool:
        return path in self.kept

    def reader(self, path: bytes) -> str:
        """What, besides its content, decides what a file becomes; after a `+`, the rules by which its secrets were
        found."""
        read = f"{CONTENT_REVISION}k" if self.keeps_generated(path) else str(CONTENT_REVISION)
        return reader_of(read, self.secrets.rules_of(path))

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.rules, self.secrets)

    def reads_otherwise(self, entry: TreeEntry, row: ManifestRow) -> bool:
        """Whether the same blob may become something else now than when its row was written, and the index alone does
        not say what: `SecretPurge` applies other rules for secrets to texts that are stored whole."""
        reader, recorded = self.reader(entry.path), row.reader or ""
        if reader == recorded:
            return False
        return (
            reader_of(reader, "") != reader_of(recorded, "")
            or self.secrets.skips
            or row.skip_reason == Skip.SECRET
            or path_key(row.path) in self.masked
        )


async def read_target(source: Source, settings: SyncSettings, head: Commit, cached: AttributeFiles) -> TargetTree:
    """List the commit. `cached`: `.gitattributes` that were read before; they remain valid if an unproven listing lacks
    them. Raises what the source raises."""
    tree = await source.tree(head)
    attributes = await _read_attributes(source, tree.entries, cached)
    if not tree.proven:
        attributes = {path: list(entry) for path, entry in cached.items()} | attributes
    # Not on the event loop: 13 MB of lines take two seconds.
    rules = await asyncio.to_thread(_path_rules, settings, attributes)
    skipped: dict[bytes, Skipped] = {}
    kept: set[bytes] = set()
    entries = iter(tree.entries)
    while await asyncio.to_thread(_decide_some, rules, entries, skipped, kept):
        pass  # a cancelled run ends here
    return TargetTree(head, tree, attributes, rules, settings.secrets, skipped, kept)


def _decide_some(
    rules: PathRules, entries: Iterator[TreeEntry], skipped: dict[bytes, Skipped], kept: set[bytes]
) -> bool:
    """Decide about the next paths, for `_SLICE_SECONDS`. False after the last one."""
    until = time.monotonic() + _SLICE_SECONDS
    for entry in entries:
        reason = rules.decide(entry.path, entry.mode)
        if reason is not None:
            skipped[entry.path] = reason
        elif rules.keeps_generated(entry.path):
            kept.add(entry.path)
        if time.monotonic() >= until:
            return True
    return False


async def _read_attributes(source: Source, tree: Sequence[TreeEntry], cached: AttributeFiles) -> dict[str, list[str]]:
    """The linguist lines of every `.gitattributes` of `tree`; reads only blobs that `cached` lacks."""
    named = await asyncio.to_thread(lambda: list(filter(_is_attributes, tree)))
    files = sorted(named, key=lambda entry: (entry.path.count(b"/"), entry.path))
    found = {path_text(entry.path): entry for entry in files[:_MAX_ATTRIBUTE_FILES]}
    current = {path: list(cached[path]) for path, entry in found.items() if cached.get(path, ("",))[0] == entry.sha}
    wanted = {path: entry for path, entry in found.items() if path not in current}
    texts: dict[str, str] = {}
    if wanted:
        async for blob in source.read(list(wanted.values()), max_bytes=_MAX_ATTRIBUTE_BYTES):
            texts[blob.sha] = Attributes.relevant(blob.content or b"")
    return current | {path: [entry.sha, texts.get(entry.sha, "")] for path, entry in wanted.items()}


def _is_attributes(entry: TreeEntry) -> bool:
    name = entry.path.rpartition(b"/")[2]
    return name == b".gitattributes" and not entry.is_symlink and not entry.is_submodule


def _path_rules(settings: SyncSettings, attributes: AttributeFiles) -> PathRules:
    folders = {path_bytes(path).rpartition(b"/")[0]: text for path, (_, text) in attributes.items() if text}
    return PathRules(settings.include, settings.exclude, Attributes.parse(folders))


async def rules_fingerprint(settings: SyncSettings, attributes: AttributeFiles) -> str:
    rules = await asyncio.to_thread(_path_rules, settings, attributes)
    return _fingerprint(rules, settings.secrets)


def reader_of(reader: str, rules: str) -> str:
    """`reader`, with other rules for secrets."""
    read = reader.partition("+")[0]
    return f"{read}+{rules}" if rules else read


def rules_in(reader: str | None) -> str:
    return (reader or "").partition("+")[2]


def _fingerprint(rules: PathRules, secrets: SecretPolicy) -> str:
    return rules.fingerprint if secrets.is_off else f"{rules.fingerprint} {secrets.fingerprint}"
