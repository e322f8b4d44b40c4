"""A throwaway copy of the program for one repository, whose index is brought to past commits.

It has a folder of its own with a database and an embedded engine, and shares the embedder and the workers of the real
one, of which nothing else is read or written."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from reposync.app.application import Application
from reposync.app.opening import open_application
from reposync.catalog.targets import COMMAND, SyncTarget, registration_of
from reposync.config.database_url import sqlite_url
from reposync.config.sections import QdrantConfig
from reposync.config.settings import Settings
from reposync.errors import ReplayFailed
from reposync.runs.endings import ExecutionPolicy
from reposync.sources.objects import aware_time
from reposync.sources.port import Blob, Commit, PastCommit, Source, Tree, TreeEntry
from reposync.store.run import IN_ADVANCE, Ask
from reposync.store.status import RunStatus, RunTrigger
from reposync.store.tables import IndexVersion, VersionState
from reposync.sync.lease import Lease
from reposync.sync.sync_run import SyncRun
from reposync.vectors.embedded import EmbeddedEngine

FOLDER = "replays"
_LOCK = "replay.lock"
# Between two states files are read and embedded, in which the engine has no request.
_IDLE_SECONDS = 900.0


class Replay:
    """The index of one repository at commits of its past."""

    def __init__(self, app: Application, real: Application, target: SyncTarget) -> None:
        self.app = app
        """Its searches find what the state has."""
        self._real = real
        self._target = target

    async def bring_to(self, sha: str) -> IndexVersion:
        """The live version with the files of this commit, as a sync stores them. Raises ReplayFailed."""
        app, name = self.app, self._target.name
        # A state may have half of the files of the one before: this index is nobody's.
        ask = Ask(RunTrigger.COMMAND, approval=IN_ADVANCE, max_attempts=1)
        run, _ = await app.runs.enqueue(name, ask)
        claimed = await app.claim(run.repository_id, run.id)
        if claimed is None:
            raise ReplayFailed(f"Commit {sha[:12]} of {name!r} could not be indexed for the replay.")
        execution = app.execution(claimed, ExecutionPolicy())
        async with contextlib.AsyncExitStack() as opened:

            async def make(lease: Lease) -> SyncRun:
                target = app.catalog.of_row(await app.repositories.get(name))
                parts = await opened.enter_async_context(app.parts(target))
                pinned = replace(parts, source=_Pinned(parts.source, sha), embedder=self._real.embedder())
                return SyncRun(pinned, claimed, lease, execution.progress)

            ended = await execution.perform(make)
        if ended.status is not RunStatus.COMPLETED:
            raise ReplayFailed(
                f"Commit {sha[:12]} of {name!r} could not be indexed for the replay: {ended.error_message}"
            )
        for version in await app.versions.of(run.repository_id):
            if version.state is VersionState.LIVE:
                return version
        raise ReplayFailed(f"Commit {sha[:12]} of {name!r} has nothing to search.")


@contextlib.asynccontextmanager
async def open_replay(app: Application, target: SyncTarget) -> AsyncGenerator[Replay, None]:
    """One at a time; what it stored is removed at the end, also when it is cancelled. What a killed process left is
    removed by the next one."""
    async with app.replays:
        folders = app.configuration.settings.state_dir / FOLDER
        await asyncio.to_thread(remove_leftovers, folders)
        with await asyncio.to_thread(_locked_folder, folders) as folder:
            engine = EmbeddedEngine(folder, idle_seconds=_IDLE_SECONDS)
            try:
                await engine.address()
                async with open_application(_settings(app, folder), secrets=app.secrets) as mine:
                    registry = app.configuration.registry.model_copy(update={"qdrant": QdrantConfig()})
                    mine.adopt(registry)
                    mine.borrow(app)
                    columns = {"definition": target.repository.definition, "origin_host": target.row.origin_host}
                    await mine.repositories.register(registration_of(target.repository, COMMAND, **columns))
                    yield Replay(mine, app, target)
            finally:
                # In this thread: a task that is cancelled again must not leave it behind.
                engine.end()


def _settings(app: Application, folder: Path) -> Settings:
    return Settings(
        config_path=None,
        state_dir=folder,
        database_url=sqlite_url(folder / "reposync.db"),
        pod_name=app.configuration.settings.pod_name,
    )


@contextlib.contextmanager
def _removed(folder: Path, lock: int) -> Iterator[Path]:
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(folders: Path) -> contextlib.AbstractContextManager[Path]:
    folders.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=folders))
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return _removed(folder, lock)


def remove_leftovers(folders: Path) -> None:
    """Those of processes that do not live any more."""
    for folder in folders.glob("*/"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # it is being made, or removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            EmbeddedEngine(folder).end()
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


class _Pinned(Source):
    """A source whose head is a commit of its past."""

    def __init__(self, source: Source, sha: str) -> None:
        self._source = source
        self._sha = sha

    async def head(self) -> Commit:
        return Commit(self._sha, aware_time(0))  # the date decides nothing

    async def branch(self, *, fresh: bool = False) -> str | None:
        return await self._source.branch(fresh=fresh)

    async def tree(self, commit: Commit) -> Tree:
        return await self._source.tree(commit)

    def read(self, entries: Sequence[TreeEntry], *, max_bytes: int) -> AsyncGenerator[Blob, None]:
        return self._source.read(entries, max_bytes=max_bytes)

    async def project_id(self) -> int | None:
        return await self._source.project_id()

    async def history(self, tip: str, most: int, *, contents_too: bool = True) -> list[PastCommit]:
        return await self._source.history(tip, most, contents_too=contents_too)

    async def close(self) -> None:
        """Its owner does."""
