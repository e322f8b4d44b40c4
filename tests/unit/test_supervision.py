"""Tasks that are to go on: whatever ends them is logged with its cause, and they are started again."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from reposync.supervision import end, keep, to_the_end, together, unending
from tests.fixtures.patience import PATIENCE_SECONDS

Work = Callable[[], Awaitable[None]]


class Task:
    """Ends in the given ways, one after the other, and then goes on."""

    def __init__(self, *endings: Work) -> None:
        self._endings = list(endings)
        self.goes_on = asyncio.Event()
        self.reports: list[str | None] = []

    async def work(self) -> None:
        if self._endings:
            return await self._endings.pop(0)()
        self.goes_on.set()
        await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def kept(self, *, well_seconds: float = PATIENCE_SECONDS) -> AsyncIterator[None]:
        """Until it goes on."""
        keeping = asyncio.create_task(
            keep("ticks", self.work, report=self.reports.append, pause_seconds=0.001, well_seconds=well_seconds)
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.goes_on.wait()
                yield
        finally:
            keeping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await keeping


async def fails() -> None:
    raise TypeError("a defect")


async def returns() -> None:
    return


async def is_cancelled_from_within() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def loses_one_of_its_own() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(unending(is_cancelled_from_within()))


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        (fails, "TypeError"),
        (returns, "it returned"),
        (is_cancelled_from_within, "it was cancelled from within"),
        (loses_one_of_its_own, "it was cancelled from within"),
    ],
)
async def test_a_task_that_ends_is_logged_with_its_cause_and_started_again(
    ending: Work, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(ending, ending)
    async with task.kept():
        pass

    assert len(task.reports) == 2
    for said in task.reports:
        assert said is not None
        assert said.startswith(f"It ended by a defect and is started again: {cause}; the log has the details under ")
        assert f"incident {said.split()[-1].rstrip('.')}: the task ticks ended" in caplog.text
    assert caplog.text.count(f"in {ending.__name__}" if ending is not returns else "EndedByItself: it returned") >= 2


async def test_a_task_that_goes_on_for_long_enough_is_well_again() -> None:
    task = Task(fails)
    async with task.kept(well_seconds=0.01):
        while task.reports[-1] is not None:
            await asyncio.sleep(0.001)

    assert [said is None for said in task.reports] == [False, True]


async def test_a_task_may_end_once_it_was_told_to_and_not_before() -> None:
    told, calls = asyncio.Event(), 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            told.set()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await keep("work", work, until=told, pause_seconds=0.001)

    assert calls == 3


async def test_a_task_that_waits_before_its_next_start_ends_as_soon_as_it_is_requested() -> None:
    told, failed = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        failed.set()
        raise TypeError("a defect")

    keeping = asyncio.create_task(keep("work", work, until=told, pause_seconds=10 * PATIENCE_SECONDS))
    await failed.wait()
    told.set()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await keeping


async def test_a_task_that_fails_while_it_is_cancelled_ends_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise TypeError("a defect at the end")

    keeping = asyncio.create_task(keep("work", work))
    await began.wait()
    keeping.cancel()

    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert "a defect at the end" in caplog.text


class Cursor:
    """Held by a frame of a task, as one of a database is."""


async def test_a_task_that_was_ended_keeps_nothing_that_it_worked_with() -> None:
    began, cursors = asyncio.Event(), weakref.WeakSet[Cursor]()

    async def work() -> None:
        cursor = Cursor()
        cursors.add(cursor)
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await began.wait()
    await end(task)

    assert task.cancelled()
    assert not cursors


async def test_a_cancelled_caller_waits_for_the_end_of_its_work_and_is_cancelled_then() -> None:
    goes_on, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await goes_on.wait()
        done.set()

    calling = asyncio.create_task(to_the_end(work()))
    for _ in range(5):
        await asyncio.sleep(0)
        calling.cancel()
    assert not calling.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await calling

    assert done.is_set()


async def test_work_that_does_not_end_within_its_grace_is_cancelled_too() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    calling = asyncio.create_task(to_the_end(work(), grace_seconds=0.01))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling

    assert ended == ["cancelled"]


async def test_results_of_work_done_together_have_the_order_of_the_work() -> None:
    first_may_end = asyncio.Event()

    async def first() -> int:
        await first_may_end.wait()
        return 1

    async def second() -> str:
        first_may_end.set()
        return "two"

    one, two = await together(first(), second())
    assert (one, two) == (1, "two")
    assert await together() == []


@pytest.mark.parametrize("way", ["a part fails", "its caller is cancelled"])
async def test_no_part_of_work_done_together_outlives_the_call(way: str) -> None:
    ended, others = asyncio.Event(), asyncio.all_tasks()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as one that gives a connection back
            ended.set()

    async def fails() -> None:
        await asyncio.sleep(0)
        if way == "a part fails":
            raise LookupError("nothing there")
        await asyncio.Event().wait()

    calling = asyncio.create_task(together(slow(), fails()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if way != "a part fails":
        calling.cancel()
    with pytest.raises(LookupError if way == "a part fails" else asyncio.CancelledError):
        await calling

    assert ended.is_set()
    assert asyncio.all_tasks() == others
