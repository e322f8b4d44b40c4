"""A GitLab project as a source: how few requests it takes, and that what comes is exactly what the commit holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.sources.port import Commit
from tests.fixtures.repositories import GitRepository
from tests.integration.sources.conftest import PATH, TOKEN, Site, contents, entries_of, expected, same_tree


async def test_a_first_sync_costs_few_requests_and_an_unchanged_head_one(site: Site) -> None:
    """With 10,000 files: `tests/integration/sync/test_gitlab.py`."""
    site.repository.many(2_500)
    source, entries = await site.listed(project_id=None)
    found = await contents(source, entries)
    assert same_tree(entries, site.repository)
    assert len(found) == 2_500
    assert found[entries[17].sha] == site.repository.read(entries[17].sha)
    assert await source.project_id() == 42
    assert (len(site.server.log.rest), len(site.server.log.git)) == (3, 1 + 2)

    for branch in (None, "main"):
        site.server.log.forget()
        assert (await site.gitlab(branch=branch).head()).sha == site.repository.head()
        assert len(site.server.log) == 1, "nothing changed"


async def test_few_contents_come_by_rest_and_many_by_git(site: Site) -> None:
    site.repository.many(60)
    source, entries = await site.listed()
    site.server.log.forget()

    assert len(await contents(source, entries[:20])) == 20
    assert (len(site.server.log.rest), len(site.server.log.git)) == (20, 0)
    site.server.log.forget()
    assert len(await contents(source, entries[:21])) == 21
    assert (len(site.server.log.rest), len(site.server.log.git)) == (0, 2)


async def test_the_token_travels_as_bearer_and_as_git_s_password_only(site: Site) -> None:
    site.repository.many(30)
    source = site.gitlab()

    await contents(source, await entries_of(source))

    assert {record.credential for record in site.server.log.rest} == {"bearer"}
    assert {record.credential for record in site.server.log.git} == {"basic"}
    assert all(TOKEN not in f"{record.path}?{record.query}" for record in site.server.log)


@pytest.mark.parametrize(
    "paths",
    [
        [b"caf\xe9.py"],
        [b"docs/caf\xe9.py", b"docs/caf.py"],
        [b"\xff/\xfe/\xfd", b"a"],
        [b"x\xe9", b"x\xe8", b"x"],
        [b"new\nline", b'"', b"-rf", b" ", b"%2F%2e%2e", "日本/語.py".encode(), b"tab\t", b"..."],
    ],
    ids=["root", "two that look the same", "folders", "three that look the same", "odd but text"],
)
async def test_paths_that_json_cannot_hold_are_exact_all_the_same(site: Site, paths: list[bytes]) -> None:
    site.repository.commit({path: b"in %d" % at for at, path in enumerate(paths)})
    source, entries = await site.listed()

    assert same_tree(entries, site.repository)
    assert await contents(source, entries) == expected(site.repository, entries)
    lossy = any(path.decode("utf-8", "ignore").encode() != path for path in paths)
    assert len(site.server.log.git) == (2 if lossy else 0)


@pytest.mark.parametrize("is_git_refused", [False, True])
async def test_a_signed_commit_is_proven_by_two_git_requests_or_not_at_all(site: Site, is_git_refused: bool) -> None:
    site.repository.many(30)
    site.repository.sign()
    if is_git_refused:
        site.server.faults.refuse_git(403)
    source = site.gitlab()

    tree = await source.tree(await source.head())

    assert tree.proven is not is_git_refused
    assert same_tree(tree.entries, site.repository)
    assert (len(site.server.log.rest), len(site.server.log.git)) == ((4, 1) if is_git_refused else (2, 2))


async def test_a_commit_that_was_rewritten_away_is_a_reason_to_try_again_not_an_empty_tree(site: Site) -> None:
    site.repository.commit({"a.py": b"one\n"})
    source, head = await site.at_head()

    with pytest.raises(SourceUnavailable, match="branch was rewritten"):
        await source.tree(Commit("9" * 40, head.committed_at))


async def test_the_branch_that_is_read_has_its_name_at_no_cost_or_of_one_call(site: Site) -> None:
    site.repository.commit({"a.py": b"1\n"}, branch="develop")
    site.repository.commit({"a.py": b"1\n"})
    named, known, found = site.gitlab(branch="develop"), site.gitlab(), site.gitlab(project_id=None)
    for source in (named, known, found):
        await source.head()
    site.server.log.forget()

    assert await named.branch() == "develop"
    assert await found.branch() == "main"
    assert len(site.server.log) == 0
    assert [await known.branch(), await known.branch()] == ["main", "main"]
    assert len(site.server.log) == 1


async def test_a_tag_does_not_pass_for_a_branch_of_the_same_name(site: Site) -> None:
    old = site.repository.commit({"a.py": b"1\n"})
    new = site.repository.commit({"a.py": b"2\n"}, branch="release/1.0")
    site.repository.tag("release/1.0", old)

    assert (await site.gitlab(branch="release/1.0").head()).sha == new


@pytest.mark.parametrize("known", [None, 42])
async def test_a_moved_project_is_found_by_its_old_path_and_by_its_id(site: Site, known: int | None) -> None:
    site.repository.many(30)
    site.project.move("billing/payments")
    source, entries = await site.listed(project_id=known)

    assert await contents(source, entries) == expected(site.repository, entries)
    assert await source.project_id() == 42


async def test_a_different_project_at_the_old_path_is_not_mistaken_for_the_moved_one(
    site: Site, tmp_path: Path
) -> None:
    site.repository.many(60)
    site.project.move("billing/payments")
    other = GitRepository.create(tmp_path / "other.git")
    other.commit({"other.py": b"other\n"})
    site.server.add_project(PATH, other.path, id=43)
    source, entries = await site.listed(project_id=42)

    assert await contents(source, entries) == expected(site.repository, entries)
    assert site.server.log.matching("billing/payments.git"), "git follows to the new path"


async def test_a_project_may_be_given_by_its_number(site: Site) -> None:
    site.repository.many(30)
    source, head = await site.at_head("42", project_id=None)
    entries = (await source.tree(head)).entries

    assert await contents(source, entries) == expected(site.repository, entries)
    assert source.url(b"a.py", head, 1, 1) == f"{site.server.url}/{PATH}/-/blob/HEAD/a.py#L1"


async def test_links_are_the_same_from_commit_to_commit(site: Site) -> None:
    site.repository.commit({"a": b"1"}, branch="release/ü+1")
    source, head = await site.at_head(branch="release/ü+1")

    assert (
        source.url(b"src/a b#?.py", head, 10, 20)
        == f"{site.server.url}/{PATH}/-/blob/release/%C3%BC%2B1/src/a%20b%23%3F.py#L10-20"
    )
    assert site.gitlab().url(b"\xff.py", head, 3, 3) == f"{site.server.url}/{PATH}/-/blob/HEAD/%FF.py#L3"


async def test_a_public_project_needs_no_token(site: Site) -> None:
    site.repository.many(30)
    site.project.visibility = "public"
    source, entries = await site.listed(token=None)

    assert await contents(source, entries) == expected(site.repository, entries)
    assert {record.credential for record in site.server.log} == {None}


@pytest.mark.parametrize("status", [400, 502], ids=["does not know pagination=none", "cannot give the whole tree"])
async def test_pages_are_followed_through_those_that_hold_no_file(site: Site, status: int) -> None:
    site.server.faults.answer(status, path="pagination=none", times=None)
    # 150 folders: the first page of 100 rows holds folders only.
    site.repository.commit({f"d{number:03}/a.py": b"%d\n" % number for number in range(150)})
    _, entries = await site.listed()

    assert same_tree(entries, site.repository)
    assert len(site.server.log.matching("pagination=keyset")) == 3
    assert len(site.server.log.git) == 0, "pages are proven like any listing"


DEEP = "[" * 200_000 + "]" * 200_000
LONG_NUMBER = '[{"id": ' + "9" * 5_000_000 + "}]"


@pytest.mark.parametrize(
    "body",
    ["{}", "3", "[3]", '[{"id":"x"}]', "[NaN]", "<html>Sign in</html>", "", DEEP, LONG_NUMBER],
    ids=lambda body: repr(body[:20]),
)
async def test_an_answer_that_is_no_listing_is_never_an_empty_tree(site: Site, body: str) -> None:
    site.repository.commit({"a": b"1"})
    site.server.faults.answer(200, body, media_type="application/json", path="repository/tree", times=None)
    source, head = await site.at_head()

    with pytest.raises(SourceCorrupt, match=r"cannot be read|is no list|is no JSON"):
        await source.tree(head)
