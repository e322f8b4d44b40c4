"""A GitLab, or a proxy before it, that answers with status 200 and something else than was asked for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.outgoing import RetryPolicy
from reposync.sources.gitlab import GitLabSource
from reposync.sources.gitlab_blobs import HOPELESS_BLOBS
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Ancestry, Blob, TreeEntry
from tests.integration.sources.conftest import QUICK, Site, contents, same_tree

Rows = list[dict[str, Any]]
LIMIT = 2000
ONCE = RetryPolicy(attempts=1)


async def read(source: GitLabSource, entries: list[TreeEntry]) -> tuple[dict[str, Blob], dict[str, str]]:
    """The blobs by sha, and what is said about those that did not come."""
    found: dict[str, Blob] = {}
    try:
        async for blob in source.read(entries, max_bytes=LIMIT):
            found[blob.sha] = blob
    except UnreadableBlobs as error:
        return found, dict(error.reasons)
    return found, {}


HEAD = {"id": "1" * 40, "committed_date": "2026-01-01T00:00:00Z", "parent_ids": [], "message": "m"}


@pytest.mark.parametrize(
    "wrong",
    [{"committed_date": "0001-01-01T00:00:00+14:00"}, {"id": "../../../x"}, {"id": "12"}, {"id": 12}, {"id": "G" * 40}],
)
async def test_a_head_that_is_no_commit_is_a_damaged_answer(site: Site, wrong: dict[str, Any]) -> None:
    site.repository.commit({"a.py": b"1"})
    body = json.dumps(HEAD | wrong)
    site.server.faults.answer(200, body, path="/commits/", media_type="application/json", times=None)
    with pytest.raises(SourceCorrupt, match="the head is no commit"):
        await site.gitlab(project_id=42).head()


@pytest.mark.parametrize(
    ("status", "body", "headers", "words"),
    [
        (304, b"", {}, "a proxy or cache answered 304"),
        (200, gzip.compress(bytes(64_000_000)), {"Content-Encoding": "gzip"}, "the answer is too large"),
        (302, b"", {"Location": "/users/sign_in"}, "redirects to its login page"),
    ],
    ids=["not modified", "bomb", "login"],
)
async def test_what_a_proxy_answers_in_place_of_gitlab_is_retried_and_named(
    site: Site, status: int, body: bytes, headers: dict[str, str], words: str
) -> None:
    site.repository.commit({"a.py": b"ten bytes\n"})
    source, [entry] = await site.listed()
    site.server.faults.answer(200, "<html>Sign in", path="^/users/sign_in", media_type="text/html", times=None)
    for path in ("/commits/", "/repository/tree", "/blobs/.*/raw"):
        site.server.faults.answer(status, body, headers=headers, path=path)
    assert await source.head()
    assert await contents(source, [entry]) == {entry.sha: b"ten bytes\n"}

    site.server.faults.answer(status, body, headers=headers, path="/commits/|/blobs/.*/raw", times=None)
    with pytest.raises(SourceCorrupt, match=words):
        await source.head()
    ((_, reason),) = (await read(source, [entry]))[1].items()
    assert words in reason


@pytest.mark.parametrize("announced", [True, False])
async def test_a_login_page_over_the_limit_does_not_make_a_small_file_too_large(site: Site, announced: bool) -> None:
    site.repository.commit({"a.py": b"ten bytes\n"})
    source, [entry] = await site.listed()
    site.server.faults.web_page(42_035, announced=announced)

    assert await read(source, [entry]) == (
        {},
        {entry.sha: "comes damaged (it is text/html and has more than 2,000 bytes; GitLab knows 10)"},
    )
    site.server.faults.clear()
    assert await contents(source, [entry]) == {entry.sha: b"ten bytes\n"}


@pytest.mark.parametrize("size_bytes", [20, 42_035])
async def test_a_login_page_in_place_of_one_answer_is_followed_by_the_content(site: Site, size_bytes: int) -> None:
    site.repository.commit({"a.py": b"ten bytes\n"})
    source, [entry] = await site.listed()
    site.server.faults.web_page(size_bytes, times=1)

    assert await contents(source, [entry], max_bytes=LIMIT) == {entry.sha: b"ten bytes\n"}


@pytest.mark.parametrize("path", [b"huge.bin", b"a b/%2F\n#?&+/\xc3\xbc.bin", b"-rf/..."])
async def test_a_file_over_the_limit_costs_one_request_more_whatever_its_name(site: Site, path: bytes) -> None:
    site.repository.commit({path: bytes(300_000), b"small.py": b"1\n"})
    source, entries = await site.listed()
    site.repository.commit({path: None})  # the size is that of the commit that is read
    site.server.log.forget()

    found, reasons = await read(source, entries)

    assert reasons == {}
    assert {(blob.size_bytes, blob.content) for blob in found.values()} == {(300_000, None), (2, b"1\n")}
    assert sorted(record.method for record in site.server.log) == ["GET", "GET", "HEAD"]


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (200, {}, "GitLab does not confirm that"),
        (200, {"X-Gitlab-Size": "300000", "X-Gitlab-Blob-Id": "7" * 40}, "GitLab does not confirm that"),
        (200, {"X-Gitlab-Size": "300000"}, "GitLab does not confirm that"),
        (200, {"X-Gitlab-Size": "many", "X-Gitlab-Blob-Id": "its"}, "GitLab does not confirm that"),
        (200, {"X-Gitlab-Size": "9" * 5000, "X-Gitlab-Blob-Id": "its"}, "GitLab does not confirm that"),
        (200, {"X-Gitlab-Size": "1999", "X-Gitlab-Blob-Id": "its"}, "GitLab knows 1,999"),
        (403, {}, "GitLab does not confirm that"),
    ],
    ids=["nothing", "another blob", "no blob", "no number", "no size", "within the limit", "403"],
)
async def test_a_file_is_too_large_only_if_gitlab_says_so_of_that_very_blob(
    site: Site, status: int, headers: dict[str, str], words: str
) -> None:
    site.repository.commit({"huge.bin": bytes(300_000), "small.py": b"1\n"})
    source, entries = await site.listed(retry=ONCE)
    [huge] = [entry.sha for entry in entries if entry.path == b"huge.bin"]
    given = {name: huge if value == "its" else value for name, value in headers.items()}
    site.server.faults.answer(status, headers=given, method="HEAD", path="/repository/files/", times=None)

    found, reasons = await read(source, entries)

    assert [blob.content for blob in found.values()] == [b"1\n"]
    assert reasons == {huge: f"comes damaged (it has more than 2,000 bytes; {words})"}


async def test_a_size_that_gitlab_is_too_busy_to_send_is_requested_again_and_then_ends_the_read(site: Site) -> None:
    site.repository.commit({"huge.bin": bytes(300_000)})
    source, entries = await site.listed()
    site.server.faults.bad_gateway(method="HEAD", times=2)

    assert len((await read(source, entries))[0]) == 1

    site.server.faults.bad_gateway(method="HEAD", times=None)
    with pytest.raises(SourceUnavailable, match=r"Reading blob .* the server answered 502"):
        await read(source, entries)


async def test_one_file_that_comes_rightly_keeps_the_read_going_to_its_end(site: Site) -> None:
    site.repository.many(HOPELESS_BLOBS * 2)
    site.project.git_refused = 403
    source, entries = await site.listed(retry=ONCE)
    site.server.faults.web_page(500, path=f"/blobs/(?!{entries[50].sha}).*/raw")

    found, reasons = await read(source, entries)

    assert found.keys() == {entries[50].sha}
    assert len(reasons) == len(entries) - 1


async def test_a_server_that_answers_rubbish_for_everything_is_left_after_a_hundred_blobs(site: Site) -> None:
    site.repository.many(HOPELESS_BLOBS * 2)
    site.project.git_refused = 403
    site.server.faults.web_page(500)
    source, entries = await site.listed(retry=ONCE)

    with pytest.raises(SourceCorrupt, match=r"of the first 10\d blobs none .* 10\d times .* text/html") as caught:
        await contents(source, entries)

    assert not isinstance(caught.value, UnreadableBlobs)
    assert caught.value.retryable
    assert len(site.server.log.matching("/blobs/")) < HOPELESS_BLOBS + 10


WITHOUT_FIVE = (lambda rows: rows[:-5], r"what it lists in src/part_000/ does not hash to that folder's id")
WRONG = {
    "some are missing": WITHOUT_FIVE,
    "another mode": (lambda rows: [*rows[:-1], rows[-1] | {"mode": "100755"}], WITHOUT_FIVE[1]),
    "one twice": (lambda rows: [*rows, rows[-1]], r"src/part_000/module_00064\.py is listed twice"),
    "no folders": (
        lambda rows: [row for row in rows if row["type"] != "tree"],
        r"src/part_000/module_00000\.py is in a folder that is not listed",
    ),
    "no name": (lambda rows: [*rows[:-1], rows[-1] | {"path": ""}], "a row has no name"),
}


@pytest.mark.parametrize(("edit", "words"), WRONG.values(), ids=WRONG)
async def test_a_listing_that_contradicts_itself_is_an_error_if_git_cannot_confirm_it(
    site: Site, edit: Callable[[Rows], Rows], words: str
) -> None:
    site.repository.many(65)
    site.server.faults.refuse_git(403)
    site.server.faults.edit_rows(edit)
    source, head = await site.at_head()

    with pytest.raises(SourceCorrupt, match=f"the tree of platform/payments-api wrongly: {words}.*HTTP 403") as caught:
        await source.tree(head)

    assert caught.value.retryable
    assert "Allow git over HTTP" in str(caught.value.remedy)


async def test_a_folder_with_a_name_that_is_not_utf_8_is_an_error_if_git_is_refused(site: Site) -> None:
    site.repository.commit({b"docs/caf\xe9.py": b"1\n", b"plain.py": b"2\n"})
    site.server.faults.refuse_git(403)
    source, head = await site.at_head()

    with pytest.raises(SourceCorrupt, match=r"what it lists in docs/ .* A file name that is not UTF-8"):
        await source.tree(head)


@pytest.mark.parametrize("edit", [*(edit for edit, _ in WRONG.values()), lambda rows: []], ids=[*WRONG, "empty"])
async def test_git_corrects_a_wrong_listing(site: Site, edit: Callable[[Rows], Rows]) -> None:
    site.repository.many(65)
    site.server.faults.edit_rows(edit)
    source = site.gitlab()

    tree = await source.tree(await source.head())

    assert tree.proven
    assert same_tree(tree.entries, site.repository)


@pytest.mark.parametrize(
    "kept", [lambda row: row["path"] != "root.py", lambda row: False], ids=["lacks a file", "is empty"]
)
async def test_a_listing_that_lacks_rows_of_the_root_is_not_proven(
    site: Site, kept: Callable[[dict[str, Any]], bool]
) -> None:
    site.repository.commit({"root.py": b"1\n", "src/a.py": b"2\n", "other.py": b"3\n"})
    site.server.faults.refuse_git(403)
    site.server.faults.edit_rows(lambda rows: [row for row in rows if kept(row)])
    source = site.gitlab()

    assert not (await source.tree(await source.head())).proven


async def test_a_wrong_listing_beside_a_git_that_filters_nothing_says_why_git_was_not_used(site: Site) -> None:
    site.repository.many(40)
    site.project.allow_filter = False
    site.server.faults.edit_rows(WITHOUT_FIVE[0])
    source, head = await site.at_head(retry=QUICK)

    with pytest.raises(SourceCorrupt, match=r"cannot confirm it \(it would send all contents too\)"):
        await source.tree(head)


async def test_many_damaged_blobs_do_not_cost_four_requests_each(site: Site) -> None:
    site.repository.many(19)
    source, entries = await site.listed()
    site.server.faults.web_page(20)
    site.server.log.forget()
    assert len((await read(source, entries))[1]) == 19
    assert len(site.server.log.matching("/blobs/")) <= 2 * 19 + 2 * 8


@pytest.mark.parametrize("media_type", ["application/json", "text/html"])
@pytest.mark.parametrize("body", ["3", "[]", "<html>Sign in</html>"])
async def test_an_answer_that_is_no_merge_base_is_a_passing_fault(site: Site, body: str, media_type: str) -> None:
    first = site.repository.commit({"a.py": b"1"})
    tip = site.repository.commit({"a.py": b"2"})
    source, _ = await site.at_head()
    site.server.faults.answer(200, body, media_type=media_type, path="/merge_base", times=None)
    with pytest.raises(SourceCorrupt, match="the answer is no"):
        await source.ancestry(first, tip)

    site.server.faults.clear()
    assert await source.ancestry(first, tip) is Ancestry.CONTAINED
