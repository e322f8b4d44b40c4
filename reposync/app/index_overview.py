"""The versions of each repository's index, and the progress of a change of the embedding model."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal

from reposync.app.application import Application
from reposync.config.sections import EmbeddingConfig
from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import is_configured
from reposync.store.columns import known_fields
from reposync.store.index_queries import VersionSummary
from reposync.store.manifest import ManifestCounts, share_done
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.store.tables import IndexVersion, VersionState

ChangeState = Literal["done", "building", "waiting", "unknown"]
"""The progress of a repository: its live version has the configured model; the next version is being built; no run has
begun it; or its index was built before 0.2 recorded models, and no run has checked it since."""
CHANGE_STATES: tuple[ChangeState, ...] = ("done", "building", "waiting", "unknown")


@dataclass(frozen=True, slots=True)
class VersionOverview:
    """One version of an index. Its settings, from `provider` to `branch`, are None if an older program made it."""

    id: str
    """Each point of the version has this id as its `metadata.repository_id`."""
    number: int
    state: str
    commit: str | None
    """This commit is indexed completely."""
    partial_commit: str | None
    """This commit is indexed except for the `failed` files, which could not be read."""
    provider: str | None
    model: str | None
    dimension: int | None
    window_chars: int | None
    document_prefix: str | None
    chunk_size: int | None
    chunk_overlap: int | None
    branch: str | None
    meaning_pending: int | None
    """This number of points have no dense vector yet. None: all have one, or the model makes none."""
    collection: str
    physical: str
    files: int
    skipped: int
    failed: int
    chunks: int
    created_at: datetime
    live_at: datetime | None
    retired_at: datetime | None
    removed_after: datetime | None
    """The next run after this time may remove the retired version."""

    @property
    def removal_is_due(self) -> bool:
        return self.removed_after is not None and self.removed_after <= datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Progress of a version that is being built. `files_total` and `chunks_total` are estimates from the live
    version or the run's listing. `run`: the active run; without one the rates are None."""

    files_done: int
    files_total: int
    chunks_done: int
    chunks_total: int
    run: str | None
    phase: str | None
    files_per_second: float | None
    eta_seconds: float | None


@dataclass(frozen=True, slots=True)
class IndexOverview:
    """`collection`: the configured one. `retired`: newest first."""

    repository: str
    collection: str
    live: VersionOverview | None
    building: VersionOverview | None
    progress: BuildProgress | None
    retired: list[VersionOverview]

    @property
    def versions(self) -> list[VersionOverview]:
        return [each for each in (self.live, self.building) if each is not None] + self.retired

    @property
    def meaning_indexed(self) -> float | None:
        """The share (0 to 1) of the chunks with dense vectors, while only words are searched; else None."""
        if self.live is None or self.live.meaning_pending is None:
            return None
        return share_done(self.live.meaning_pending, self.live.chunks)


@dataclass(frozen=True, slots=True)
class CollectionChange:
    """A collection and the configured model. `repositories`: active ones with an index, by state. `chunks_former`:
    points of live versions with a different model."""

    collection: str
    provider: str
    model: str | None
    repositories: dict[str, int]
    chunks: int
    chunks_former: int

    @property
    def total(self) -> int:
        return sum(self.repositories.values())

    @property
    def is_under_way(self) -> bool:
        return any(self.repositories[state] for state in ("building", "waiting"))


async def index_overviews(app: Application, names: Collection[str] | None = None) -> list[IndexOverview]:
    """The overviews of all repositories, or of those with these names, by name."""
    rows = {row.name: row for row in await app.repositories.list(names)}
    versions = await app.versions.all(None if names is None else [row.id for row in rows.values()])
    ids = None if names is None else [each.id for row in rows.values() for each in versions.get(row.id, ())]
    counts = await app.manifests.counts(ids)
    keep = timedelta(seconds=app.configuration.registry.index.keep_retired_seconds)
    found = []
    for name, row in sorted(rows.items()):
        mine = versions.get(row.id, [])
        shown = [_version(each, counts.get(each.id, ManifestCounts()), keep) for each in mine]
        live = next((each for each in shown if each.state == VersionState.LIVE), None)
        building = next((each for each in shown if each.state == VersionState.BUILDING), None)
        found.append(
            IndexOverview(
                repository=name,
                collection=row.collection,
                live=live,
                building=building,
                progress=None if building is None else _progress(building, live, await app.history.active(row.id)),
                retired=[each for each in reversed(shown) if each not in (live, building)],
            )
        )
    return found


