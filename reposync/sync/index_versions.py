"""Which version of the index a run works on: the live one, or a new one that is built beside it because the settings
changed; and the removal of versions that are no longer searched."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from reposync.embedding.port import EmbeddingSpec
from reposync.errors import LeaseLost, RepoSyncError
from reposync.store.columns import known_fields
from reposync.store.run import Run
from reposync.store.tables import IndexVersion, VersionState
from reposync.store.versions import unwritten_version
from reposync.sync.lease import Lease
from reposync.sync.prepare import ContentSettings
from reposync.sync.target import SyncParts
from reposync.vectors.collection import SCHEMA_REVISION
from reposync.vectors.index import QdrantIndex

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VersionSettings:
    """Everything that decides what the points of a version are. (The rules, which decide which files have points, are
    applied to the live version.) `source` and `branch`: where the files come from. `physical`: the collection."""

    source: str
    branch: str | None
    physical: str
    spec: EmbeddingSpec
    content: ContentSettings
    schema: int = SCHEMA_REVISION

    @property
    def key(self) -> str:
        """32 hex digits: a digest of the settings."""
        settings = asdict(self) | {"spec": self.spec.as_json()}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> VersionSettings | None:
        """From `index_versions.settings`; None for an index that was made before there were versions."""
        if "source" not in stored:
            return None
        spec = EmbeddingSpec(**known_fields(EmbeddingSpec, stored["spec"]))
        content = ContentSettings(**known_fields(ContentSettings, stored["content"]))
        return cls(stored["source"], stored["branch"], stored["physical"], spec, content, stored["schema"])


@dataclass(frozen=True, slots=True)
class Situation:
    """The versions that a run finds. `wanted`: the settings of `working`, the version that is updated: the live one, or
    one that is built. `live`: the version that is searched."""

    wanted: VersionSettings
    versions: Sequence[IndexVersion]
    live: IndexVersion | None
    working: IndexVersion

    @property
    def builds(self) -> bool:
        return self.working.state is not VersionState.LIVE

    @property
    def of_live(self) -> Situation | None:
        """To bring the live version to the head as well while another one is built: with the settings that it was made
        with. None if it cannot follow: these are unknown, or a different source or branch is configured."""
        made = self.live_settings
        if self.live is None or made is None or not self.builds or not self.same_origin:
            return None
        return replace(self, wanted=made, working=self.live)

    @property
    def live_settings(self) -> VersionSettings | None:
        """None if there is no live version, or it is not known how it was made."""
        return VersionSettings.read(self.live.settings) if self.live is not None else None

    @property
    def same_origin(self) -> bool:
        """Whether the files of the live version come from the same source and branch as those that are wanted."""
        made = self.live_settings
        return made is not None and (made.source, made.branch) == (self.wanted.source, self.wanted.branch)


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """Raises LeaseLost, and what index, embedder and store raise. Without a `run`, for a preview, nothing is
    written."""

    parts: SyncParts
    run: Run | None

    async def situation(self) -> Situation:
        """Begins a version if there is none with the wanted settings."""
        versions = await self.parts.versions.of(self.parts.repository.id)
        wanted = await self._wanted(versions)
        live = next((each for each in versions if each.state is VersionState.LIVE), None)
        if live is not None and live.settings_key == wanted.key:
            return Situation(wanted, versions, live, live)
        return Situation(wanted, versions, live, await self._building(versions, wanted))

    async def _wanted(self, versions: Sequence[IndexVersion]) -> VersionSettings:
        """The configured settings. The embedding server is not queried for a model and dimension that a version or a
        collection records."""
        known = next(
            (each.spec for version in reversed(versions) if (each := VersionSettings.read(version.settings))), None
        )
        name = self.parts.open_index(self.parts.collection)
        hint = known or await name.spec()
        spec = await self.parts.embedder.spec(hint)
        physical = await name.physical_for(spec)
        source = self.parts.settings.source_key(await self.parts.source.project_id())
        return VersionSettings(source, self.parts.settings.branch, physical, spec, self.parts.settings.content)

    async def _building(self, versions: Sequence[IndexVersion], wanted: VersionSettings) -> IndexVersion:
        """The version that is being built with these settings, a retired one that is complete, or a new one."""
        same = {version.state: version for version in versions if version.settings_key == wanted.key}
        if VersionState.BUILDING in same:
            return same[VersionState.BUILDING]
        common: dict[str, Any] = {"collection": self.parts.collection, "generation": self.parts.repository.generation}
        if (retired := same.get(VersionState.RETIRED)) is not None and retired.meaning_pending is None:
            return retired if self.run is None else await self.parts.versions.build_again(self.run, retired, **common)
        if self.run is not None:
            _announce(self.run.repository, versions, wanted)
        made_of = {"physical": wanted.physical, "settings_key": wanted.key, "settings": asdict(wanted)}
        if self.run is None:
            return unwritten_version(self.parts.repository, VersionState.BUILDING, common | made_of)
        return await self.parts.versions.add(self.run, VersionState.BUILDING, **common, **made_of)


def _announce(repository: str, versions: Sequence[IndexVersion], wanted: VersionSettings) -> None:
    """Once a new version: a different default of a new release is nothing that anybody configured."""
    live = next((each for each in versions if each.state is VersionState.LIVE), None)
    made = VersionSettings.read(live.settings) if live is not None else None
    if made is not None and made.spec != wanted.spec:
        log.info(
            "a new index of %s is built beside the one that is searched: its model is %s (%s), not %s (%s)",
            *(repository, wanted.spec.model, wanted.spec.provider, made.spec.model, made.spec.provider),
        )


# Versions that are no longer searched ---------------------------------------------------------------------------------


async def remove_elsewhere(parts: SyncParts, situation: Situation, lease: Lease) -> int:
    """Remove points of the repository from collections of other repositories; returns how many there were."""
    points = 0
    for name in parts.elsewhere:
        for version in situation.versions:
            if version.physical != name:
                points += await _remove_points(parts.open_index(name), version.id, lease)
    return points


async def _remove_points(index: QdrantIndex, version_id: str, lease: Lease) -> int:
    points = await index.count(version_id) if await index.spec() is not None else 0
    if points:
        await index.remove_version(version_id, check=lease.check)
    return points


async def remove_retired(parts: SyncParts, situation: Situation, run: Run, lease: Lease) -> None:
    """Remove versions that are not searched any more, with their points and manifests, and the collections that they
    leave empty. Call after the run has published. Failures are logged; the next run tries again. Raises LeaseLost."""
    if not situation.builds and len(situation.versions) == 1 and situation.working.id == parts.repository.id:
        return  # only the first version: there is nothing to remove
    try:
        versions = await parts.versions.of(parts.repository.id)
        # Before the points are removed that the name still leads to; and again, if the name was a collection itself.
        await _move_name(parts, versions)
        oldest = parts.runs.now() - timedelta(seconds=parts.keep_retired_seconds)
        for version in versions:
            if version.state is not VersionState.RETIRED or version.retired_at is None:
                continue
            # Those that were never live, or never complete, and those that were retired long enough ago.
            is_incomplete = version.live_at is None or version.meaning_pending is not None
            # Its texts were found by other rules for secrets, and may hold some.
            may_hold_secrets = version.secret_rules != parts.settings.secrets.fingerprint
            if is_incomplete or may_hold_secrets or version.retired_at <= oldest:
                await _remove_points(parts.open_index(version.physical), version.id, lease)
                lease.check()
                await parts.versions.remove(run, version.id)
        await _move_name(parts, versions)
        live = {version.physical for version in versions if version.state is VersionState.LIVE}
        for physical in sorted({version.physical for version in situation.versions} - live):
            if physical not in await parts.versions.physical_collections():
                await parts.open_index(physical).drop_if_empty()
    except LeaseLost:
        raise
    except RepoSyncError as error:
        name = parts.repository.name
        log.warning("Retired index versions of %s were not removed; retrying later: %s", name, error)


async def _move_name(parts: SyncParts, versions: Sequence[IndexVersion]) -> None:
    """Once all repositories of a collection are live in the same physical collection, its name leads there."""
    for live in versions:
        if live.state is VersionState.LIVE and not await parts.versions.not_on(live.collection, live.physical):
            await parts.open_index(live.collection).lead_to(live.physical)
