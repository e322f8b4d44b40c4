"""The program's parts, built once from settings and registry, and handed down; whoever opens it closes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from pydantic import SecretStr

from reposync.config.configuration import Configuration
from reposync.config.registry import Registry
from reposync.config.settings import make_state_dir
from reposync.embedding.factory import open_embedder
from reposync.embedding.port import Embedder
from reposync.embedding.settings import EmbedderConfig
from reposync.errors import UsageError
from reposync.scheduling.catalog import Catalog, Target
from reposync.scheduling.execute import LEASE_SECONDS, execute
from reposync.scheduling.presence import Presence
from reposync.sources.factory import open_source
from reposync.store.database import Database
from reposync.store.manifest import Manifests
from reposync.store.repositories import Repositories, Repository, unregistered
from reposync.store.runs import Run, Runs
from reposync.store.status import FINAL, RunStatus, RunTrigger
from reposync.sync.lease import Lease
from reposync.sync.preview import Preview, preview
from reposync.sync.progress import RunProgress, Watch
from reposync.sync.run import SyncParts, SyncRun
from reposync.sync.search import checked_text, make_query, search_collections
from reposync.vectors.port import Index, SearchHit
from reposync.vectors.settings import IndexSettings

# How often a command looks at a run that another process executes.
FOLLOW_SECONDS = 0.3


@dataclass
class Application:
    """Built by `open_application`. Indexes and the embedder are opened when they are first asked for."""

    configuration: Configuration
    database: Database
    repositories: Repositories
    manifests: Manifests
    runs: Runs
    catalog: Catalog
    presence: Presence
    resources: contextlib.AsyncExitStack
    _embedder: Embedder | None = None
    indexes: dict[str, Index] = field(default_factory=dict)

    def embedder(self) -> Embedder:
        if self._embedder is None:
            self._embedder = open_embedder(embedder_config(self.configuration.registry))
            self.resources.push_async_callback(self._embedder.close)
        return self._embedder

    def index(self, collection: str) -> Index:
        if collection not in self.indexes:
            # Imported where it is needed: Qdrant's client takes a second, and a list of repositories needs none.
            from reposync.vectors.factory import open_index

            index = self.indexes[collection] = open_index(index_settings(self.configuration, collection))
            self.resources.push_async_callback(index.close)
        return self.indexes[collection]

    @contextlib.asynccontextmanager
    async def parts(self, target: Target, row: Repository | None) -> AsyncGenerator[SyncParts, None]:
        """What a run of `target` works with; its source is closed at the end."""
        source = open_source(target.source(row))
        try:
            yield SyncParts(
                source,
                self.embedder(),
                self.index(target.repository.collection),
                self.repositories,
                self.manifests,
                self.runs,
            )
        finally:
            await source.close()

    async def sync(self, target: Target, *, full: bool, approved: bool, progress: RunProgress, watch: Watch) -> Run:
        """Queue a run of `target`, and execute it here, or follow it where another process does. Returns it as it
        ended. Raises LeaseLost, CancelledError."""
        # Opened before the run begins, whose duration is not to count the imports.
        self.index(target.repository.collection)
        await self._leave_former_collection(target)
        row = await self.repositories.register(target.registration())
        run, _ = await self.runs.enqueue(row.name, RunTrigger.COMMAND, full=full, approved=approved)
        while run.status not in FINAL:
            claimed = await self._claim(row.id)
            if claimed is None:
                await asyncio.sleep(FOLLOW_SECONDS)
            else:
                ended = await self._execute(target, claimed, progress, watch)
                if ended.id == run.id:
                    return ended
            run = await self.runs.get(run.id)
        return run

    async def _leave_former_collection(self, target: Target) -> None:
        """A repository that is configured to be in another collection now must not be found in the one before. Done
        before the row names the new one: a process that dies in between does it again."""
        rows = [row for row in await self.repositories.list() if row.name == target.name]
        if rows and rows[0].collection != target.repository.collection:
            former = self.index(rows[0].collection)
            if await former.spec() is not None:
                await former.remove_repository(rows[0].id)

    async def _claim(self, repository_id: str) -> Run | None:
        """The run of this repository that comes first: one that lost its worker, before one that waits. A worker that
        was killed on this machine is known to be gone, and its lease need not run out."""
        for run in await self.runs.active(repository_id):
            worker = run.worker if run.status is RunStatus.RUNNING else None
            if worker is not None and await asyncio.to_thread(self.presence.is_dead, worker):
                await self.runs.expire(run)
            if claimed := await self.runs.claim(self.presence.name, LEASE_SECONDS, run_id=run.id):
                return claimed
        return None

    async def preview(self, target: Target, *, full: bool, progress: RunProgress, watch: Watch) -> Preview:
        """What `sync` would do now. Writes nothing."""
        rows = [row for row in await self.repositories.list() if row.name == target.name]
        row = rows[0] if rows else unregistered(target.registration())
        async with self.parts(target, row) as parts:
            return await preview(parts, target.settings(), row, full=full, progress=progress, watch=watch)

    async def search(
        self,
        text: str,
        *,
        repository: str | None = None,
        path_glob: str | None = None,
        language: str | None = None,
        limit: int = 10,
    ) -> list[SearchHit]:
        """Best first, over all collections that repositories are in. Raises RepositoryNotFound, UsageError, and
        IndexMismatch where a collection holds vectors of another model than the configured one."""
        text = checked_text(text)
        rows = await self.repositories.list()
        if repository is not None:
            rows = [await self.repositories.get(repository)]
        indexes = [self.index(name) for name in sorted({row.collection for row in rows})]
        specs = {index: spec for index in indexes if (spec := await index.spec()) is not None}
        if not specs:
            raise UsageError("Nothing is indexed yet.", remedy="`reposync sync .` indexes the repository you are in.")
        configured = await self.embedder().spec(next(iter(specs.values())))
        for index in specs:
            await index.ensure(configured)
        query = await make_query(self.embedder(), configured, text, repository, path_glob, language, limit)
        return await search_collections(list(specs), query)

    async def _execute(self, target: Target, run: Run, progress: RunProgress, watch: Watch) -> Run:
        row = await self.repositories.by_id(run.repository_id)
        async with self.parts(target, row) as parts:

            def make(lease: Lease) -> SyncRun:
                return SyncRun(parts, target.settings(), row, run, lease, progress=progress, watch=watch)

            return await execute(self.runs, run, make, progress=progress)


@contextlib.asynccontextmanager
async def open_application(configuration: Configuration) -> AsyncGenerator[Application, None]:
    """Open the database and bring its schema up to date. Raises StoreUnavailable."""
    settings = configuration.settings
    await asyncio.to_thread(make_state_dir, settings)
    async with contextlib.AsyncExitStack() as resources:
        database = await Database.open(settings.database_url)
        resources.push_async_callback(database.close)
        await database.upgrade()
        presence = resources.enter_context(Presence(settings.state_dir, settings.pod_name))
        repositories = Repositories(database)
        yield Application(
            configuration,
            database,
            repositories,
            Manifests(database),
            Runs(database),
            Catalog(configuration.registry, repositories),
            presence,
            resources,
        )


def embedder_config(registry: Registry) -> EmbedderConfig:
    each = registry.embedding
    return EmbedderConfig(
        provider=each.provider,
        url=each.url,
        model=each.model,
        dimensions=each.dimensions,
        api_key=_plain(each.api_key),
        window=each.window,
        batch=each.batch,
        concurrency=each.concurrency,
    )


def index_settings(configuration: Configuration, collection: str) -> IndexSettings:
    qdrant = configuration.qdrant
    return IndexSettings(
        url=qdrant.url,
        api_key=_plain(qdrant.api_key),
        collection=collection,
        state_dir=configuration.settings.state_dir,
        timeout_seconds=qdrant.timeout_seconds,
        shard_number=qdrant.shard_number,
        replication_factor=qdrant.replication_factor,
        write_consistency_factor=qdrant.write_consistency_factor,
        quantization=qdrant.quantization,
        on_disk_payload=qdrant.on_disk_payload,
    )


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None
