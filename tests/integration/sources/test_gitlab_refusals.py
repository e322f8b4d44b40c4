"""What a person reads when GitLab says no, and what is done when only git does."""

from __future__ import annotations

import re
import traceback
from typing import Any, Literal

import pytest

from reposync.errors import RepoSyncError, SourceDenied, SourceError, SourceGone
from reposync.sources.gitlab import GitLabSource
from reposync.sources.smart_http import packet
from tests.integration.sources.conftest import TOKEN, Site, contents, expected, same_tree

SECRET = "glpat-another-secret"


async def refusal(source: GitLabSource) -> RepoSyncError:
    """The error of the first call; it must be one for a person, and must not hold a secret anywhere."""
    with pytest.raises(RepoSyncError) as caught:
        await source.tree(await source.head())
    shown = "".join(traceback.format_exception(caught.value, chain=True)) + repr(caught.value)
    # The tracebacks show lines of code, never values; messages of every cause are in them.
    assert SECRET not in shown
    assert TOKEN not in shown
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("token", "kind", "words"),
    [
        ({"expired": True}, SourceDenied, "does not accept the token.*expired"),
        ({"revoked": True}, SourceDenied, "does not accept the token.*revoked"),
        ({"scopes": ("read_user",)}, SourceDenied, "lacks a scope: .* needs api or read_api"),
        ({"projects": ()}, SourceGone, "missing, or hidden from this token"),
        (None, SourceDenied, "does not accept the token"),
    ],
    ids=["expired", "revoked", "wrong scope", "not a member", "unknown"],
)
@pytest.mark.parametrize("known", [None, 42])
async def test_each_refusal_says_what_is_wrong_with_the_token(
    site: Site, token: dict[str, Any] | None, kind: type[RepoSyncError], words: str, known: int | None
) -> None:
    site.repository.commit({"a": b"1"})
    if token is not None:
        site.server.add_token(SECRET, **token)

    error = await refusal(site.gitlab(token=SECRET, project_id=known))

    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error
    by_path = kind is SourceGone and known is not None
    assert len(site.server.log) == 1 + by_path, "an error that needs a person is not retried"


async def test_a_private_project_without_a_token_says_that_none_was_given(site: Site) -> None:
    site.repository.commit({"a": b"1"})

    assert "private: no token was given" in str(await refusal(site.gitlab(token=None)))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, b'{"message": "403 Forbidden"}', "may not read the repository .*403 Forbidden.*Reporter"),
        (403, b'{"message": {"error": "Too\\u001b many"}}', "GitLab says: Too many"),
        (403, b"<html>nginx</html>", r"may not read the repository of project platform/payments-api\. Its user"),
        (404, b"[" * 60_000, "missing, or hidden"),
        (418, b"[3]", "answered 418 about project"),
    ],
)
async def test_any_refusal_becomes_an_error_with_advice(site: Site, status: int, body: bytes, words: str) -> None:
    site.server.faults.answer(status, body, media_type="application/json", path="/projects/", times=None)

    assert re.search(words, str(await refusal(site.gitlab(project_id=None))))


async def test_a_deleted_project_and_one_that_never_was_are_gone_not_empty(site: Site) -> None:
    site.repository.commit({"a": b"1"})
    source, head = await site.at_head()
    site.project.deleted = True

    assert isinstance(await refusal(site.gitlab()), SourceGone)
    assert isinstance(await refusal(site.gitlab("no/such", project_id=None)), SourceGone)
    with pytest.raises(SourceGone):
        await source.tree(head)


async def test_a_project_that_goes_away_in_the_middle_of_a_read_is_gone(site: Site) -> None:
    site.repository.many(30)
    source, entries = await site.listed()
    site.project.deleted = True

    for wanted in (entries[:3], entries):
        with pytest.raises(SourceGone):
            await contents(source, wanted)


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_where_git_is_refused_everything_comes_by_rest(site: Site, status: Literal[401, 403, 404]) -> None:
    site.repository.many(60)
    site.project.git_refused = status
    source, entries = await site.listed()
    first = await contents(source, entries)
    again = await contents(source, entries)

    assert first == again == expected(site.repository, entries)
    assert len(site.server.log.git) == 1, "one refusal is enough: failed logins get the address banned"


async def test_where_git_speaks_an_old_protocol_everything_comes_by_rest(site: Site) -> None:
    site.repository.many(30)
    line = f"{site.repository.head()} HEAD\0side-band-64k\n".encode()
    old = b"001e# service=git-upload-pack\n0000" + packet(line) + b"0000"
    media_type = "application/x-git-upload-pack-advertisement"
    site.server.faults.answer(200, old, media_type=media_type, path="info/refs", times=None)
    source, entries = await site.listed()

    assert await contents(source, entries) == expected(site.repository, entries)
    with pytest.raises(SourceError, match="does not speak version 2"):
        await site.remote().head()


async def test_where_git_is_switched_off_for_the_instance_paths_are_as_json_has_them(site: Site) -> None:
    site.repository.commit({b"caf\xe9.py": b"1\n", b"plain.py": b"2\n"})
    site.server.faults.refuse_git(403)
    source, entries = await site.listed()

    assert {entry.path for entry in entries} == {b"caf.py", b"plain.py"}
    assert await contents(source, entries) == expected(site.repository, entries)


async def test_a_git_server_without_filters_gets_no_request_for_a_tree(site: Site) -> None:
    site.repository.many(40)
    site.repository.commit({"signed": b"1"}, when=None)
    site.project.allow_filter = False
    source, entries = await site.listed()
    found = await contents(source, entries)

    assert same_tree(entries, site.repository)
    assert found == expected(site.repository, entries)
