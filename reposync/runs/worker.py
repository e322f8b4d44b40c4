"""The runs that this pod executes: claimed as there is room, a bounded number at a time."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from structlog.contextvars import bound_contextvars

from reposync import __version__
from reposync.clock import elapsed_seconds
from reposync.config.sections import DaemonConfig
from reposync.errors import ConfigError, LeaseLost, RepositoryNotFound, RepoSyncError, StoreUnavailable
from reposync.runs.execution import FAREWELL_SECONDS, STOPPING, YIELDING, Execution, Terms, hand_on
from reposync.store.database import QUEUE
from reposync.store.repositories import Repository
from reposync.store.run import Run, RunFigures
from reposync.store.status import RunStatus
from reposync.store.workers import BEAT_SECONDS
from reposync.supervision import Report, keep, log_defect
from reposync.telemetry.health import Trouble

if TYPE_CHECKING:
    from reposync.app.application import Application

log = structlog.get_logger(__name__)

# The floor under the wake-ups: retries that become due, runs whose worker died, news that did not arrive.
POLL_SECONDS = 1.0
# How often a full pod asks whether others wait.
_FAIRNESS_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 10.0


class WorkerPool:
    """`run` claims and executes until `stop`; then it waits for what is under way, hands back what does not end in
    time, and returns."""

    def __init__(
        self,
        app: Application,
        config: Callable[[], DaemonConfig],
        *,
        on_load: Callable[[int, int], None],
        report: Report = lambda _: None,
    ) -> None:
        """`report`: a defect in the loop that claims. Runs under way are not its concern, and go on."""
        self._app = app
        self._config = config
        self._on_load = on_load
        self._report = report
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._running: dict[asyncio.Task[None], Execution] = {}
        self._beat_due = 0.0
        self._fairness_due = 0.0
        self._others_waited = False
        self._unexplained: list[tuple[Run, RepoSyncError]] = []
        app.database.on_news(self._hear)

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def hurry(self) -> None:
        """Hand back at once what runs."""
        self._hurry.set()

    async def run(self) -> None:
        try:
            try:
                await keep("workers", self._work, report=self._report, until=self._stopping)
            finally:
                await self._leave()
            await self._drain(self._config().shutdown_grace_seconds)
        finally:
            # Also where the daemon ends by a defect: what runs here goes on elsewhere.
            await self._hand_back()

    async def _work(self) -> None:
        await self._expire_the_dead()
        pause = 0.25
        trouble = Trouble("the queue has its database again")
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                await self._beat()
                await self._explain()
                await self._fill()
                await self._be_fair()
            except StoreUnavailable as error:
                trouble.met("the queue waits for the database", str(error))
                await self._sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                continue
            pause = 0.25
            trouble.over()
            await self._sleep(POLL_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    async def _beat(self) -> None:
        """By the loop that claims, so that it says of itself what is true: commands leave their runs to it."""
        now = elapsed_seconds()
        if now < self._beat_due:
            return
        name, workers = self._app.presence.name, self._app.workers
        if self._beat_due == 0.0 or not await workers.beat(name):
            await workers.join(name, host=platform.node(), version=__version__)
        self._beat_due = now + BEAT_SECONDS

    async def _explain(self) -> None:
        """The history says why attempts were lost, as soon as it can be written: the disk was full."""
        while self._unexplained:
            await self._app.runs.explain_lost(*self._unexplained[0])
            del self._unexplained[0]

    async def _leave(self) -> None:
        """From now on commands execute their runs themselves. Unsaid, others take it for dead soon after."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._app.workers.leave(self._app.presence.name)

    async def _fill(self) -> None:
        """Claim as long as there is room and work."""
        terms = self._terms()
        while not self._stopping.is_set() and len(self._running) < self._config().concurrency:
            asked = elapsed_seconds()
            run = await self._app.runs.claim(self._app.presence.name, terms.lease_seconds)
            if run is None:
                return
            execution = self._app.execution(run, terms, claimed_since=asked)
            task = asyncio.create_task(self._execute(execution), name=f"worker of {run.id}")
            self._running[task] = execution
            task.add_done_callback(self._done)
            self._told_load()

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._told_load()
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a worker ended by a defect", exc_info=error)

    async def _execute(self, execution: Execution) -> None:
        run = execution.run
        with bound_contextvars(run=run.id, repository=run.repository, attempt=run.attempt):
            try:
                ended = await self._perform(execution)
            except LeaseLost as error:
                log.warning("run lost", reason=str(error))
                self._unexplained.append((run, error))
            except StoreUnavailable as error:
                # Its lease ends by itself, and somebody goes on with it once the database is back.
                log.error("the end of the run could not be written", reason=str(error))
                self._unexplained.append((run, error))
            except Exception as error:  # noqa: BLE001 - a defect outside of the attempt's own guard
                said = log_defect(f"a defect ended run {run.id} of {run.repository}", error)
                pause = self._terms().pause_after(run.failures) or 0.0
                with contextlib.suppress(RepoSyncError):  # LeaseLost: its end was written before that
                    await self._app.runs.retry_later(run, pause, RepoSyncError.code, said)
            else:
                _log_end(run, ended, execution.figures)

    async def _perform(self, execution: Execution) -> Run:
        run = execution.run
        try:
            if run.removal:
                return await self._app.execute(execution, None, lambda _: None)
            row = await self._app.repositories.by_id(run.repository_id)
            target = self._app.catalog.of_row(row)
        except RepositoryNotFound as error:
            return await self._not_mine(run, error)
        except ConfigError as error:
            return await self._app.runs.finish(run, RunStatus.FAILED, RunFigures(), error.code, str(error))
        if not row.is_active and row.paused_reason is None:
            left = RepositoryNotFound(f"Repository {run.repository!r} is no longer in the configuration.")
            return await self._app.runs.finish(run, RunStatus.CANCELLED, RunFigures(), left.code, str(left))
        return await self._app.execute(execution, target, lambda _: None)

    async def _not_mine(self, run: Run, error: RepositoryNotFound) -> Run:
        """It was removed, or its definition is of an earlier version and was not applied since."""
        row = await self._row(run)
        if row is None or not row.is_active:
            return await self._app.runs.finish(run, RunStatus.CANCELLED, RunFigures(), error.code, str(error))
        return await hand_on(self._app.runs, run, error)

    async def _row(self, run: Run) -> Repository | None:
        try:
            return await self._app.repositories.by_id(run.repository_id)
        except RepositoryNotFound:
            return None

    async def _be_fair(self) -> None:
        """Where every place is taken and others wait for longer than a moment, the run that has had its share goes
        back into the queue. It must have got somewhere: a share that is too short for its listing is no share."""
        now = elapsed_seconds()
        if len(self._running) < self._config().concurrency or now < self._fairness_due:
            return
        self._fairness_due = now + _FAIRNESS_SECONDS
        share = self._config().fair_share_seconds
        candidates = [
            each for each in self._running.values() if now - each.started > share and each.progress.files_done > 0
        ]
        if not candidates:
            self._others_waited = False
            return
        longest = min(candidates, key=lambda each: each.started)
        waited, self._others_waited = self._others_waited, await self._app.runs.others_wait(longest.run)
        if waited and self._others_waited:
            self._others_waited = False
            log.info("run lets others go first", run=longest.run.id, repository=longest.run.repository)
            longest.interrupt(YIELDING)

    async def _drain(self, grace_seconds: float) -> None:
        if not self._running:
            return
        log.info("waiting for runs under way", runs=len(self._running), grace_seconds=grace_seconds)
        waiting = asyncio.ensure_future(asyncio.wait(set(self._running), timeout=grace_seconds))
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({waiting, hurry}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        hurry.cancel()

    async def _hand_back(self) -> None:
        for execution in self._running.values():
            execution.interrupt(STOPPING)
        if self._running:
            await asyncio.wait(set(self._running), timeout=FAREWELL_SECONDS)
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _expire_the_dead(self) -> None:
        """Runs of workers that were killed on this machine are free at once: nobody waits for their leases."""
        try:
            for run in await self._app.runs.history(status=RunStatus.RUNNING, limit=1_000):
                dead = await asyncio.to_thread(self._app.presence.is_dead, run.worker or "")
                if dead:
                    await self._app.runs.expire(run)
        except RepoSyncError as error:
            log.warning("could not look for runs of killed workers", reason=str(error))

    async def _sleep(self, seconds: float) -> None:
        """Until there is news, a place became free, the pool is to stop, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _terms(self) -> Terms:
        config = self._config()
        return Terms(config.lease_seconds, config.retry_seconds, config.retry_max_seconds)

    def _hear(self, channel: str) -> None:
        if channel == QUEUE:
            self._wake.set()

    def _told_load(self) -> None:
        self._on_load(len(self._running), self._config().concurrency)


def _log_end(claimed: Run, run: Run, figures: RunFigures) -> None:
    well = run.status in (RunStatus.COMPLETED, RunStatus.QUEUED) and not figures.files_failed
    told = log.info if well else log.warning
    if run.handed_back > claimed.handed_back and run.error_code is not None and run.error_code == claimed.error_code:
        told = log.debug  # a worker looked again, and nothing has changed
    why = {"reason": run.error_message} if run.error_message else {}
    why |= {"code": run.error_code} if run.error_code else {}
    told(
        f"run {run.status}",
        seconds=run.duration_seconds,
        commit=run.commit_after,
        files=figures.files_processed,
        deleted=figures.files_deleted,
        failed=figures.files_failed,
        embedded=figures.chunks_embedded,
        reused=figures.chunks_reused,
        **why,
    )
