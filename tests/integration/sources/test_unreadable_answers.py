"""Answers with status 200 that no parser should be given: they are damaged, which may pass, and never a defect here."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from reposync.errors import SourceCorrupt, SourceGone
from reposync.outgoing import RetryPolicy
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.gitlab_groups import GitLabGroup
from reposync.sources.spec import GitLabProject
from tests.integration.sources.conftest import PATH, QUICK, TOKEN, Site

UNREADABLE = {
    "nests 200,000 deep": b"[" * 200_000 + b"]" * 200_000,
    "nests 900 deep": b'[{"id":' + b"[" * 900 + b"]" * 900 + b"}]",
    "a number of 5 million digits": b'[{"id": ' + b"9" * 5_000_000 + b"}]",
    "a web page": b"<html>Sign in</html>",
    "nothing": b"",
    "no number": b"[NaN]",
    "no UTF-8": b'["\xff"]',
}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/repository/tree", body) for body in UNREADABLE.values()]
    + [(path, UNREADABLE["a web page"]) for path in ("/projects/platform", "/commits/HEAD")],
)
async def test_an_answer_of_gitlab_that_cannot_be_parsed_is_tried_again_by_the_run(
    site: Site, path: str, body: bytes
) -> None:
    site.repository.commit({"a.py": b"1\n"})
    site.server.faults.refuse_git(403)
    fault = site.server.faults.answer(200, body, media_type="application/json", path=path, times=None)
    source = site.gitlab(project_id=None)

    with pytest.raises(SourceCorrupt) as raised:
        await source.tree(await source.head())

    assert raised.value.retryable
    assert raised.value.code == "SOURCE_CORRUPT"
    assert fault.struck


async def test_a_group_that_is_listed_so_is_tried_again(site: Site) -> None:
    body = UNREADABLE["a web page"]
    site.server.faults.answer(200, body, media_type="application/json", path="/groups/", times=None)
    group = GitLabGroup(
        GitLabClient(GitLabProject(site.server.url, PATH, token=SecretStr(TOKEN)), retry=QUICK), "platform"
    )

    with pytest.raises(SourceCorrupt):
        await group.projects(archived=False)

    await group.close()


async def test_a_look_whether_gitlab_is_there_is_not_answered_by_it(site: Site) -> None:
    body = UNREADABLE["nests 200,000 deep"]
    site.server.faults.answer(200, body, media_type="application/json", path="/version", times=None)

    client = GitLabClient(GitLabProject(site.server.url, PATH, token=SecretStr(TOKEN)), retry=RetryPolicy(attempts=1))
    with pytest.raises(SourceCorrupt):
        await client.ping()
    await client.close()


async def test_a_refusal_that_nests_without_end_is_still_a_refusal(site: Site) -> None:
    site.server.faults.answer(404, b"[" * 60_000, media_type="application/json", path="/projects/", times=None)

    with pytest.raises(SourceGone):
        await site.gitlab(project_id=None).head()


@pytest.mark.parametrize("path", [f"/{PATH}.git/info/refs", f"/{PATH}.git/git-upload-pack"])
async def test_a_page_in_place_of_git_s_answer_is_tried_again_by_the_run(site: Site, path: str) -> None:
    site.repository.commit({"a.py": b"1\n"})
    site.server.faults.web_page(500, path=path)

    with pytest.raises(SourceCorrupt) as raised:
        await site.remote().head()

    assert raised.value.retryable
    site.server.faults.clear()
    assert await site.remote().head()