async def index_overview(app: Application, name: str) -> IndexOverview:
    """Raises RepositoryNotFound, which names the nearest name."""
    row = await app.repositories.get(name)
    (found,) = await index_overviews(app, [row.name])
    return found


def collection_changes(
    app: Application, versions: Sequence[VersionSummary], counts: Mapping[str, ManifestCounts] = MappingProxyType({})
) -> list[CollectionChange]:
    """All collections that active repositories are configured for, by name. `counts`: of the versions, by id; without
    them chunks are not counted."""
    config = app.configuration.registry.embedding
    building = {version.repository_id for version in versions if version.state == VersionState.BUILDING}
    # Thousands of repositories are alike: each model is compared once.
    similar: defaultdict[tuple[str, str, str | None, bool], list[str]] = defaultdict(list)
    for each in versions:
        if each.is_live and each.is_active:
            similar[each.configured, each.collection, each.spec, each.repository_id in building].append(each.id)
    states: defaultdict[str, Counter[ChangeState]] = defaultdict(Counter)
    chunks: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    for (name, collection, spec, is_building), ids in similar.items():
        state = _change_state(config, spec, moves=name != collection, is_building=is_building)
        states[name][state] += len(ids)
        chunks[name][state == "done"] += sum(counts.get(each, ManifestCounts()).chunks for each in ids)
    return [
        CollectionChange(
            collection=name,
            provider=config.provider,
            model=config.model,
            repositories={state: states[name][state] for state in CHANGE_STATES},
            chunks=chunks[name][True],
            chunks_former=chunks[name][False],
        )
        for name in sorted(states)
    ]


async def failed_files(app: Application, versions: Iterable[VersionSummary]) -> dict[str, int]:
    """Number of files that could not be read, of each repository that has such, by name."""
    lacking = {version.id: version.repository for version in versions if version.is_live and version.lacks_files}
    counts = await app.manifests.counts(list(lacking)) if lacking else {}
    return {name: counts.get(version, ManifestCounts()).failed for version, name in lacking.items()}


def _change_state(config: EmbeddingConfig, spec: str | None, *, moves: bool, is_building: bool) -> ChangeState:
    """The state of repositories whose live version has this `spec`. `moves`: they are to be in a different
    collection."""
    stored = json.loads(spec or "null")
    if stored and not moves and is_configured(config, EmbeddingSpec(**known_fields(EmbeddingSpec, stored))):
        return "done"
    if is_building:
        return "building"
    return "waiting" if stored else "unknown"


def _version(version: IndexVersion, counts: ManifestCounts, keep: timedelta) -> VersionOverview:
    # Imported here: `reposync locks` needs no index.
    from reposync.sync.index_versions import VersionSettings

    made = VersionSettings.read(version.settings)
    stored = dict(version) | asdict(counts) | ({} if made is None else asdict(made.spec) | asdict(made.content))
    removed_after = None
    if version.retired_at is not None:
        removed_after = version.retired_at if version.live_at is None else version.retired_at + keep
    return VersionOverview(
        **{
            **dict.fromkeys(each.name for each in fields(VersionOverview)),
            **known_fields(VersionOverview, stored),
            **{"commit": version.commit_sha, "branch": version.branch_name},
            "removed_after": removed_after,
        }
    )


def _progress(building: VersionOverview, live: VersionOverview | None, active: Sequence[Run]) -> BuildProgress:
    run = next((run for run in active if run.status is RunStatus.RUNNING), None)
    reported: Mapping[str, Any] = (run and run.progress) or {}
    done = building.files + building.skipped
    # What the run still has to read.
    left = int(reported.get("files_total") or 0) - int(reported.get("files_done") or 0)
    return BuildProgress(
        files_done=done,
        files_total=max(done, done + left, live.files + live.skipped if live is not None else 0),
        chunks_done=building.chunks,
        chunks_total=max(building.chunks, live.chunks if live is not None else 0),
        run=None if run is None else run.id,
        **{key: reported.get(key) for key in ("phase", "files_per_second", "eta_seconds")},
    )
