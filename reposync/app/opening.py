"""Opening the application: its database, with the schema of this program, its registry, and its locks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from reposync.app.application import Application
from reposync.catalog.apply import registry_in_force
from reposync.catalog.targets import Catalog
from reposync.clock import Clock
from reposync.config.settings import Configuration, Settings, make_state_dir
from reposync.errors import RepoSyncError
from reposync.runs.reporting import Observer
from reposync.store.database import Database
from reposync.store.history import RunHistory
from reposync.store.manifest import Manifests
from reposync.store.registry import RegistryDocuments
from reposync.store.repositories import Repositories
from reposync.store.runs import Runs
from reposync.store.versions import Versions
from reposync.telemetry.redaction import Secrets

if TYPE_CHECKING:
    from reposync.runs.redis_locks import RedisLocks


@contextlib.asynccontextmanager
async def open_application(
    settings: Settings,
    observer: Observer | None = None,
    *,
    secrets: Secrets | None = None,
    prepare: Callable[[Database], Awaitable[None]] | None = None,
    with_engine: bool = False,
    clock: Clock | None = None,
    migrates: bool = True,
) -> AsyncGenerator[Application, None]:
    """Open the database, upgrade its schema (if it `migrates`; else it has to be current), call `prepare`, and read the
    current registry. `secrets`: collects all secrets of
    this process; they are redacted from errors that leave the block. `with_engine`: start the embedded engine, if it is
    configured, during the imports. `clock`: this machine's.

    Raises StoreUnavailable, ConfigError."""
    await asyncio.to_thread(make_state_dir, settings)
    secrets = Secrets.of_environment() if secrets is None else secrets
    async with contextlib.AsyncExitStack() as resources:
        resources.enter_context(_redacted(secrets))
        database = await Database.open(settings.database_url, clock=clock)
        resources.push_async_callback(database.close)
        observer = observer or Observer()
        if migrates:
            await database.upgrade(report=observer.store_waited)
        else:
            (await database.schema()).require(database.where)
        if prepare is not None:
            await prepare(database)
        registry = await registry_in_force(database)
        configuration = Configuration(settings, registry)
        secrets.know(configuration.secrets())
        if with_engine:
            await asyncio.to_thread(start_engine, configuration)
        app = application_of(configuration, database, observer, secrets, resources)
        app.catalog = Catalog(registry, app.repositories, await _unapplied(database, settings))
        yield app


def application_of(
    configuration: Configuration,
    database: Database,
    observer: Observer,
    secrets: Secrets,
    resources: contextlib.AsyncExitStack,
) -> Application:
    """Asks nothing of the database, and opens nothing. `resources` closes what is opened later."""
    settings = configuration.settings
    worker = f"{settings.pod_name}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
    repositories = Repositories(database)
    runs = Runs(database, redact=secrets.redact, on_lost=observer.attempt_lost)
    history = RunHistory(database)
    locks = _open_locks(configuration, history, observer)
    if locks is not None:
        resources.push_async_callback(locks.close)
    catalog = Catalog(configuration.registry, repositories)
    stores = (database, repositories, Manifests(database), Versions(database), runs, history, catalog)
    return Application(configuration, *stores, worker, locks, observer, secrets, resources)


@contextlib.contextmanager
def _redacted(secrets: Secrets) -> Iterator[None]:
    try:
        yield
    except RepoSyncError as error:
        error.redact(secrets.redact)
        raise


async def _unapplied(database: Database, settings: Settings) -> Path | None:
    path, current = settings.config_path, await RegistryDocuments(database).current()
    is_applied = path is None or (current is not None and current.path == str(path.absolute()))
    return None if is_applied else path


def start_engine(configuration: Configuration) -> None:
    if configuration.qdrant.url is None:
        from reposync.vectors.embedded import EmbeddedEngine

        EmbeddedEngine(configuration.settings.state_dir).ensure_started()


def _open_locks(configuration: Configuration, history: RunHistory, observer: Observer) -> RedisLocks | None:
    url = configuration.settings.redis_url
    if url is None:
        return None
    # Imported here: the client takes 0.1 s.
    from reposync.runs.redis_locks import RedisLocks

    daemon = configuration.registry.daemon
    return RedisLocks(url, history, watchdog_seconds=daemon.lock_watchdog_seconds, observer=observer)
