"""Repositories behind an http(s) URL: any git server, with and without what GitLab's offers."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from reposync.errors import (
    SourceCorrupt,
    SourceDenied,
    SourceError,
    SourceGone,
)
from reposync.sources.object_stores import SpoolFull
from reposync.sources.port import RemoteGit
from reposync.sources.remote import RemoteGitSource
from reposync.sources.smart_http import UploadPack
from tests.fixtures.gitlab_server import OtherHost
from tests.fixtures.repositories import GitRepository, Submodule, Symlink
from tests.integration.sources.conftest import (
    PATH,
    QUICK,
    TOKEN,
    Site,
    Watched,
    contents,
    expected,
    listed,
    same_tree,
)

WRONG = "hunter2-secret"

pytestmark = pytest.mark.usefixtures("project")


async def test_a_repository_is_read_with_few_requests(site: Site) -> None:
    site.repository.many(2500)
    site.repository.commit({b"caf\xe9.py": b"1\n", b"link": Symlink("/etc/passwd"), b"library": Submodule("1" * 40)})
    watched = Watched()
    source = site.remote(observer=watched)

    head = await source.head()
    entries = (await source.tree(head)).entries
    found = await contents(source, entries)

    assert head.sha == site.repository.head()
    assert head.committed_at == datetime(2024, 1, 1, 0, 1, tzinfo=UTC)
    assert same_tree(entries, site.repository)
    assert len(found) == 2502
    assert watched.requests == ["git_refs", "git_refs", "git_fetch", "git_fetch", "git_fetch"]
    assert len(site.server.log) == len(watched.requests)
    assert source.url(b"a", head, 1, 1) is None
    assert await source.project_id() is None


async def test_a_server_without_filters_sends_everything_once(site: Site) -> None:
    site.repository.many(200)
    site.project.allow_filter = False
    site.project.allow_any_sha = False
    source = site.remote()

    head = await source.head()
    entries = (await source.tree(head)).entries

    assert await contents(source, entries) == expected(site.repository, entries)
    assert same_tree(entries, site.repository)
    assert len(site.server.log) == 3
    site.server.log.forget()

    known = await site.remote(known_commit=head).head()
    assert known == head
    assert len(site.server.log) == 2, "a known head fetches nothing"


async def test_names_of_sha_256_are_spoken(site: Site, tmp_path: Path) -> None:
    repository = GitRepository.create(tmp_path / "r.git", object_format="sha256")
    repository.many(30)
    site.server.add_project("platform/new", repository.path)
    source, entries = await listed(site.remote(f"{site.server.url}/platform/new.git"))

    assert {len(entry.sha) for entry in entries} == {64}
    assert same_tree(entries, repository)
    assert await contents(source, entries) == expected(repository, entries)


async def test_the_branch_that_is_read_has_its_name_and_costs_nothing_after_the_head(site: Site) -> None:
    site.repository.commit({"a.py": b"1\n"}, branch="develop")
    site.repository.commit({"a.py": b"1\n"}, branch="main")
    source, named = site.remote(), site.remote(branch="develop")
    await source.head()
    asked = len(site.server.log)

    assert (await source.branch(), await named.branch()) == ("main", "develop")
    assert len(site.server.log) == asked
    site.repository.set_head("develop")
    assert (await source.branch(), await source.branch(fresh=True)) == ("main", "develop")


async def test_refused_credentials_are_tried_once_and_never_shown(site: Site) -> None:
    site.repository.commit({"a": b"1"})

    with pytest.raises(SourceDenied, match=r"refused the credentials \(401\).*Access denied") as caught:
        await site.remote(password=SecretStr(WRONG)).head()

    assert len(site.server.log) == 1
    shown = "".join(traceback.format_exception(caught.value))
    assert WRONG not in shown
    assert "Basic " not in str(caught.value.__cause__)


async def test_missing_credentials_and_missing_repositories_are_different_errors(site: Site) -> None:
    site.repository.commit({"a": b"1"})

    with pytest.raises(SourceDenied, match="requires a user name and a password"):
        await site.remote(username=None, password=None).head()
    with pytest.raises(SourceGone, match=r"was not found \(404\): it is missing, or hidden"):
        await site.remote(f"{site.server.url}/no/such.git").head()
    site.server.faults.refuse_git(403)
    with pytest.raises(SourceDenied, match=r"\(403\)"):
        await site.remote().head()


@pytest.mark.parametrize("body", ["<html>Welcome</html>", "", "0000", "001e# service=git-upload-pack\n0000"])
async def test_a_page_with_status_200_is_a_passing_fault_with_advice_on_the_url(body: str) -> None:
    """A login page or a notice of maintenance, sent by a proxy, will be gone at the next run."""
    for media_type in ("text/html", "application/x-git-upload-pack-advertisement"):
        with OtherHost(body=body.encode(), media_type=media_type) as other:
            source = RemoteGitSource(RemoteGit(f"{other.url}/x.git", retry=QUICK))
            with pytest.raises(SourceCorrupt, match=r"not answer as a git server|cut short|not git's") as raised:
                await source.head()
            assert raised.value.retryable
            assert raised.value.remedy is None or "check the URL" in raised.value.remedy
            await source.close()


async def test_a_redirect_on_the_same_server_is_followed_for_good(site: Site, tmp_path: Path) -> None:
    site.repository.many(30)
    site.server.add_project(f"new/{PATH}", site.repository.path)
    site.server.faults.redirect(f"{site.server.url}/new", path=f"^/{PATH}", times=None, status=301)
    source, entries = await listed(site.remote())

    assert await contents(source, entries) == expected(site.repository, entries)
    assert len(site.server.log.matching(f"^/{PATH}")) == 1


async def test_redirects_in_a_circle_come_to_an_end(site: Site) -> None:
    site.server.faults.answer(302, headers={"Location": "?service=git-upload-pack"}, path="info/refs", times=None)
    with pytest.raises(SourceError, match="in a circle"):
        await site.remote().head()


@pytest.mark.parametrize("where", ["info/refs", "/git-upload-pack$"])
@pytest.mark.parametrize("status", [301, 307])
async def test_no_redirect_sends_the_password_to_a_different_host(site: Site, where: str, status: int) -> None:
    site.repository.commit({"a": b"1"})
    with OtherHost() as other:
        site.server.faults.redirect(other.url, path=where, times=None, status=status)
        with pytest.raises(SourceError):
            await site.remote().head()
        assert other.requests == []


@pytest.mark.parametrize("after_bytes", [0, 100])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_any_answer_cut_anywhere_is_requested_again(site: Site, after_bytes: int, nth: int) -> None:
    site.repository.many(40)
    site.server.faults.cut_body(after_bytes, path=r"\.git/", nth=nth, times=1)
    source, entries = await listed(site.remote())

    assert await contents(source, entries) == expected(site.repository, entries)


async def test_batches_that_do_not_fit_on_the_disk_are_halved_and_a_single_blob_is_named(site: Site) -> None:
    big = b"".join(b"%d" % number for number in range(2000))
    site.repository.commit({f"f{number}": b"%d" % number for number in range(20)} | {"big": big})
    shas = {row.sha: site.repository.read(row.sha) for row in site.repository.ls_tree()}
    spec = RemoteGit(f"{site.server.url}/{PATH}.git", username="oauth2", password=SecretStr(TOKEN), retry=QUICK)
    upload_pack = UploadPack(spec, max_spool_bytes=600)
    unreadable: dict[str, str] = {}

    with pytest.raises(SpoolFull):
        await upload_pack.fetch(list(shas))
    found = {blob.sha: blob async for blob in upload_pack.blobs(list(shas), max_bytes=1000, unreadable=unreadable)}
    await upload_pack.close()

    [missing] = shas.keys() - found.keys()
    assert shas[missing] == big
    assert unreadable == {missing: "is too large to be fetched"}
    assert all(blob.content == shas[sha] for sha, blob in found.items())
