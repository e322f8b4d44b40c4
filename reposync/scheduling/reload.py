"""From the registry file to the database: what is registered, what changed, what left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from reposync.config.configuration import Configuration
from reposync.errors import ConfigError, StoreUnavailable
from reposync.scheduling.application import Application
from reposync.scheduling.catalog import CONFIG
from reposync.store.repositories import Registration, Repository
from reposync.telemetry.health import Health

log = structlog.get_logger(__name__)

# A mounted ConfigMap takes a minute to arrive; a person who saved a file looks after some seconds.
LOOK_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 30.0

Signature = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Reconciled:
    registered: int
    deactivated: int


async def reconcile(app: Application) -> Reconciled:
    """Make the database's rows say what the registry says. What is there already is not written. Rows that left the
    registry are deactivated; their index and history stay."""
    rows = {row.name: row for row in await app.repositories.list()}
    targets = {target.name: target.registration() for target in app.catalog.configured()}
    # What was added by command goes by the file's defaults too.
    for row in rows.values():
        if row.name not in targets and row.definition is not None and row.group_key is None:
            with contextlib.suppress(ConfigError):
                targets[row.name] = app.catalog.of_row(row).registration()
    changed = [
        registration for name, registration in targets.items() if name not in rows or differs(registration, rows[name])
    ]
    await app.repositories.register_all(changed)
    deactivated = 0
    for row in rows.values():
        if row.origin == CONFIG and row.name not in targets and row.is_active:
            await app.repositories.deactivate(row.name)
            deactivated += 1
    return Reconciled(len(changed), deactivated)


def differs(registration: Registration, row: Repository) -> bool:
    left = not row.is_active and row.paused_reason is None
    said = {key: value for key, value in asdict(registration).items() if key != "project_id" or value}
    return left or any(getattr(row, key) != value for key, value in said.items())


class RegistryWatcher:
    """Looks at the file every two seconds. Not by inotify: a ConfigMap is swapped by a symbolic link some folders up,
    and network file systems tell nothing."""

    def __init__(
        self,
        app: Application,
        health: Health,
        *,
        on_reload: Callable[[str], None],
        on_registry: Callable[[], Awaitable[None]],
    ) -> None:
        self._app = app
        self._health = health
        self._on_reload = on_reload
        self._path = app.configuration.settings.config_path
        self._on_registry = on_registry
        # Taken before the first look, so that a change in between is seen as one.
        self._seen = signature_of(self._path)

    async def run(self) -> None:
        """Until cancelled."""
        await self._reconcile()
        self._health.report("registry", "ok")
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            signature = await asyncio.to_thread(signature_of, self._path)
            if signature == self._seen:
                continue
            if await self._reload():
                self._seen = signature

    async def _reload(self) -> bool:
        """Whether the file is worth no further look until it changes again."""
        try:
            fresh = await asyncio.to_thread(Configuration.load, self._app.configuration.settings)
        except ConfigError as error:
            self._on_reload("invalid")
            problems: Any = getattr(error, "problems", None) or [error]
            log.error("the registry file is wrong; the one before stays in force", problems=[str(p) for p in problems])
            self._health.report("registry", "degraded", f"The file is wrong, the one before is in force: {problems[0]}")
            # A file that is being replaced is not there for a moment.
            return self._path is None or self._path.exists()
        self._app.adopt(self._lasting(fresh))
        await self._reconcile()
        self._on_reload("ok")
        self._health.report("registry", "ok")
        return True

    def _lasting(self, fresh: Configuration) -> Configuration:
        """With those sections of before that parts in use were built from."""
        before = self._app.configuration.registry
        allowed = {"allow_local_sources": fresh.registry.http.allow_local_sources}
        http = before.http.model_copy(update=allowed)
        kept = {"embedding": before.embedding, "qdrant": before.qdrant, "http": http}
        if any(getattr(fresh.registry, key) != value for key, value in kept.items()):
            log.warning("a change of `embedding`, `qdrant` or `http` takes effect when the daemon starts again")
        return Configuration(fresh.settings, fresh.registry.model_copy(update=kept))

    async def _reconcile(self) -> None:
        pause = 0.5
        while True:
            try:
                done = await reconcile(self._app)
                await self._on_registry()
            except StoreUnavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            log.info(
                "registry in force",
                file=str(self._path) if self._path else None,
                repositories=len(self._app.catalog.configured()),
                registered=done.registered,
                deactivated=done.deactivated,
            )
            return


def signature_of(path: Path | None) -> Signature:
    """Changes when the content may have: through symbolic links, as a ConfigMap is mounted."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
