"""The objects of the program, built once from settings and registry and passed down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from reposync.app.catalogue_names import CatalogueNames
from reposync.app.limits import MAX_WAITING, MAX_WAITING_GREPS, ConcurrencyLimit
from reposync.catalog.targets import Catalog, SyncTarget
from reposync.config.registry import Registry
from reposync.config.secret_fields import known_text
from reposync.config.sections import EmbeddingConfig
from reposync.config.settings import Configuration
from reposync.embedding.factory import open_embedder
from reposync.embedding.port import Embedder, EmbeddingSpec
from reposync.embedding.settings import former_config
from reposync.errors import RepositoryLeft, RepositoryNotFound
from reposync.runs.reporting import Observer
from reposync.store.database import Database
from reposync.store.history import RunHistory
from reposync.store.manifest import Manifests
from reposync.store.notifications import RowWatch
from reposync.store.repositories import Repositories
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunStatus
from reposync.store.versions import Versions
from reposync.store.workers import Workers
from reposync.sync.lease import Lease
from reposync.sync.progress import RunProgress, Watch
from reposync.telemetry.redaction import Secrets
from reposync.vectors.port import IndexSettings
from reposync.visible import Visible

# A search or a list needs neither the sources nor the sync, so these are imported where they are used.
if TYPE_CHECKING:
    import httpx

    from reposync.app.audit import AuditWriter
    from reposync.app.commit_wait import SearchableCommits
    from reposync.app.run_log import RunLog
    from reposync.runs.endings import ExecutionPolicy
    from reposync.runs.execution import Execution
    from reposync.runs.redis_locks import RedisLocks
    from reposync.runs.removal import RemovalRun
    from reposync.search.scope import LiveVersions
    from reposync.search.searching import Searching
    from reposync.sources.port import Source
    from reposync.store.audit import AuditLog
    from reposync.store.evaluations import Evaluations
    from reposync.store.secret_findings import SecretFindings
    from reposync.sync.content_pool import ContentPool
    from reposync.sync.preview import Preview
    from reposync.sync.sync_run import SyncRun
    from reposync.sync.target import SyncParts
    from reposync.vectors.index import QdrantIndex

# Timeout of a search for a former model.
_IMPATIENT_SECONDS = 3.0
# Applications of actors that are kept: of those who have asked lately.
_MOST_LIMITED = 64
# What all actors share: the limits of what is done at once, and the query over runs that are followed.
_SHARED = ("searches", "greps", "replays", "followed_runs", "workers", "live", "audit", "run_log")


@dataclass
class Application:
    """Built by `open_application`. Indexes and the embedder are opened when they are first used."""

    configuration: Configuration
    database: Database
    repositories: Repositories
    manifests: Manifests
    versions: Versions
    runs: Runs
    history: RunHistory
    catalog: Catalog
    worker: str
    """The name of this process in the rows of its runs: pod, process, and a unique part."""
    locks: RedisLocks | None
    observer: Observer
    secrets: Secrets
    """All secrets of this process, which are redacted from logs and messages."""
    resources: contextlib.AsyncExitStack
    _embedders: dict[EmbeddingConfig, Embedder] = field(default_factory=dict)
    indexes: dict[str, QdrantIndex] = field(default_factory=dict)
    index_transport: httpx.AsyncBaseTransport | None = None
    """Replaces the connections to Qdrant, in tests."""
    _limited: dict[Visible, Application] = field(default_factory=dict)

    def limited(self, visible: Visible) -> Application:
        """This application as if no other repositories were registered. It shares with this one what is dear and what
        is bounded, and changes nothing in the database."""
        if visible.is_everything or visible is self.database.visible:
            return self
        if (kept := self._limited.pop(visible, None)) is None:
            kept = self._limited_to(visible)
        self._limited[visible] = kept
        if len(self._limited) > _MOST_LIMITED:
            del self._limited[next(iter(self._limited))]
        return kept

    def _limited_to(self, visible: Visible) -> Application:
        database = self.database.limited(visible)
        repositories = Repositories(database)
        view = replace(
            self,
            database=database,
            repositories=repositories,
            manifests=Manifests(database),
            versions=Versions(database),
            runs=Runs(database),
            history=RunHistory(database),
            catalog=replace(self.catalog, repositories=repositories),
            _limited={},
        )
        shared = {name: getattr(self, name) for name in _SHARED}
        vars(view).update(shared, searching=self.searching.of(view), commits=self.commits.of(view))
        return view

    def now(self) -> datetime:
        """By the database's clock."""
        return self.database.clock.now()

    def embedder(self) -> Embedder:
        """The embedder of the configured model."""
        return self._opened(self.configuration.registry.embedding)

    def embedder_for(self, spec: EmbeddingSpec) -> Embedder | None:
        """The embedder of a version's model, for searches: it does not retry. None if its address is unknown, because
        it had a different provider."""
        config = former_config(self.configuration.registry.embedding, spec)
        impatient = {"attempts": 1, "timeout_seconds": _IMPATIENT_SECONDS}
        return None if config is None else self._opened(config.model_copy(update=impatient))

    def _opened(self, config: EmbeddingConfig) -> Embedder:
        if config not in self._embedders:
            self._embedders[config] = open_embedder(config, self.observer.embedded)
            self.resources.push_async_callback(self._embedders[config].close)
        return self._embedders[config]

    def borrow(self, owner: Application) -> None:
        """Use the embedder and the workers of a different application with the same registry, which closes them."""
        self._embedders = {self.configuration.registry.embedding: owner.embedder()}
        self.content = owner.content

    def index(self, collection: str) -> QdrantIndex:
        """The index of a physical collection, or of an alias."""
        if collection not in self.indexes:
            # Imported here: a list of repositories needs neither httpx nor numpy.
            from reposync.vectors.index import QdrantIndex

            settings = IndexSettings(collection, self.configuration.settings.state_dir, self.configuration.qdrant)
            index = QdrantIndex(settings, transport=self.index_transport)
            self.indexes[collection] = index
            self.resources.push_async_callback(index.close)
        return self.indexes[collection]

    def adopt(self, registry: Registry) -> None:
        """Use a new registry from now on; active runs keep the one that they began with."""
        self.configuration = replace(self.configuration, registry=registry)
        self.secrets.know(self.configuration.secrets())
        self.catalog = Catalog(registry, self.repositories)
        self._limited.clear()

    @contextlib.asynccontextmanager
    async def parts(self, target: SyncTarget, *, repair: bool = False) -> AsyncGenerator[SyncParts, None]:
        """The objects of a run of `target`; what it opened is closed at the end. `repair`: look for points in the other
        collections too."""
        from reposync.sync.target import SyncParts

        async with contextlib.AsyncExitStack() as opened:
            source = self.source(target)
            opened.push_async_callback(source.close)

            def embedder_for(spec: EmbeddingSpec) -> Embedder | None:
                # A new one: an embedder asks its server only once, which may serve a different model by now.
                if (config := former_config(self.configuration.registry.embedding, spec)) is None:
                    return None
                embedder = open_embedder(config, self.observer.embedded)
                opened.push_async_callback(embedder.close)
                return embedder

            yield SyncParts(
                target.row,
                target.settings(await self.findings.key()),
                source,
                self.embedder(),
                embedder_for,
                self.index,
                target.repository.collection,
                self.manifests,
                self.versions,
                self.runs,
                self.findings,
                self.content,
                keep_retired_seconds=self.configuration.registry.index.keep_retired_seconds,
                elsewhere=sorted(await self.collections()) if repair else (),
            )

    def source(self, target: SyncTarget) -> Source:
        from reposync.sources.factory import open_source

        spec = target.source()
        if password := known_text(target.repository.password):
            self.secrets.know([password])
        return open_source(spec, observer=self.observer)

    async def collections(self) -> set[str]:
        """All physical collections that repositories are in, or are configured for."""
        names = {row.collection for row in await self.repositories.list()}
        behind = [await self.index(name).resolve() for name in sorted(names)]
        return {each.physical for each in behind if each is not None} | await self.versions.physical_collections()

    def execution(self, run: Run, policy: ExecutionPolicy, *, claimed_since: float | None = None) -> Execution:
        """The execution of a run that this process has claimed. `claimed_since`: see `Execution`."""
        from reposync.runs.execution import Execution

        return Execution(self.runs, run, self.locks, policy, self.observer, claimed_since=claimed_since)

    async def execute(self, execution: Execution, watch: Watch = lambda _: None) -> Run:
        """See `Execution.perform`. What is synced is the definition at this moment, and not at the request."""
        run = execution.run
        if run.removal:
            return await self._remove(execution)
        from reposync.sync.sync_run import SyncRun

        async with contextlib.AsyncExitStack() as stack:

            async def make(lease: Lease) -> SyncRun:
                target = await self._definition(run)
                parts = await stack.enter_async_context(self.parts(target, repair=run.repair))
                execution.progress.watch = watch
                return SyncRun(parts, run, lease, execution.progress)

            return await execution.perform(make)

    async def _definition(self, run: Run) -> SyncTarget:
        """The settings and, in the same row, the generation that `publish` compares. Raises RepositoryLeft, and what
        `Catalog.of_row` raises."""
        try:
            row = await self.repositories.by_id(run.repository_id)
        except RepositoryNotFound as error:
            raise RepositoryLeft(str(error)) from error
        if row.has_left:
            raise RepositoryLeft(f"Repository {run.repository!r} is no longer in the configuration.")
        return self.catalog.of_row(row)

    async def _remove(self, execution: Execution) -> Run:
        from reposync.runs.removal import RemovalRun

        run = execution.run

        async def make(lease: Lease) -> RemovalRun:
            try:
                row = await self.repositories.by_id(run.repository_id)
                versions = await self.versions.of(row.id)
                places = {(row.collection, row.id)} | {(version.physical, version.id) for version in versions}
            except RepositoryNotFound:
                row = None
                places = {(physical, run.repository_id) for physical in await self.collections()}
            indexes = [(self.index(physical), version_id) for physical, version_id in sorted(places)]
            existing = [(index, version_id) for index, version_id in indexes if await index.spec() is not None]
            return RemovalRun(row, existing, self.repositories, self.manifests, run, lease)

        return await execution.perform(make)

    async def claim(self, repository_id: str, run_id: str | None = None) -> Run | None:
        """Claim the first run of this repository, or only the one with `run_id`. While a run is running, it is the only
        one: if its lease ends right now, the next call takes it over before the others."""
        from reposync.runs.endings import ExecutionPolicy

        for run in await self.history.active(repository_id):
            if run_id in (None, run.id):
                claimed = await self.runs.claim(self.worker, ExecutionPolicy().lease_seconds, run_id=run.id)
                if claimed is not None or run.status is RunStatus.RUNNING:
                    return claimed
        return None

    async def preview(self, target: SyncTarget, *, full: bool, progress: RunProgress, watch: Watch) -> Preview:
        """What a sync would do. Writes nothing."""
        from reposync.sync.preview import preview

        async with self.parts(target) as parts:
            progress.watch = watch
            return await preview(parts, full=full, progress=progress)

    @cached_property
    def content(self) -> ContentPool:
        """The processes that read files, for all runs of this one."""
        from reposync.sync.content_pool import ContentPool

        pool = ContentPool(rules_folder=self.configuration.settings.state_dir / "secret-rules")
        self.resources.callback(pool.close)
        return pool

    @cached_property
    def replays(self) -> asyncio.Lock:
        """Held by the one replay of this process: each has an engine of its own."""
        return asyncio.Lock()

    @cached_property
    def findings(self) -> SecretFindings:
        from reposync.store.secret_findings import SecretFindings

        return SecretFindings(self.database)

    @cached_property
    def evaluations(self) -> Evaluations:
        from reposync.store.evaluations import Evaluations

        return Evaluations(self.database)

    @cached_property
    def audit_log(self) -> AuditLog:
        from reposync.store.audit import AuditLog

        return AuditLog(self.database)

    @cached_property
    def audit(self) -> AuditWriter:
        from reposync.app.audit import AuditWriter

        writer = AuditWriter(self.audit_log, self.observer.audit_lost)
        # A command has no task that writes.
        self.resources.push_async_callback(writer.close)
        return writer

    @cached_property
    def run_log(self) -> RunLog:
        from reposync.app.run_log import RunLog
        from reposync.store.run_log import RunLogs

        return RunLog(RunLogs(self.database), self.now)

    @cached_property
    def workers(self) -> Workers:
        return Workers(self.database)

    @cached_property
    def searches(self) -> ConcurrencyLimit:
        return ConcurrencyLimit(MAX_WAITING, self.configuration.registry.searches)

    @cached_property
    def greps(self) -> ConcurrencyLimit:
        """Apart: they may take seconds each, and searches milliseconds."""
        return ConcurrencyLimit(MAX_WAITING_GREPS)

    @cached_property
    def followed_runs(self) -> RowWatch[Run]:
        return RowWatch(self.history.by_ids)

    @cached_property
    def commits(self) -> SearchableCommits:
        from reposync.app.commit_wait import SearchableCommits

        return SearchableCommits(self)

    @cached_property
    def names(self) -> CatalogueNames:
        return CatalogueNames(self.database)

    @cached_property
    def live(self) -> LiveVersions:
        from reposync.search.scope import LiveVersions

        return LiveVersions(self.database)

    @cached_property
    def searching(self) -> Searching:
        from reposync.search.searching import Searching

        return Searching(self)
