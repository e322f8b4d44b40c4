"""A GitLab project as a source: how few requests it takes, and that what comes is exactly what the commit holds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from reposync.errors import SourceCorrupt, SourceUnavailable
from reposync.sources.port import Commit
from tests.fixtures.repositories import GitRepository
from tests.integration.sources.conftest import PATH, TOKEN, Site, Watched, contents, entries_of, expected, same_tree


async def test_a_first_sync_costs_few_requests_and_an_unchanged_head_one(site: Site) -> None:
    """With 10,000 files: `tests/integration/sync/test_gitlab.py`."""
    site.repository.many(2_500)
    site.repository.commit({".gitattributes": b"*.min.js linguist-generated\n"})
    source, entries = await site.listed(project_id=None)
    rules = await contents(source, [entry for entry in entries if entry.path == b".gitattributes"])
    found = await contents(source, entries)
    assert same_tree(entries, site.repository)
    assert rules.items() <= found.items()
    assert len(found) == 2_501
    assert found[entries[17].sha] == site.repository.read(entries[17].sha)
    assert await source.project_id() == 42
    assert (len(site.server.log.rest), len(site.server.log.git)) == (3, 1 + 1 + 2)

    for branch in (None, "main"):
        site.server.log.forget()
        assert (await site.gitlab(branch=branch).head()).sha == site.repository.head()
        assert len(site.server.log) == 1, "nothing changed"


async def test_few_contents_come_by_rest_and_many_by_git(site: Site) -> None:
    site.repository.many(60)
    watched = Watched()
    source, entries = await site.listed(observer=watched)

    assert len(await contents(source, entries[:20])) == 20
    assert watched.requests == ["api_head", "api_tree", *["api_blob"] * 20]
    assert len(await contents(source, entries[:21])) == 21
    assert watched.requests[22:] == ["git_refs", "git_fetch"]
    assert len(watched.requests) == len(site.server.log)


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


async def test_a_head_that_moves_in_the_middle_of_a_run_does_not_mix_two_commits(site: Site) -> None:
    first = site.repository.commit({"a.py": b"one\n"})
    site.server.faults.call(lambda: site.repository.commit({"a.py": b"two\n", "b.py": b"b\n"}), path="repository/tree")
    source, head = await site.at_head()
    entries = (await source.tree(head)).entries

    assert head.sha == first
    assert list((await contents(source, entries)).values()) == [b"one\n"]
    assert (await source.head()).sha == site.repository.head() != first


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


async def test_a_default_branch_that_is_renamed_is_followed_and_named_by_a_fresh_request(site: Site) -> None:
    site.repository.commit({"a.py": b"1\n"})
    source = site.gitlab()
    assert await source.branch() == "main"
    site.repository.git("branch", "-m", "main", "trunk")
    sha = site.repository.commit({"a.py": b"2\n"}, branch="trunk")

    assert (await source.head()).sha == sha
    assert (await source.branch(), await source.branch(fresh=True)) == ("main", "trunk")
    site.project.no_default_branch = True
    assert await source.branch(fresh=True) is None


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
    """Their links have the address that GitLab is configured with."""
    site.server.faults.answer(status, path="pagination=none", times=None)
    site.server.faults.throttle("application", path="page_token", nth=2)
    # 150 folders: the first page of 100 rows holds folders only.
    site.repository.commit({f"d{number:03}/a.py": b"%d\n" % number for number in range(150)})
    source = site.gitlab()
    site.server.url = "https://gitlab.example.com"
    entries = await entries_of(source)

    assert same_tree(entries, site.repository)
    assert len(site.server.log.matching("pagination=keyset")) == 3 + 1, "a rate limit on one page repeats that page"
    assert len(site.server.log.git) == 0, "pages are proven like any listing"


async def test_pages_that_lead_in_a_circle_come_to_an_end(site: Site) -> None:
    site.repository.commit({"a": b"1"})
    link = {"Link": f'<{site.server.url}/api/v4/projects/42/repository/tree?again>; rel="next"'}
    answer = partial(site.server.faults.answer, 200, "[]", media_type="application/json", headers=link)
    answer(path="repository/tree", times=None)
    source, head = await site.at_head()

    with pytest.raises(SourceCorrupt, match="in a circle"):
        await source.tree(head)


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


@pytest.mark.parametrize("path", ["/projects/platform", "commits/HEAD"])
@pytest.mark.parametrize(
    "body", ["{}", "3", "[]", "<html>Sign in</html>", DEEP, LONG_NUMBER], ids=lambda body: repr(body[:20])
)
async def test_an_answer_that_is_no_project_or_commit_is_a_passing_fault(site: Site, path: str, body: str) -> None:
    site.repository.commit({"a": b"1"})
    fault = site.server.faults.answer(200, body, media_type="application/json", path=path, times=None)

    with pytest.raises(SourceCorrupt) as raised:
        await site.gitlab(project_id=None).head()

    assert raised.value.retryable
    assert fault.struck
