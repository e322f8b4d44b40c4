"""What a repository on this machine, a git server and a GitLab project do alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reposync.errors import BranchNotFound, RepositoryEmpty
from reposync.sources.objects import UnreadableBlobs
from reposync.sources.port import Source, TreeEntry
from tests.fixtures.repositories import Executable, Submodule, Symlink
from tests.integration.sources.conftest import Site, contents, entries_of, expected, same_tree

Open = Callable[..., Source]


@pytest.fixture(params=["local", "remote", "gitlab"])
def source(request: pytest.FixtureRequest, site: Site) -> Open:
    """Opens the repository, of a branch or not."""
    opened: Open = getattr(site, request.param)
    return opened


async def test_every_kind_of_entry_and_path_is_read_as_git_has_it(site: Site, source: Open) -> None:
    names = [
        b"a b",
        b"-rf",
        b"new\nline",
        b"caf\xe9.py",
        "日本/語.py".encode(),
        b"%2F",
        b'"quoted"',
        b"back\\slash",
    ]
    site.repository.commit({name: b"content of " + name for name in names})
    site.repository.commit({"deep/er/and/deeper/empty.py": b""})
    site.repository.commit({"run.sh": Executable(b"#!/bin/sh\n")})
    site.repository.commit({"link": Symlink("/etc/passwd")})
    site.repository.commit({"library": Submodule("1" * 40)})
    opened = source()
    entries = await entries_of(opened)
    found = await contents(opened, entries)

    assert same_tree(entries, site.repository)
    assert {entry.path for entry in entries if entry.is_symlink} == {b"link"}
    assert {entry.path for entry in entries if entry.is_submodule} == {b"library"}
    assert b"/etc/passwd" in found.values(), "a symlink is a blob whose content is a path"
    assert found == expected(site.repository, entries)


async def test_branches_and_their_absence_are_named(site: Site, source: Open) -> None:
    site.project.no_default_branch = True
    for branch in (None, "main"):
        with pytest.raises(RepositoryEmpty, match="has no commit yet"):
            await source(branch=branch).head()
    develop = site.repository.commit({"a": b"1"}, branch="develop")
    site.repository.commit({"a": b"2"}, branch="release/1")
    for branch, words in [
        ("develp", r"no branch 'develp'\. Did you mean develop\?"),
        ("zzz", "Its branches: develop, release/1"),
        (None, "no default branch.*develop"),
    ]:
        with pytest.raises(BranchNotFound, match=words):
            await source(branch=branch).head()
    assert (await source(branch="develop").head()).sha == develop

    site.project.no_default_branch = False
    main = site.repository.commit({"a": b"2"})
    assert (await source().head()).sha == main


@pytest.mark.parametrize("has_filters", [True, False])
async def test_a_new_commit_is_seen_by_a_source_that_stays_open(site: Site, source: Open, has_filters: bool) -> None:
    site.project.allow_filter = has_filters
    site.repository.git("config", "fastimport.unpackLimit", "0")  # a pack for each commit
    opened = source()
    for number in range(2):
        sha = site.repository.commit({"a.py": b"%d\n" % number})
        head = await opened.head()
        entries = (await opened.tree(head)).entries

        assert head.sha == sha
        assert list((await contents(opened, entries)).values()) == [b"%d\n" % number]


async def test_an_empty_tree_is_empty(site: Site, source: Open) -> None:
    site.repository.commit({"a.py": b"one\n"})
    site.repository.commit({"a.py": None})
    opened = source()

    assert await entries_of(opened) == []
    assert await contents(opened, []) == {}


@pytest.mark.parametrize("count", [3, 50])
async def test_missing_blobs_are_named_after_all_others_were_read(site: Site, source: Open, count: int) -> None:
    site.repository.many(50)
    opened = source()
    entries = (await entries_of(opened))[:count]
    lost = TreeEntry(b"lost.py", 0o100644, "7" * 40)

    read: dict[str, bytes | None] = {}
    with pytest.raises(UnreadableBlobs, match=r"lost\.py: blob 7+ is missing") as caught:
        async for blob in opened.read([lost, *entries], max_bytes=1000):
            read[blob.sha] = blob.content

    assert read == expected(site.repository, entries)
    assert caught.value.reasons.keys() == {lost.sha}
