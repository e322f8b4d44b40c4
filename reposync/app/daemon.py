"""`reposync serve`: the tasks of a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog

from reposync.app.application import Application
from reposync.app.health_checks import HealthChecks
from reposync.app.index_overview import collection_changes, failed_files
from reposync.app.opening import open_application
from reposync.app.registry_watcher import RegistryWatcher, applied_by
from reposync.app.worker import WorkerPool
from reposync.catalog.groups import Discovery
from reposync.catalog.overview import late_repositories
from reposync.clock import Clock
from reposync.config.loading import LoadedRegistry
from reposync.config.registry import Registry
from reposync.config.sections import DaemonConfig
from reposync.config.settings import Configuration, Settings
from reposync.errors import Starting, StoreUnavailable, VectorIndexError
from reposync.garbage import collect_as_usual
from reposync.runs.reporting import Observer
from reposync.scheduling import CronScheduler
from reposync.store.credentials import Credentials
from reposync.store.index_queries import version_summaries
from reposync.store.notifications import listen
from reposync.store.status import RunStatus
from reposync.store.tables import VersionState
from reposync.store.ticks import TickOutcome, Ticks
from reposync.store.workers import StoredEndedSessions
from reposync.supervision import Backoff, end, keep
from reposync.telemetry.health import Health
from reposync.telemetry.metrics import Metrics, watch_loop
from reposync.telemetry.redaction import Secrets
from reposync.vectors.embedded import EmbeddedEngine

log = structlog.get_logger(__name__)

# Polling interval for groups that are due.
DISCOVERY_SECONDS = 5.0
_PURGE_SECONDS = 3600.0
_LONGEST_PAUSE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Roles:
    """What this pod does besides answering HTTP requests."""

    workers: bool = True
    scheduler: bool = True


class Daemon:
    """`run` once; `stop` from a signal handler. `app` is set as soon as the database is available."""

    def __init__(
        self,
        settings: Settings,
        loaded: LoadedRegistry,
        roles: Roles,
        metrics: Metrics,
        health: Health,
        secrets: Secrets,
        clock: Clock | None = None,
    ) -> None:
        """`loaded`: the registry file, which this process applies. `clock`: this machine's."""
        self.app: Application | None = None
        self._secrets = secrets
        secrets.know(Configuration(settings, loaded.registry).secrets())
        self._settings = settings
        self._clock = clock
        self._watcher = RegistryWatcher(
            loaded, health, by=applied_by(settings.pod_name), on_reload=partial(metrics.count, "registry_reloads")
        )
        self._roles = roles
        self._metrics = metrics
        self._health = health
        self._stop, self._stop_now = asyncio.Event(), asyncio.Event()
        self.ended_sessions = StoredEndedSessions(lambda: self.application().database)

    def application(self) -> Application:
        """Raises Starting, or StoreUnavailable if the database did not answer yet."""
        if self.app is not None:
            return self.app
        if self._health.snapshot().components["database"].status == "down":
            raise StoreUnavailable("The daemon waits for its database.", remedy="Try again in a moment.")
        raise Starting("The daemon is starting.", remedy="Try again in a moment.")

    def stop(self) -> None:
        """The first call: shut down. The second call: release active runs at once."""
        (self._stop_now if self._stop.is_set() else self._stop).set()
        log.info("stopping", at_once=self._stop_now.is_set())
        if self.app is not None:
            self.app.database.notify()  # the workers

    def read_registry(self) -> None:
        """Read the registry file at once, also if it seems unchanged."""
        log.info("reading the registry file again")
        self._watcher.read_again()

    async def run(self, resources: contextlib.AsyncExitStack) -> None:
        """Until `stop`. `resources` closes what it opens. Raises RepoSyncError if it cannot start."""
        opening = asyncio.create_task(self._open(resources))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.is_set():
                self.app = opening.result()
                await self._serve(self.app)
        finally:
            await end(opening, stopping)

    async def _open(self, stack: contextlib.AsyncExitStack) -> Application:
        """Waits for the database: pods and their database start in any order."""
        backoff = Backoff(0.5, _LONGEST_PAUSE_SECONDS)
        while True:
            try:
                await asyncio.to_thread(_import_parts, self._watcher.loaded.registry)
                observer = Observer(self._metrics, self._health)
                opening = open_application(
                    self._settings,
                    observer,
                    secrets=self._secrets,
                    prepare=self._watcher.apply,
                    with_engine=True,
                    clock=self._clock,
                )
                app = await stack.enter_async_context(opening)
            except StoreUnavailable as error:
                self._health.report("database", "down", str(error))
                await backoff.wait()
            else:
                self._health.report("database", "ok")
                # A full collection of what is loaded by now takes 140 ms.
                gc.collect()
                collect_as_usual()
                stack.callback(gc.unfreeze)
                return app

    async def _serve(self, app: Application) -> None:
        pool = WorkerPool(
            app,
            self._config,
            stop=self._stop,
            stop_now=self._stop_now,
            on_load=self._metrics.workers,
            report=partial(self._report, "workers"),
        )
        on_result = partial(self._metrics.count, "group_discoveries")
        discovery = Discovery(app.database, app.observer, on_result)
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "registry": lambda: self._watcher.run(app, discovery.list_again),
            "health": HealthChecks(app, self._health, self._secrets).run,
            "lag": lambda: watch_loop(self._metrics),
            "retention": lambda: _every(_PURGE_SECONDS, lambda: self._purge(app)),
            "audit": app.audit.run,
            "run log": app.run_log.run,
        }
        if app.database.connect is not None:
            tasks["news"] = lambda: listen(app.database)
        if self._roles.scheduler:
            cron = CronScheduler(Ticks(app.database), self._config, on_ticks=self._count_ticks)
            tasks |= {
                "cron": cron.run,
                "groups": lambda: _every(DISCOVERY_SECONDS, lambda: discovery.run_due(app.configuration.registry)),
            }
        async with asyncio.TaskGroup() as group:
            # A task that ends by a defect is started again.
            kept = [
                group.create_task(keep(name, work, report=partial(self._report, name)), name=name)
                for name, work in tasks.items()
            ]
            log.info("serving", workers=self._roles.workers, scheduler=self._roles.scheduler)
            try:
                with app.run_log.listening(self._secrets, self._settings.pod_name):
                    await (pool.run() if self._roles.workers else self._stop.wait())
            finally:
                for task in kept:
                    task.cancel()

    def _report(self, task: str, reason: str | None) -> None:
        if reason is None:
            self._health.forget(f"task:{task}")
        else:
            self._health.report(f"task:{task}", "degraded", reason)

    def _config(self) -> DaemonConfig:
        registry = self.app.configuration.registry if self.app is not None else self._watcher.loaded.registry
        return registry.daemon

    def _count_ticks(self, outcome: TickOutcome) -> None:
        for name in ("queued", "joined", "missed", "failed"):
            if count := getattr(outcome, name):
                self._metrics.count("ticks", name, by=count)
        if outcome.missed:
            log.warning("ticks were missed", missed=outcome.missed)

    async def _purge(self, app: Application) -> None:
        days = self._config().history_days
        if days is not None and (gone := await app.history.purge(app.history.now() - timedelta(days=days))):
            log.info("history shortened", runs=gone, older_than_days=days)
        kept = app.configuration.registry.audit.keep_days
        if kept is not None and (gone := await app.audit_log.purge(app.now() - timedelta(days=kept))):
            log.info("audit shortened", entries=gone, older_than_days=kept)
        await Credentials(app.database).purge()

    async def refresh_metrics(self) -> None:
        """Gauges that are read from the database for each scrape. Raises StoreUnavailable."""
        app = self.app
        if app is None:
            return
        queue = await app.history.queue()
        waiting = {str(status): queue.counts.get(status, 0) for status in _WATCHED}
        self._metrics.show("queue_runs", waiting)
        self._metrics.show("queue_oldest_seconds", queue.oldest_seconds or 0)
        states = await app.repositories.states()
        counted = Counter(state.state for state in states)
        self._metrics.show("repositories", {word: counted[word] for word in ("active", "paused", "inactive")})
        # A paused repository is expected to become outdated.
        self._metrics.freshness({each.name: each.last_sync_at for each in states if each.is_active}, app.history.now())
        behind = {each.name: each.behind_since.timestamp() for each in states if each.is_active and each.behind_since}
        self._metrics.show("repository_behind_since_timestamp_seconds", behind)
        self._metrics.show("repository_late", dict.fromkeys(await late_repositories(states, app.history.now()), 1))
        self._metrics.show("clock_skew_seconds", app.database.clock.skew_seconds)
        self._metrics.show("workers", len(await app.workers.alive()))
        versions = await version_summaries(app.database)
        self._metrics.show("files_failed", await failed_files(app, versions))
        found = await app.findings.counts()
        self._metrics.show("secrets_found", {each.name: found[each.id] for each in states if each.id in found})
        counts = Counter(version.state for version in versions)
        self._metrics.show("index_versions", dict.fromkeys(map(str, VersionState), 0) | counts)
        self._metrics.show("index_points", await _points(app, {version.collection for version in versions}))
        if app.configuration.qdrant.url is None:
            folder = EmbeddedEngine(app.configuration.settings.state_dir).folder
            self._metrics.show("index_size_bytes", await asyncio.to_thread(_size_bytes, folder))
        changes = collection_changes(app, versions)
        self._metrics.show(
            "index_change_repositories",
            {(each.collection, state): count for each in changes for state, count in each.repositories.items()},
        )


