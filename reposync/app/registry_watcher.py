"""The daemon applies its registry file when it changes, and uses the registry that is in force."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import structlog

from reposync.app.application import Application
from reposync.catalog.apply import Applying, Plan, registry_in_force
from reposync.config.loading import LoadedRegistry, load_registry
from reposync.errors import ConfigError, StoreUnavailable
from reposync.store.database import Database
from reposync.store.registry import RegistryDocuments
from reposync.supervision import Backoff
from reposync.telemetry.health import Health, Trouble

log = structlog.get_logger(__name__)

# A ConfigMap takes a minute to be mounted; a person who saved the file expects a reaction within seconds.
LOOK_SECONDS = 2.0
# A name may be freed by its owner.
CONFLICTS_AGAIN_SECONDS = 30.0
_LONGEST_PAUSE_SECONDS = 30.0

Signature = tuple[int, ...] | None
_UNREAD: Signature = ()


class RegistryWatcher:
    """Polls the file. Not by inotify: a ConfigMap is replaced by a symbolic link some folders up, and network file
    systems send no events."""

    def __init__(self, loaded: LoadedRegistry, health: Health, *, by: str, on_reload: Callable[[str], None]) -> None:
        self.loaded = loaded
        self._path = loaded.path
        self._health = health
        self._by = by
        self._on_reload = on_reload
        # Read before the file is applied first, so that a change in between is noticed.
        self._seen = signature_of(self._path)
        self._said = ""
        self._apply_again_at = math.inf
        self._unusable = False
        self._restart = Trouble("the daemon uses the whole registry again")
        self._is_due = asyncio.Event()

    def read_again(self) -> None:
        """Read the file at once, also if it seems unchanged."""
        self._seen = _UNREAD
        self._is_due.set()

    async def apply(self, database: Database, fresh: LoadedRegistry | None = None) -> None:
        """`fresh`: the new content of the file. Raises StoreUnavailable."""
        if self._path is None:
            self._health.report("registry", "ok")
            return
        former = None if fresh is None else self.loaded.digest
        plan = await Applying(database, fresh or self.loaded, by=self._by).apply(instead_of=former)
        self.loaded = fresh or self.loaded
        self._apply_again_at = time.monotonic() + CONFLICTS_AGAIN_SECONDS if plan.conflicts else math.inf
        self._report(plan)

    async def run(self, app: Application, on_registry: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled. `on_registry` is called at the start and whenever a different registry is in force."""
        stamp: Any = None
        files: list[Signature] = []
        backoff = Backoff(0.5, _LONGEST_PAUSE_SECONDS)
        while True:
            try:
                was_read = await self._look(app.database)
                now = await RegistryDocuments(app.database).current()
                # Secrets are not in the database: the files that hold them are looked at too.
                before, files = files, await asyncio.to_thread(_files_of_variables)
                if was_read or stamp != now or files != before:
                    is_first, stamp = stamp is None, now
                    await self._adopt(app)
                    if files != before and not is_first:
                        log.info("files of secrets read again")
                    await on_registry()
                    if self._unusable:
                        self._unusable, self._said = False, ""
                        self._health.report("registry", "ok")
            except ConfigError as error:
                self._unusable = True
                self._report_problem("invalid", f"{error} This pod keeps its previous registry.")
            except StoreUnavailable:
                stamp = None
                await backoff.wait()
                continue
            backoff.reset()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), LOOK_SECONDS)
            self._is_due.clear()

    async def _look(self, database: Database) -> bool:
        """Apply the file if it has changed. Returns whether it was read."""
        signature = await asyncio.to_thread(signature_of, self._path)
        if signature == self._seen:
            if time.monotonic() > self._apply_again_at:
                await self.apply(database)
            return False
        try:
            fresh = await asyncio.to_thread(load_registry, self._path)
        except ConfigError as error:
            problems = [str(each) for each in getattr(error, "problems", [])] or [str(error)]
            self._report_problem(
                "invalid",
                f"The file is invalid; the registry that was applied before stays in force: {problems[0]}",
                problems=problems,
            )
            self._seen = signature
            return False
        await self.apply(database, fresh)
        self._seen = signature
        return True

    async def _adopt(self, app: Application) -> None:
        """Use the registry in force, except for sections from which objects were built at the start."""
        registry = await registry_in_force(app.database)
        before = app.configuration.registry
        allowed = {"allow_local_sources": registry.http.allow_local_sources}
        http = before.http.model_copy(update=allowed)
        kept = {"embedding": before.embedding, "qdrant": before.qdrant, "http": http}
        if changed := [f"`{key}`" for key, value in kept.items() if getattr(registry, key) != value]:
            self._restart.met("a change takes effect after a restart of the daemon", " and ".join(changed))
        else:
            self._restart.over()
        app.adopt(registry.model_copy(update=kept))

    def _report(self, plan: Plan) -> None:
        if not plan.applied and plan.standing != "current":
            now = plan.before
            by = f" by {now.applied_by} at {now.applied_at:%Y-%m-%d %H:%M} UTC" if now else ""
            self._report_problem(
                "superseded",
                f"This pod has an older version of the registry, {plan.path}, which changes nothing; a newer one was "
                f"applied{by} and is in force. `reposync apply` applies this one.",
            )
            return
        if conflict := plan.conflict():
            self._report_problem("conflict", f"{conflict.message} {conflict.remedy}")
            return
        self._said = ""
        self._health.report("registry", "ok")
        self._on_reload("ok")
        log.info("registry in force", file=plan.path, digest=plan.digest[:12], changes=len(plan.changes))

    def _report_problem(self, result: str, message: str, **more: Any) -> None:
        """Logged once, not at every poll."""
        self._health.report("registry", "degraded", message)
        if message != self._said:
            self._said = message
            self._on_reload(result)
            log.error(message, **more)


def _files_of_variables() -> list[Signature]:
    """Signatures of the files that variables `..._FILE` name."""
    paths = [Path(value) for name, value in sorted(os.environ.items()) if name.endswith("_FILE") and value]
    return [signature_of(path) for path in paths]


def signature_of(path: Path | None) -> Signature:
    """Changes if the content may have changed. Follows symbolic links, as a ConfigMap is mounted."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def applied_by(pod_name: str) -> str:
    host = socket.gethostname()
    return pod_name if pod_name == host else f"{pod_name} on {host}"
