"""The versions of each repository's index, and the progress of a change of the embedding model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from reposync.app.application import Application
from reposync.config.sections import EmbeddingConfig
from reposync.embedding.port import EmbeddingSpec
from reposync.embedding.settings import is_configured
from reposync.runs.reporting import current_progress
from reposync.store.columns import known_fields
from reposync.store.index_queries import SimilarIndexes, incomplete_versions, similar_indexes
from reposync.store.manifest import ManifestCounts
from reposync.store.run import Run
from reposync.store.status import RunStatus
from reposync.store.tables import IndexVersion, VersionState
from reposync.sync.index_versions import VersionSettings

ChangeState = Literal["done", "building", "waiting", "unknown"]
"""Of a repository: its live version has the configured model; the next version is being built; no run has begun it;
or its index was built before 0.2 recorded models, and no run has checked it since."""
CHANGE_STATES: tuple[ChangeState, ...] = ("done", "building", "waiting", "unknown")


@dataclass(frozen=True, slots=True)
class VersionOverview:
    """`commit` is indexed completely, `partial_commit` except for `failed` files that could not be read. `provider` to
    `branch`: the settings of its points, None if an older program made them. `words_only`: they have no dense vectors
    yet. `removed_after`: when the next run may remove a retired version."""

    number: int
    state: str
    commit: str | None
    partial_commit: str | None
    provider: str | None
    model: str | None
    dimension: int | None
    window_chars: int | None
    document_prefix: str | None
    chunk_size: int | None
    chunk_overlap: int | None
    branch: str | None
    words_only: bool
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
        if self.live is None or not self.live.words_only:
            return None
        return 0.0 if self.building is None else min(1.0, self.building.chunks / max(1, self.live.chunks))


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
    """Of all repositories, or of those with these names, by name."""
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
                progress=None if building is None else _progress(building, live, await _running(app, row.id)),
                retired=[each for each in reversed(shown) if each not in (live, building)],
            )
        )
    return found


async def index_overview(app: Application, name: str) -> IndexOverview:
    """Raises RepositoryNotFound, which names the nearest name."""
    row = await app.repositories.get(name)
    (found,) = await index_overviews(app, [row.name])
    return found


async def collection_changes(app: Application, *, count_chunks: bool = True) -> list[CollectionChange]:
    """All collections that active repositories are configured for, by name."""
    config = app.configuration.registry.embedding
    states: dict[str, Counter[str]] = {}
    chunks: dict[str, Counter[bool]] = {}
    for each in await similar_indexes(app.database, count_chunks=count_chunks):
        state = _change_state(each, config)
        states.setdefault(each.collection, Counter())[state] += each.repositories
        chunks.setdefault(each.collection, Counter())[state == "done"] += each.chunks
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


async def failed_files(app: Application) -> dict[str, int]:
    """Number of files that could not be read, of each repository that has such, by name."""
    versions = await incomplete_versions(app.database)
    counts = await app.manifests.counts(list(versions.values())) if versions else {}
    return {name: counts.get(version, ManifestCounts()).failed for name, version in versions.items()}


async def _running(app: Application, identity: str) -> Run | None:
    return next((run for run in await app.history.active(identity) if run.status is RunStatus.RUNNING), None)


def _change_state(indexes: SimilarIndexes, config: EmbeddingConfig) -> ChangeState:
    spec = None if indexes.spec is None else EmbeddingSpec(**known_fields(EmbeddingSpec, indexes.spec))
    if spec is not None and indexes.live_collection == indexes.collection and is_configured(config, spec):
        return "done"
    if indexes.is_building:
        return "building"
    return "waiting" if spec is not None else "unknown"


_OF_SPEC = ("provider", "model", "dimension", "window_chars", "document_prefix")
_OF_CONTENT = ("chunk_size", "chunk_overlap")
_OF_VERSION = ("number", "partial_commit", "collection", "physical", "created_at", "live_at", "retired_at")
_OF_COUNTS = ("files", "skipped", "failed", "chunks")


def _version(version: IndexVersion, counts: ManifestCounts, keep: timedelta) -> VersionOverview:
    made = VersionSettings.read(version.settings)
    removed_after = None
    if version.retired_at is not None:
        removed_after = version.retired_at if version.live_at is None else version.retired_at + keep
    parts = ((_OF_SPEC, made and made.spec), (_OF_CONTENT, made and made.content), (_OF_VERSION, version))
    values: dict[str, Any] = {
        key: getattr(part, key, None) for keys, part in (*parts, (_OF_COUNTS, counts)) for key in keys
    }
    return VersionOverview(
        **values,
        state=str(version.state),
        commit=version.commit_sha,
        branch=version.branch_name,
        words_only=version.has_words_only,
        removed_after=removed_after,
    )


def _progress(building: VersionOverview, live: VersionOverview | None, run: Run | None) -> BuildProgress:
    reported: Mapping[str, Any] = (current_progress(run) if run is not None else None) or {}
    done = building.files + building.skipped
    # What the run still has to read.
    left = int(reported.get("files_total") or 0) - int(reported.get("files_done") or 0)
    return BuildProgress(
        files_done=done,
        files_total=max(done, done + left, live.files + live.skipped if live is not None else 0),
        chunks_done=building.chunks,
        chunks_total=max(building.chunks, live.chunks if live is not None else 0),
        run=run.id if run is not None else None,
        **{key: reported.get(key) for key in ("phase", "files_per_second", "eta_seconds")},
    )
