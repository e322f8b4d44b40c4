"""The runs that this pod executes, a bounded number at a time."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import random
from collections.abc import Callable

import structlog
from structlog.contextvars import bound_contextvars

from reposync import __version__
from reposync.app.application import Application
from reposync.clock import elapsed_seconds
from reposync.config.sections import DaemonConfig
from reposync.errors import LeaseLost, StoreUnavailable
from reposync.runs.endings import ExecutionPolicy
from reposync.runs.execution import LAST_WRITE_SECONDS, Execution
from reposync.store.endings import STOPPING, YIELDING
from reposync.store.run import Run, RunFigures
from reposync.store.status import RunStatus
from reposync.store.workers import BEAT_SECONDS
from reposync.supervision import Backoff, Report, keep
from reposync.telemetry.health import Trouble

log = structlog.get_logger(__name__)

# For retries that become due, runs whose worker died, and notifications that did not arrive.
POLL_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0


class WorkerPool:
    """`run` claims and executes runs until `stop` is set; then it waits for active runs, releases those that do not end
    in time, or when `stop_now` is set, and returns. Subscribers of the database are notified of both."""

    def __init__(
        self,
        app: Application,
        config: Callable[[], DaemonConfig],
        *,
        stop: asyncio.Event,
        stop_now: asyncio.Event,
        on_load: Callable[[int, int], None],
        report: Report = lambda _: None,
    ) -> None:
        """`report`: called after a defect in the loop that claims; active runs continue."""
        self._app = app
        self._config = config
        self._on_load = on_load
        self._report = report
        self._wake = asyncio.Event()
        self._stop, self._stop_now = stop, stop_now
        self._running: dict[asyncio.Task[None], Execution] = {}
        self._beat_due = 0.0
        self._unexplained: list[tuple[Run, str, str]] = []  # of each, the error's code and message
        app.database.subscribe(self._wake.set)

    async def run(self) -> None:
        try:
            try:
                await keep("workers", self._work, report=self._report, until=self._stop)
            finally:
                await self._leave()
            await self._drain(self._config().shutdown_grace_seconds)
        finally:
            # Also after a defect of the daemon: other workers continue the runs.
            await self._release_all()

    async def _work(self) -> None:
        backoff = Backoff(0.25, _LONGEST_PAUSE_SECONDS)
        trouble = Trouble("the queue has its database again")
        while not self._stop.is_set():
            self._wake.clear()
            try:
                await self._beat()
                await self._explain()
                await self._fill()
                await self._be_fair()
            except StoreUnavailable as error:
                trouble.met("the queue waits for the database", str(error))
                await self._sleep(backoff.next_seconds())
                continue
            backoff.reset()
            trouble.over()
            await self._sleep(POLL_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    async def _beat(self) -> None:
        """By the loop that claims, so that the row proves that it works: commands leave their runs to it."""
        now = elapsed_seconds()
        if now < self._beat_due:
            return
        await self._app.workers.beat(self._app.worker, host=platform.node(), version=__version__)
        self._beat_due = now + BEAT_SECONDS

    async def _explain(self) -> None:
        """Record why attempts were lost, once the database can be written again."""
        while self._unexplained:
            await self._app.runs.explain_lost(*self._unexplained[0])
            del self._unexplained[0]

    async def _leave(self) -> None:
        """From now on commands execute their runs themselves. Without it they notice soon after."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(LAST_WRITE_SECONDS):
                await self._app.workers.leave(self._app.worker)

    async def _fill(self) -> None:
        """Claim runs while there is room."""
        policy = self._policy()
        while not self._stop.is_set() and len(self._running) < self._config().concurrency:
            since = elapsed_seconds()
            run = await self._app.runs.claim(self._app.worker, policy.lease_seconds)
            if run is None:
                return
            execution = self._app.execution(run, policy, claimed_since=since)
            task = asyncio.create_task(self._execute(execution), name=f"worker of {run.id}")
            self._running[task] = execution
            task.add_done_callback(self._done)
            self._report_load()

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._report_load()
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a worker ended by a defect", exc_info=error)

    async def _execute(self, execution: Execution) -> None:
        run = execution.run
        bound = bound_contextvars(run=run.id, repository=run.repository, attempt=run.attempt)
        with self._app.run_log.attempt(run) as lines, bound:
            try:
                ended = await self._app.execute(execution)
            except LeaseLost as error:
                log.warning("run lost", reason=str(error))
                self._unexplained.append((run, error.code, str(error)))
            except StoreUnavailable as error:
                # Its lease expires, and a worker continues the run once the database is available again.
                log.error("the end of the run could not be written", reason=str(error))
                self._unexplained.append((run, error.code, str(error)))
            else:
                _log_end(run, ended, execution.figures)
                lines.ended(ended)

    async def _be_fair(self) -> None:
        """Release the longest run that has had its share of time and has made progress (a share that is too short for a
        listing would never end), if its repository is to be synced again, which its next turn begins with, or if all
        places are taken and other runs wait."""
        config, now, runs = self._config(), elapsed_seconds(), self._app.runs
        is_full = len(self._running) >= config.concurrency
        for execution in sorted(self._running.values(), key=lambda execution: execution.started):
            run = execution.run
            if now - execution.started <= config.fair_share_seconds or not execution.progress.files_done:
                continue
            if (is_full and await runs.others_wait(run)) or await runs.asked_again(run):
                with bound_contextvars(run=run.id, repository=run.repository, attempt=run.attempt):
                    log.info("run lets others go first")
                execution.interrupt(YIELDING)
                return

    async def _drain(self, grace_seconds: float) -> None:
        if not self._running:
            return
        log.info("waiting for active runs", runs=len(self._running), grace_seconds=grace_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while self._running and not self._stop_now.is_set():
                    self._wake.clear()
                    await self._wake.wait()

    async def _release_all(self) -> None:
        for execution in self._running.values():
            execution.interrupt(STOPPING)
        if self._running:
            await asyncio.wait(set(self._running), timeout=LAST_WRITE_SECONDS)
        for task in self._running:
            task.cancel()
        # Once: `end` would cancel again what is handing its run back.
        await asyncio.gather(*self._running, return_exceptions=True)  # noqa: TID251

    async def _sleep(self, seconds: float) -> None:
        """Until a notification, an ended run, `stop`, or `seconds` have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _policy(self) -> ExecutionPolicy:
        config = self._config()
        return ExecutionPolicy(config.lease_seconds, config.retry_seconds, config.retry_max_seconds)

    def _report_load(self) -> None:
        self._on_load(len(self._running), self._config().concurrency)


def _log_end(claimed: Run, run: Run, figures: RunFigures) -> None:
    well = run.status in (RunStatus.COMPLETED, RunStatus.QUEUED) and not figures.files_failed
    write = log.info if well else log.warning
    if run.handed_back > claimed.handed_back and run.error_code is not None and run.error_code == claimed.error_code:
        write = log.debug  # tried again without a change
    fields = {"reason": run.error_message, "code": run.error_code, "commit": run.commit_after}
    counts = ("files_processed", "files_deleted", "files_failed", "chunks_embedded", "chunks_reused")
    fields |= {name: getattr(figures, name) for name in counts}
    shown = {name: value for name, value in fields.items() if value is not None}
    write(f"run {run.status}", seconds=run.duration_seconds, **shown)
