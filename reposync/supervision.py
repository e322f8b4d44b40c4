"""Supervision of tasks that must not end before their daemon or run: an end is logged with its cause, and the task is
started again. And calls in threads that are awaited to their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar, overload

from reposync.errors import first_error

# Not structlog: unconfigured, as in a command, it writes to standard output.
log = logging.getLogger(__name__)

T = TypeVar("T")
T2 = TypeVar("T2")
T3 = TypeVar("T3")

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
# After this time without a defect a task counts as recovered.
WELL_SECONDS = 60.0

Report = Callable[[str | None], None]
"""Called with a sentence about why a task ended; with None once it has recovered. Returns at once and raises
nothing."""


class Backoff:
    """Pauses that double, each shortened at random so that pods do not retry together."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = self._next = first_seconds
        self._longest = longest_seconds

    def reset(self) -> None:
        self._next = self._first

    def next_seconds(self) -> float:
        """The pause to make now; the next one is twice as long."""
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311

    async def wait(self) -> None:
        await asyncio.sleep(self.next_seconds())


class EndedByItself(RuntimeError):
    """A task that should not end returned, or was cancelled from within. asyncio logs neither."""


async def unending(work: Awaitable[object]) -> NoReturn:
    """Await work that should not end until the caller is cancelled. Raises its error, or EndedByItself."""
    # A task of its own, to distinguish its cancellation from the caller's. `cancelling()` does not after a TaskGroup of
    # Python 3.11 has failed.
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        await end(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_defect("a task failed while it was ended", error)
        raise
    try:
        task.result()
    except asyncio.CancelledError as error:
        raise EndedByItself("it was cancelled from within") from error
    raise EndedByItself("it returned")


async def keep(
    name: str,
    work: Callable[[], Awaitable[object]],
    *,
    report: Report = lambda _: None,
    until: asyncio.Event | None = None,
    pause_seconds: float = FIRST_PAUSE_SECONDS,
    well_seconds: float = WELL_SECONDS,
) -> None:
    """Start `work` again whenever it ends, after a pause that doubles, until cancelled. After `until` is set, it may
    end and is not started again. Raises only CancelledError."""
    loop = asyncio.get_running_loop()
    backoff = Backoff(pause_seconds, LONGEST_PAUSE_SECONDS)
    while until is None or not until.is_set():
        began = loop.time()
        well = loop.call_later(well_seconds, report, None)
        try:
            await unending(work())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged, and the task is started again
            if until is not None and until.is_set() and isinstance(error, EndedByItself):
                return
            message = log_defect(f"the task {name} ended", error)
        finally:
            well.cancel()
        if loop.time() - began >= well_seconds:
            backoff.reset()
        report(f"It ended by a defect and is started again: {message}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(backoff.next_seconds()):
                await (until or asyncio.Event()).wait()


def log_defect(what: str, error: BaseException) -> str:
    """Log it with its traceback; returns a sentence with the cause and the id of the log record. The error's message is
    only in the log, because it may quote anything."""
    incident = uuid.uuid4().hex[:12]
    log.error("incident %s: %s", incident, what, exc_info=error)
    cause = first_error(error) if isinstance(error, ExceptionGroup) else error
    named = str(cause) if isinstance(cause, EndedByItself) else type(cause).__name__
    return f"{named}; the log has the details under {incident}."


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel them until they have ended: a library may lose a cancellation, as `asyncio.wait_for` does before Python
    3.12."""
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
    for task in tasks:
        _retrieve(task)


@overload
async def together(first: Awaitable[T], second: Awaitable[T2], /) -> tuple[T, T2]: ...
@overload
async def together(first: Awaitable[T], second: Awaitable[T2], third: Awaitable[T3], /) -> tuple[T, T2, T3]: ...
@overload
async def together(*work: Awaitable[T]) -> list[T]: ...
async def together(*work: Awaitable[Any]) -> Any:
    """The results, in the order of the work, which is done at the same time. None of it outlives the call: if a part
    fails, the others are cancelled and awaited before its error is raised. `asyncio.gather` lets them run on."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)  # noqa: TID251
    finally:
        await end(*tasks)


async def to_the_end(work: Awaitable[T], *, grace_seconds: float | None = None) -> T:
    """The result of `work`. A cancellation is delivered when `work` has ended; with `grace_seconds` it is passed on to
    `work` after that time."""
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        loop = asyncio.get_running_loop()
        overdue = None if grace_seconds is None else loop.call_later(grace_seconds, future.cancel)
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        if overdue is not None:
            overdue.cancel()
        _retrieve(future)
        raise


def _retrieve(task: asyncio.Future[Any]) -> None:
    """asyncio logs errors that were not retrieved. And a cancelled task keeps its CancelledError until then, with all
    frames of its traceback and what these refer to, such as a cursor whose transaction holds a lock."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()


async def in_thread(work: Callable[[], T], executor: Executor | None = None) -> T:
    """The result of `work`. If cancelled, it ends when the thread does: threads cannot be stopped, and a caller that
    bounds their number would start the next one too early."""
    return await to_the_end(asyncio.get_running_loop().run_in_executor(executor, work))
