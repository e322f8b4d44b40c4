"""A run is followed over HTTP, wherever it is executed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, ExitStack

import httpx
import pytest

from reposync.api.routes import events
from reposync.errors import StoreUnavailable, TooManyWatchers
from reposync.operations.core import Actor, Role
from reposync.operations.following import following as follow
from reposync.store.endings import Fail, Finish
from reposync.store.notifications import RowWatch
from reposync.store.run import RUN_KEYS, Ask, Run, RunFigures
from reposync.store.status import RunTrigger
from reposync.visible import EVERYTHING, NOTHING
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.world import World
from tests.integration.api.serving import Event, eventually, following, queued, running, serving

LEASE_SECONDS = 60.0


async def said(stream: AsyncIterator[Event], *, status: str) -> Event:
    async for event in stream:
        if event.name is not None and event.data["status"] == status:
            return event
    raise AssertionError(f"the stream ended before the run was {status}")


async def test_a_run_is_followed_from_the_queue_to_its_end(world: World, client: httpx.AsyncClient):
    run, runs = await queued(world), world.app.runs
    async with asyncio.timeout(PATIENCE_SECONDS), following(client, run.id) as stream:
        first = await anext(stream)
        assert (first.name, first.data["status"], first.data["progress"]) == ("progress", "queued", None)
        assert set(first.data) == {*RUN_KEYS, "asked_by", "removal", "brake", "progress"}
        assert first.data["queued_at"].endswith("Z")
        assert int(first.fields["retry"]) > 0

        claimed = await runs.claim("pod-2:1:a", LEASE_SECONDS, run_id=run.id)
        assert claimed is not None
        assert (await said(stream, status="running")).data["worker"] == "pod-2:1:a"

        await runs.heartbeat(claimed, 60.0, {"phase": "indexing", "files_done": 3, "files_total": 9})
        assert (await anext(stream)).data["progress"] == {"phase": "indexing", "files_done": 3, "files_total": 9}

        await runs.end(claimed, Finish(), RunFigures(files_processed=9, commit_after="c" * 40))
        last = await said(stream, status="completed")
        assert (last.name, last.data["files_processed"], last.data["progress"]) == ("ended", 9, None)
        assert [event async for event in stream] == []


async def test_an_ended_run_sends_one_event_and_a_reconnect_gets_204(world: World, client: httpx.AsyncClient):
    run = await running(world)
    await world.app.runs.end(run, Fail("SOURCE_GONE", "It is\ngone.\r\n<script>"), RunFigures())

    async with following(client, run.id) as stream:
        told = [event async for event in stream]
    again = await client.get(f"/api/v1/runs/{run.id}/events", headers={"Last-Event-ID": told[0].fields["id"]})
    async with following(client, run.id, **{"Last-Event-ID": "something else"}) as stream:
        other = [event async for event in stream]

    assert [(each.name, each.data["error_message"]) for each in told] == [("ended", "It is\ngone.\r\n<script>")]
    assert (again.status_code, again.content) == (204, b"")
    assert [each.data for each in other] == [each.data for each in told]
    # Somebody sends it back into the queue: then there is more to come.
    await world.app.runs.retry(run.id, Ask(RunTrigger.COMMAND))
    async with following(client, run.id, **{"Last-Event-ID": told[0].fields["id"]}) as stream:
        assert (await anext(stream)).data["status"] in ("queued", "retrying")


async def test_streams_are_bounded_and_one_that_is_closed_makes_room(world: World):
    world.app.followed_runs = RowWatch(world.app.history.by_ids, max_watchers=2)
    run = await running(world)
    async with serving(world.app) as client, AsyncExitStack() as others:
        first = AsyncExitStack()
        await first.enter_async_context(following(client, run.id))
        await others.enter_async_context(following(client, run.id))

        refused = await client.get(f"/api/v1/runs/{run.id}/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "TOO_MANY_WATCHERS")
        assert int(refused.headers["retry-after"]) > 0

        await first.aclose()

        async def is_there_room() -> bool:
            async with client.stream("GET", f"/api/v1/runs/{run.id}/events") as answer:
                return answer.status_code == 200

        await eventually(is_there_room)


async def test_streams_end_with_a_hint_when_the_server_does(world: World):
    run = await running(world)
    opened = asyncio.Event()

    async def watch(client: httpx.AsyncClient) -> list[Event]:
        async with following(client, run.id) as stream:
            told = [await anext(stream)]
            opened.set()
            # To a regular end: a stream that was cut off would raise here.
            return told + [event async for event in stream]

    async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        async with serving(world.app) as inner:
            client.base_url = inner.base_url
            watching = asyncio.create_task(watch(client))
            await opened.wait()
        told = await watching
    assert told[-1].comments == ["reconnect"]
    assert int(told[-1].fields["retry"]) > 0
    assert told[0].data["status"] == "running"


async def test_silence_is_broken_by_comments_and_a_purged_run_ends_its_stream(world: World):
    run = await running(world)
    there: dict[str, Run] = {run.id: run}
    is_away = False

    async def fetch(ids: Collection[str]) -> dict[str, Run]:
        if is_away:
            raise StoreUnavailable("The database db:5432 refuses connections.")
        return there

    world.app.followed_runs = RowWatch(fetch, look_seconds=0.01)
    reader = Actor("reader", Role.READ, visible=EVERYTHING, maintains=NOTHING)
    async with follow(world.app, reader, run.id) as follower:
        stream = events.run_events(follower, asyncio.Event(), keep_alive_seconds=0.05)
        assert (await anext(stream)).startswith(b"event: progress\n")
        assert await anext(stream) == b": no change\n\n"
        is_away = True
        assert await anext(stream) == b": the database does not respond\n\n"
        is_away = False
        there.clear()
        assert (await anext(stream)).startswith(b": this run is no longer in the history\n")
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        there[run.id] = run
        short = events.run_events(follower, asyncio.Event(), max_seconds=0.05)
        assert [event async for event in short][1:] == [b": reconnect\nretry: 2000\n\n"]


async def test_a_new_watcher_sees_what_was_written_before_and_one_that_leaves_takes_no_row_from_it() -> None:
    row = "old"
    began, go_on = asyncio.Event(), asyncio.Event()

    async def fetch(ids: Collection[str]) -> dict[str, str]:
        now = row
        began.set()
        await go_on.wait()
        return dict.fromkeys(ids, now)

    watched = RowWatch(fetch, look_seconds=60.0)
    with watched.watching("a"):
        looking = asyncio.create_task(watched.look("a"))
        await began.wait()
        row = "new"
        with watched.watching("a"):
            leaving, staying = asyncio.create_task(watched.look("a")), asyncio.create_task(watched.look("a"))
            await asyncio.sleep(0)
            leaving.cancel()
            go_on.set()
            assert (await staying, await looking) == ("new", "old")
            assert leaving.cancelled()


async def test_the_end_waits_for_queries_that_a_later_watcher_replaced() -> None:
    """The database is closed after it."""
    ends = {frozenset({"a"}): asyncio.Event(), frozenset({"a", "b"}): asyncio.Event()}

    async def fetch(ids: Collection[str]) -> dict[str, str]:
        await ends[frozenset(ids)].wait()
        return dict.fromkeys(ids, "row")

    watched = RowWatch(fetch, look_seconds=60.0)
    with watched.watching("a"), ExitStack() as later:
        first = asyncio.create_task(watched.look("a"))
        await asyncio.sleep(0)
        later.enter_context(watched.watching("b"))
        second = asyncio.create_task(watched.look("b"))
        await asyncio.sleep(0)
        settled = asyncio.create_task(watched.settle())
        ends[frozenset({"a", "b"})].set()
        await second
        assert not (await asyncio.wait({settled}, timeout=0.05))[0], "the first query is still running"
        ends[frozenset({"a"})].set()
        await settled
        assert await first == "row"


async def test_all_watchers_share_one_query_and_its_failure() -> None:
    queries: list[frozenset[str]] = []
    failure: StoreUnavailable | None = None

    async def fetch(ids: Collection[str]) -> dict[str, str]:
        queries.append(frozenset(ids))
        await asyncio.sleep(0)
        if failure is not None:
            raise failure
        return {each: f"row of {each}" for each in ids if each != "gone"}

    names = [*(f"run-{number % 150}" for number in range(199)), "gone"]
    for failure in (None, StoreUnavailable("The database db:5432 refuses connections.", remedy="Start it.")):
        watched = RowWatch(fetch, look_seconds=60.0, max_watchers=200)
        queries.clear()
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(watched.watching(name))
            with pytest.raises(TooManyWatchers), watched.watching("one more"):
                pass
            for _ in range(2):
                found = await asyncio.gather(*(watched.look(name) for name in names), return_exceptions=True)
                expected = [None if name == "gone" else f"row of {name}" for name in names]
                assert [str(each) for each in found] == [str(failure or each) for each in expected]
        assert (queries, watched.watchers) == ([frozenset(names)], 0)


async def test_a_failure_that_watchers_share_keeps_nothing_of_its_query() -> None:
    raised: weakref.WeakSet[StoreUnavailable] = weakref.WeakSet()

    async def fetch(_: Collection[str]) -> dict[str, str]:
        error = StoreUnavailable("The database db:5432 refuses connections.")
        raised.add(error)
        raise error

    watched = RowWatch(fetch, look_seconds=60.0)
    with watched.watching("run"):
        with pytest.raises(StoreUnavailable):
            await watched.look("run")
        gc.collect()
        assert [*raised] == []
        with pytest.raises(StoreUnavailable):
            await watched.look("run")
