"""A GitLab that limits, breaks, hangs and lies; and callers who lose patience."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from reposync.errors import SourceError, SourceUnavailable
from reposync.outgoing import RetryPolicy, Timeouts
from reposync.sources.gitlab import GitLabSource
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.spec import GitLabProject
from tests.fixtures.gitlab_server import Gate, GitLabServer, OtherHost, Project
from tests.fixtures.repositories import GitRepository
from tests.integration.sources.conftest import TOKEN, Watched, contents, expected, same_tree

Make = Callable[..., GitLabSource]


@pytest.fixture(autouse=True)
def fifty_files(repository: GitRepository, project: Project) -> None:
    repository.many(50)


# Rate limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "path"),
    [
        ("rack", "commits/HEAD"),
        ("date", "repository/tree"),
        ("application", r"blobs/.*/raw"),
        ("rack", r"\.git/"),
    ],
)
async def test_a_rate_limit_in_any_form_on_any_call_is_waited_for(
    server: GitLabServer, repository: GitRepository, gitlab: Make, form: str, path: str
) -> None:
    match form:
        case "rack":
            server.faults.throttle_rack(path=path, retry_after_seconds=0, times=2)
        case "date":
            server.faults.throttle_http_date(path=path, retry_after_seconds=0, times=2)
        case _:
            server.faults.throttle_application(path=path, times=2)
    watched = Watched()
    source = gitlab(observer=watched)

    entries = (await source.tree(await source.head())).entries
    few = await contents(source, entries[:2])
    found = await contents(source, entries)

    assert found == expected(repository, entries)
    assert few.items() <= found.items()
    assert len(watched.waits) == 2


# Breakage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["commits/HEAD", "repository/tree", r"blobs/.*/raw", r"\.git/"])
@pytest.mark.parametrize("fault", ["502", "cut"])
async def test_what_breaks_twice_is_asked_for_a_third_time(
    server: GitLabServer, repository: GitRepository, gitlab: Make, path: str, fault: str
) -> None:
    if fault == "502":
        server.faults.bad_gateway(path=path, times=2)
    else:
        server.faults.cut_body(5, path=path, times=2)
    source = gitlab()

    entries = (await source.tree(await source.head())).entries
    few = await contents(source, entries[:2])
    found = await contents(source, entries)

    assert same_tree(entries, repository)
    assert found == expected(repository, entries)
    assert few.items() <= found.items()


async def test_a_gitlab_that_cannot_give_the_whole_tree_gives_it_in_pages(
    server: GitLabServer, repository: GitRepository, gitlab: Make
) -> None:
    server.faults.bad_gateway(path="pagination=none", times=None)
    source = gitlab()

    assert same_tree((await source.tree(await source.head())).entries, repository)


async def test_a_tree_that_fails_is_an_error_and_never_an_empty_tree(server: GitLabServer, gitlab: Make) -> None:
    source = gitlab()
    head = await source.head()
    server.faults.bad_gateway(path="repository/tree", times=None)

    with pytest.raises(SourceUnavailable, match="Reading the tree of platform/payments-api"):
        await source.tree(head)


@pytest.mark.parametrize("after_bytes", [0, 20, 2000])
async def test_a_pack_cut_anywhere_is_fetched_again(
    server: GitLabServer, repository: GitRepository, gitlab: Make, after_bytes: int
) -> None:
    server.faults.cut_body(after_bytes, path="git-upload-pack", times=1)
    source = gitlab()
    entries = (await source.tree(await source.head())).entries

    assert await contents(source, entries) == expected(repository, entries)
    assert len(server.log.git) == 3


async def test_content_that_does_not_hash_to_its_name_is_asked_for_again_and_never_given_out(
    server: GitLabServer, repository: GitRepository, gitlab: Make
) -> None:
    source = gitlab()
    entries = (await source.tree(await source.head())).entries[:3]
    server.faults.answer(200, "something else", path=entries[1].sha, times=2)

    assert await contents(source, entries) == expected(repository, entries)

    server.faults.answer(200, "something else", path=entries[1].sha, times=None)
    read: dict[str, bytes | None] = {}
    with pytest.raises(UnreadableBlobs, match=r"module_00001\.py: blob .* comes damaged") as caught:
        async for blob in source.read(entries, max_bytes=1000):
            read[blob.sha] = blob.content
    assert read == {sha: content for sha, content in expected(repository, entries).items() if sha != entries[1].sha}
    assert caught.value.reasons.keys() == {entries[1].sha}


@pytest.mark.parametrize("count", [3, 50])
async def test_blobs_that_gitlab_lost_are_named_after_the_others_were_read(
    repository: GitRepository, gitlab: Make, count: int
) -> None:
    source = gitlab()
    entries = (await source.tree(await source.head())).entries[:count]
    lost = type(entries[0])(b"lost.py", 0o100644, "7" * 40)

    read: dict[str, bytes | None] = {}
    with pytest.raises(UnreadableBlobs, match=r"lost\.py: blob 7+ is missing") as caught:
        async for blob in source.read([lost, *entries], max_bytes=1000):
            read[blob.sha] = blob.content

    assert read == expected(repository, entries)
    assert caught.value.reasons.keys() == {lost.sha}


async def test_a_gitlab_that_is_not_there_says_so(server: GitLabServer, project: Project, gitlab: Make) -> None:
    retry = RetryPolicy(attempts=2, first_delay_seconds=0.01)
    source = GitLabSource(GitLabProject("http://127.0.0.1:9", "a/b", retry=retry))

    with pytest.raises(SourceUnavailable, match=r"a/b on http://127\.0\.0\.1:9 failed 2 times: the connection failed"):
        await source.head()
    await source.close()


# Other hosts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [307])
@pytest.mark.parametrize("path", ["projects/platform", "commits/HEAD", "repository/tree", r"blobs/.*/raw", r"\.git/"])
async def test_no_redirect_makes_another_host_see_the_token(
    server: GitLabServer, gitlab: Make, status: int, path: str
) -> None:
    with OtherHost() as other:
        server.faults.redirect(other.url, status=status, path=path, times=None)
        # A project that was never seen is asked for by its path; of a known one, few blobs come by REST.
        source = gitlab(project_id=None if path.startswith("projects/") else 42)

        async def everything() -> None:
            entries = (await source.tree(await source.head())).entries
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


async def test_no_link_of_a_page_leads_to_another_host(
    server: GitLabServer, repository: GitRepository, gitlab: Make
) -> None:
    with OtherHost(body=b"[]") as other:
        link = f'<{other.url}/steal?token>; rel="next"'
        server.faults.answer(
            200, "[]", media_type="application/json", headers={"Link": link}, path="repository/tree", times=None
        )
        source = gitlab()
        head = await source.head()

        with pytest.raises(SourceError):
            await source.tree(head)
        assert other.requests == []


# Hanging -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stuck(work: asyncio.Task[object], gate: Gate) -> AsyncIterator[None]:
    """The task while the server withholds its answer."""
    assert await asyncio.to_thread(gate.arrived.wait, 10)
    assert not work.done()
    yield


@pytest.mark.parametrize("path", ["commits/HEAD", "repository/tree", r"blobs/.*/raw", r"\.git/"])
@pytest.mark.parametrize("after_bytes", [None, 10])
async def test_the_event_loop_ticks_while_an_answer_is_withheld_and_cancelling_is_prompt(
    server: GitLabServer, gitlab: Make, path: str, after_bytes: int | None
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    gate = server.faults.hold(path=path, after_bytes=after_bytes, times=None)
    source = gitlab(timeouts=Timeouts(read_seconds=120))

    async def everything() -> None:
        entries = (await source.tree(await source.head())).entries
        await contents(source, entries[:2])
        await contents(source, entries)

    if path != r"blobs/.*/raw":

        async def everything() -> None:  # type: ignore[no-redef]
            entries = (await source.tree(await source.head())).entries
            await contents(source, entries)

    work = asyncio.create_task(everything())
    async with stuck(work, gate):
        for _ in range(100):  # each turn of the loop is a tick; a blocked loop would hang here until the time-out
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(work, 5)

    del work
    gc.collect()
    assert reported == [], "what a cancelled call still said must not be reported as never heard"


@pytest.mark.parametrize("path", ["commits/HEAD", "repository/tree", r"\.git/"])
async def test_a_server_that_never_answers_is_given_up_after_the_time_out(
    server: GitLabServer, gitlab: Make, path: str
) -> None:
    server.faults.hold(path=path, times=None)
    retry = RetryPolicy(attempts=2, first_delay_seconds=0.001)
    source = gitlab(timeouts=Timeouts(read_seconds=0.2), retry=retry)

    with pytest.raises(SourceUnavailable, match="no answer within the time-out"):
        await contents(source, (await source.tree(await source.head())).entries)


async def test_a_source_works_on_after_a_cancelled_call(
    server: GitLabServer, repository: GitRepository, gitlab: Make
) -> None:
    source = gitlab()
    for _ in range(6):  # more often than there are threads
        gate = server.faults.hold(path="commits/HEAD")
        work = asyncio.create_task(source.head())
        async with stuck(work, gate):
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    assert (await source.head()).sha == repository.head()


@pytest.mark.parametrize("count", [10, 50])
async def test_a_reader_who_leaves_in_the_middle_leaves_no_task_behind(
    server: GitLabServer, repository: GitRepository, gitlab: Make, count: int
) -> None:
    source = gitlab()
    entries = (await source.tree(await source.head())).entries[:count]
    before = asyncio.all_tasks()

    async with aclosing(source.read(entries, max_bytes=1000)) as blobs:
        async for _ in blobs:
            break

    assert asyncio.all_tasks() == before
    assert len(await contents(source, entries)) == count
