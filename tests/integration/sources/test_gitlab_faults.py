"""A GitLab that limits, breaks, hangs and lies; and callers who lose patience."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from typing import Literal

import pytest

from reposync.errors import SourceError, SourceUnavailable
from reposync.outgoing import RetryPolicy
from reposync.sources.gitlab import GitLabSource
from reposync.sources.gitlab_client import MAX_CALLS
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import GitLabProject
from tests.fixtures.gitlab_server import OtherHost, Project
from tests.fixtures.repositories import GitRepository
from tests.integration.sources.conftest import TOKEN, Site, Watched, contents, entries_of, expected, instance, same_tree

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def fifty_files(repository: GitRepository, project: Project) -> None:
    repository.many(50)


@pytest.mark.parametrize(("form", "path"), [("application", r"blobs/.*/raw"), ("rack", r"\.git/")])
async def test_a_rate_limit_in_any_form_is_waited_for(
    site: Site, form: Literal["rack", "application"], path: str
) -> None:
    site.server.faults.throttle(form, path=path, times=2)
    watched = Watched()
    source, entries = await site.listed(observer=watched)
    few = await contents(source, entries[:2])
    found = await contents(source, entries)

    assert found == expected(site.repository, entries)
    assert few.items() <= found.items()
    assert len(watched.waits) == 2


@pytest.mark.parametrize("path", ["commits/HEAD", "repository/tree", r"blobs/.*/raw", r"\.git/"])
@pytest.mark.parametrize("fault", ["502", "cut"])
async def test_a_request_that_fails_twice_is_sent_a_third_time(site: Site, path: str, fault: str) -> None:
    if fault == "502":
        site.server.faults.bad_gateway(path=path, times=2)
    else:
        site.server.faults.cut_body(5, path=path, times=2)
    source, entries = await site.listed()
    few = await contents(source, entries[:2])
    found = await contents(source, entries)

    assert same_tree(entries, site.repository)
    assert found == expected(site.repository, entries)
    assert few.items() <= found.items()


async def test_a_tree_that_fails_is_an_error_and_never_an_empty_tree(site: Site) -> None:
    source, head = await site.at_head()
    site.server.faults.bad_gateway(path="repository/tree", times=None)

    with pytest.raises(SourceUnavailable, match="Reading the tree of platform/payments-api"):
        await source.tree(head)


async def test_content_that_does_not_hash_to_its_name_is_requested_again_and_never_returned(site: Site) -> None:
    source = site.gitlab()
    entries = (await entries_of(source))[:3]
    site.server.faults.answer(200, "something else", path=entries[1].sha, times=2)

    assert await contents(source, entries) == expected(site.repository, entries)

    site.server.faults.answer(200, "something else", path=entries[1].sha, times=None)
    read: dict[str, bytes | None] = {}
    with pytest.raises(UnreadableBlobs, match=r"module_00001\.py: blob .* comes damaged") as caught:
        async for blob in source.read(entries, max_bytes=1000):
            read[blob.sha] = blob.content
    assert read == {
        sha: content for sha, content in expected(site.repository, entries).items() if sha != entries[1].sha
    }
    assert caught.value.reasons.keys() == {entries[1].sha}


async def test_a_gitlab_that_is_not_there_says_so(site: Site) -> None:
    retry = RetryPolicy(attempts=2, first_delay_seconds=0.01)
    source = GitLabSource(GitLabProject(instance("http://127.0.0.1:9"), "a/b", retry=retry))

    with pytest.raises(SourceUnavailable, match=r"a/b on http://127\.0\.0\.1:9 failed 2 times: the connection failed"):
        await source.head()
    await source.close()


@pytest.mark.parametrize("path", ["projects/platform", "commits/HEAD", "repository/tree", r"blobs/.*/raw", r"\.git/"])
async def test_no_redirect_sends_the_token_to_a_different_host(site: Site, path: str) -> None:
    with OtherHost() as other:
        site.server.faults.redirect(other.url, status=307, path=path, times=None)
        # A project that was never seen is asked for by its path; of a known one, few blobs come by REST.
        source = site.gitlab(project_id=None if path.startswith("projects/") else 42)

        async def everything() -> None:
            entries = await entries_of(source)
            await contents(source, entries[:2])
            await contents(source, entries)

        if path == r"\.git/":
            await everything()  # git is left alone, REST goes on
        else:
            with pytest.raises(
                SourceError, match=r"redirects to a different server, http://127.*nothing was sent"
            ) as caught:
                await everything()
            assert TOKEN not in str(caught.value)
        assert other.requests == []


async def test_no_page_link_leads_to_a_different_host(site: Site) -> None:
    with OtherHost(body=b"[]") as other:
        link = f'<{other.url}/steal?token>; rel="next"'
        site.server.faults.answer(
            200, "[]", media_type="application/json", headers={"Link": link}, path="repository/tree", times=None
        )
        source, head = await site.at_head()

        with pytest.raises(SourceError):
            await source.tree(head)
        assert other.requests == []


@pytest.mark.parametrize("path", ["commits/HEAD", "repository/tree", r"blobs/.*/raw", r"\.git/"])
@pytest.mark.parametrize("after_bytes", [None, 10])
async def test_the_event_loop_ticks_while_an_answer_is_withheld_and_cancelling_is_prompt(
    site: Site, path: str, after_bytes: int | None
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    source = site.gitlab()

    async def everything() -> None:
        entries = await entries_of(source)
        await contents(source, entries[:2] if path == r"blobs/.*/raw" else entries)

    for _ in range(MAX_CALLS + 1):
        gate = site.server.faults.hold(path=path, after_bytes=after_bytes, times=None)
        work = asyncio.create_task(everything())
        assert await asyncio.to_thread(gate.arrived.wait, 10)
        for _ in range(100):  # each turn of the loop is a tick; a blocked loop would hang here until the time-out
            await asyncio.sleep(0)
        assert not work.done()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(work, 5)
        site.server.faults.clear()
    await everything()  # cancelled calls have given back their slots

    del work
    gc.collect()
    assert reported == [], "what a cancelled call still said must not be reported as never heard"


@pytest.mark.parametrize("count", [10, 50])
async def test_a_reader_who_leaves_in_the_middle_leaves_no_task_behind(site: Site, count: int) -> None:
    source = site.gitlab()
    entries = (await entries_of(source))[:count]
    before = asyncio.all_tasks()

    async with aclosing(source.read(entries, max_bytes=1000)) as blobs:
        async for _ in blobs:
            break

    assert asyncio.all_tasks() == before
    assert len(await contents(source, entries)) == count


async def test_a_gitlab_that_does_not_answer_takes_no_threads_from_other_work(site: Site) -> None:
    sources = 40  # more than the event loop has threads
    site.server.faults.hold(path="commits/HEAD", times=None)
    watched = Watched()
    heads = [asyncio.create_task(site.gitlab(observer=watched).head()) for _ in range(sources)]
    try:
        async with asyncio.timeout(60):
            while len(watched.requests) < sources:
                await asyncio.sleep(0.01)
            assert await asyncio.to_thread(len, heads) == sources
    finally:
        for head in heads:
            head.cancel()
        await asyncio.gather(*heads, return_exceptions=True)
        site.server.faults.clear()