async def _points(app: Application, collections: Iterable[str]) -> dict[str, float]:
    """The number of points of each collection that can be asked: the figures of the database do not wait for Qdrant."""
    found: dict[str, float] = {}
    for name in sorted(collections):
        with contextlib.suppress(VectorIndexError, TimeoutError):
            async with asyncio.timeout(_POINTS_SECONDS):
                found[name] = await app.index(name).size()
    return found


def _size_bytes(folder: Path) -> int:
    """What the files take on disk: the engine makes sparse ones."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # deleted since it was listed
            total += path.lstat().st_blocks * 512
    return total


_POINTS_SECONDS = 0.5
_WATCHED = (RunStatus.QUEUED, RunStatus.RETRYING, RunStatus.RUNNING, RunStatus.BLOCKED)


async def _every(seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """At once, and then about that often, whether or not the database answers."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            await work()
        await asyncio.sleep(seconds * random.uniform(0.8, 1.2))  # noqa: S311


def _import_parts(registry: Registry) -> None:
    """Import what runs need. Called in a thread, because together these imports take seconds."""
    importlib.import_module("qdrant_client")
    parts = ["vectors.index", "sources.remote", "sources.gitlab", "sync.sync_run", "content.chunking"]
    if registry.embedding.provider == "static":
        parts.append("embedding.word_table")
    for module in parts:
        importlib.import_module(f"reposync.{module}")
    if registry.embedding.provider == "local":
        with contextlib.suppress(ImportError):  # the readiness check says what to install
            importlib.import_module("reposync.embedding.local_model")
