"""Which version of the index a run works on: the live one, or one that is built beside it because the settings
changed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from reposync.embedding.port import EmbeddingSpec
from reposync.errors import IndexHeld
from reposync.store.columns import known_fields
from reposync.store.repository import Repository
from reposync.store.run import Run
from reposync.store.versions import Hold, IndexVersion, Versions, VersionState, unwritten_version
from reposync.sync.prepare import ContentSettings
from reposync.sync.target import SyncParts, SyncSettings, fingerprint_before_02, same_content_before_02
from reposync.vectors.definition import SCHEMA_REVISION
from reposync.vectors.names import physical_collection


@dataclass(frozen=True, slots=True)
class VersionSettings:
    """Everything that decides what the points of a version are; which files get any is decided by rules, which change
    in place. `source` and `branch`: where the files come from. `physical`: the collection that has the points."""

    source: str
    branch: str | None
    physical: str
    spec: EmbeddingSpec
    content: ContentSettings
    schema: int = SCHEMA_REVISION

    @property
    def key(self) -> str:
        """32 hex digits, the same for the same settings."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> VersionSettings | None:
        """As they stand in `index_versions.settings`; None of an index that was made before there were versions."""
        if "source" not in stored:
            return None
        spec = EmbeddingSpec(**known_fields(EmbeddingSpec, stored["spec"]))
        content = ContentSettings(**known_fields(ContentSettings, stored["content"]))
        return cls(stored["source"], stored["branch"], stored["physical"], spec, content, stored["schema"])

    def chunks_as(self, other: VersionSettings) -> bool:
        """Whether a file has the same chunks under both, if it is not too large under one of them."""
        mine, theirs = self.content, other.content
        return (mine.chunk_size, mine.chunk_overlap) == (theirs.chunk_size, theirs.chunk_overlap)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a run finds. `wanted`: by the configuration, or what the live version was made with where a person holds it.
    `live` is searched now. `working` is what the run brings to the head commit: `live`, or a version that is built.
    `held`: other settings are configured, and a person wants them not to be built."""

    wanted: VersionSettings
    versions: Sequence[IndexVersion]
    live: IndexVersion | None
    working: IndexVersion
    held: bool = False

    @property
    def builds(self) -> bool:
        return self.working.state is not VersionState.LIVE


class VersionBook(Protocol):
    """Where new versions and changes of versions go (`Versions`, for the arguments)."""

    async def add(self, state: VersionState, **columns: Any) -> IndexVersion: ...
    async def build_again(self, version: IndexVersion, **columns: Any) -> IndexVersion: ...
    async def note(self, version: IndexVersion, **columns: Any) -> IndexVersion: ...


@dataclass(frozen=True, slots=True)
class WrittenVersions:
    """In the database, in the name of a run."""

    versions: Versions
    run: Run

    async def add(self, state: VersionState, **columns: Any) -> IndexVersion:
        return await self.versions.add(self.run, state, **columns)

    async def build_again(self, version: IndexVersion, **columns: Any) -> IndexVersion:
        return await self.versions.build_again(self.run, version, **columns)

    async def note(self, version: IndexVersion, **columns: Any) -> IndexVersion:
        return await self.versions.note(self.run, version.id, **columns)


@dataclass(frozen=True, slots=True)
class ForeseenVersions:
    """Nowhere: what a run would find."""

    repository: Repository

    async def add(self, state: VersionState, **columns: Any) -> IndexVersion:
        return unwritten_version(self.repository, state, columns)

    async def build_again(self, version: IndexVersion, **columns: Any) -> IndexVersion:
        return replace(version, state=VersionState.BUILDING, fingerprint=None, **columns)

    async def note(self, version: IndexVersion, **columns: Any) -> IndexVersion:
        if "commit_sha" in columns:
            columns["commit"] = columns.pop("commit_sha")
        return replace(version, **columns)


class VersionChoice:
    """Of one run. Raises LeaseLost, and what index, embedder and store raise."""

    def __init__(self, parts: SyncParts, settings: SyncSettings, repository: Repository, book: VersionBook) -> None:
        self._parts = parts
        self._settings = settings
        self._repository = repository
        self._book = book

    async def wanted(self, project_id: int | None, versions: Sequence[IndexVersion]) -> VersionSettings:
        """What the configuration asks for. A server whose model and dimension a version or a collection knows is not
        asked for them again. Writes nothing."""
        known = next(
            (each.spec for version in reversed(versions) if (each := VersionSettings.read(version.settings))), None
        )
        hint = known or await self._parts.open_index(self._parts.collection).spec()
        spec = await self._parts.embedder.spec(hint)
        physical = await physical_collection(self._parts.open_index, self._parts.collection, spec)
        source = self._settings.source_key(project_id)
        return VersionSettings(source, self._settings.branch, physical, spec, self._settings.content)

    async def situation(self, project_id: int | None) -> Situation:
        """Begins a version where there is none for what is wanted. Raises IndexHeld."""
        versions = await self._parts.versions.of(self._repository.id)
        wanted = await self.wanted(project_id, versions)
        versions = await self._adopted(versions, wanted)
        live = next((each for each in versions if each.state is VersionState.LIVE), None)
        if live is not None and live.settings_key == wanted.key:
            return Situation(wanted, versions, live, live)
        if live is not None and (made := self._held(live, wanted)) is not None:
            return Situation(made, versions, live, live, held=True)
        return Situation(wanted, versions, live, await self._building(versions, wanted))

    async def _physical(self, name: str) -> str:
        """What programs before 0.2 wrote to: the collection that the name leads to."""
        behind = await self._parts.open_index(name).behind()
        return name if behind is None else behind.physical

    async def _building(self, versions: Sequence[IndexVersion], wanted: VersionSettings) -> IndexVersion:
        """The one that is being built for these settings, one that was live with them before, or a new one."""
        for version in reversed(versions):
            if version.state is VersionState.BUILDING and version.settings_key == wanted.key:
                return version
        common = {"collection": self._parts.collection, "generation": self._repository.generation}
        for version in reversed(versions):
            if version.state is VersionState.RETIRED and version.settings_key == wanted.key:
                return await self._book.build_again(version, **common)
        return await self._book.add(
            VersionState.BUILDING,
            physical=wanted.physical,
            settings_key=wanted.key,
            settings=await asyncio.to_thread(asdict, wanted),
            **common,
        )

    def _held(self, live: IndexVersion, wanted: VersionSettings) -> VersionSettings | None:
        """What the live version was made with, if a person wants it to stay although others are configured. Raises
        IndexHeld where it cannot follow its source: that is another one by now."""
        stored = self._repository.index_hold
        if stored is None:
            return None
        hold, made = Hold.read(stored), VersionSettings.read(live.settings)
        if not hold.covers(wanted.key):
            return None
        if made is None or (made.source, made.branch) != (wanted.source, wanted.branch):
            raise IndexHeld(
                f"The index of {self._repository.name} is held ({hold.reason}), and another source or branch is "
                "configured; it stays as it is.",
                remedy=f"`reposync index resume {self._repository.name}` builds what is configured.",
            )
        return made

    async def _adopted(self, versions: list[IndexVersion], wanted: VersionSettings) -> list[IndexVersion]:
        """What programs before 0.2 indexed, or wrote since this one did, becomes a version: live where a sync was ever
        completed. Only where their fingerprint is today's is it known how it was made."""
        row = self._repository
        first = next((each for each in versions if each.id == row.id), None)
        if first is None and (versions or row.epoch == 0):
            return versions
        if first is not None and (first.state is VersionState.RETIRED or first.epoch == row.epoch):
            return versions
        if first is not None and any(each.epoch == row.epoch for each in versions):
            return versions
        physical = await self._physical(row.indexed_collection or row.collection)
        if first is not None and row.indexed_collection == first.collection:
            physical = first.physical
        attributes = await self._parts.versions.attributes(row.id)
        today = await asyncio.to_thread(fingerprint_before_02, self._settings, attributes)
        same = (
            same_content_before_02(row.content_fingerprint, today)
            and physical == wanted.physical
            and (row.last_commit is not None or row.last_sync_at is None)
        )
        synced = row.last_sync_at is not None
        columns: dict[str, Any] = {
            "settings_key": wanted.key if same else None,
            "settings": asdict(wanted) if same else {},
            "collection": row.collection,
            "physical": physical,
            "index_identity": row.index_identity,
            "fingerprint": None,
            "epoch": row.epoch,
            "commit_sha": row.last_commit,
            "committed_at": row.last_committed_at,
            "partial_commit": None,
            # Kept as long as any other when it is retired.
            "live_at": row.last_sync_at if first is None else first.live_at or row.last_sync_at,
        }
        if first is not None:
            if first.state is VersionState.BUILDING and not synced:
                columns = {"epoch": row.epoch, "fingerprint": None}
            elif first.state is VersionState.BUILDING:
                columns["state"] = VersionState.LIVE
            changed = await self._book.note(first, **columns)
            return [changed if each.id == changed.id else each for each in versions]
        state = VersionState.LIVE if synced else VersionState.BUILDING
        return [await self._book.add(state, generation=row.generation, **columns)]
