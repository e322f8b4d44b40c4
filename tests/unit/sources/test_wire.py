"""Messages of git servers and refusals of GitLab, and how they are read."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from reposync.errors import SourceDenied, SourceError, SourceGone
from reposync.http_client import HttpRefused, TransientFailure
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.smart_http import FetchRefused, PacketReader, Refs, packet, parse_advertisement

# Pkt-lines -----------------------------------------------------------------------------------------------------------


@given(lines=st.lists(st.binary(min_size=1, max_size=300), max_size=8), cuts=st.lists(st.integers(0, 2500), max_size=8))
def test_packets_are_the_same_however_the_network_cuts_them(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(packet(line) for line in lines) + b"0000"
    reader = PacketReader()
    places = sorted({0, *(cut % (len(stream) + 1) for cut in cuts), len(stream)})

    found = [item for start, end in pairwise(places) for item in reader.feed(stream[start:end])]

    assert found == [*lines, None]
    assert reader.complete


@given(st.binary(max_size=100))
def test_rubbish_is_no_packet_and_raises_nothing_unforeseen(rubbish: bytes) -> None:
    reader = PacketReader()
    try:
        for _ in reader.feed(rubbish):
            pass
    except TransientFailure:
        return


def test_an_advertisement_of_version_2_contains_filters_and_hashes() -> None:
    server = parse_advertisement([b"version 2", b"agent=git/2", b"fetch=shallow filter", b"object-format=sha256"], "it")

    assert (server.version, server.filters, server.object_format) == (2, True, "sha256")


def test_an_advertisement_of_version_0_holds_the_refs_without_peeled_tags() -> None:
    sha = b"1" * 40
    first = sha + b" HEAD\0side-band-64k shallow symref=HEAD:refs/heads/main"

    server = parse_advertisement([b"# service=git-upload-pack", first, sha + b" refs/tags/v1^{}"], "it")

    assert server.version == 0
    assert server.refs == Refs({b"HEAD": "1" * 40}, {b"HEAD": b"refs/heads/main"})
    assert not server.filters


def test_what_git_refuses_with_is_cleaned_of_control_characters() -> None:
    with pytest.raises(FetchRefused) as refused:
        parse_advertisement([b"ERR no\x1b[31m such\r\nrepository"], "it")

    assert str(refused.value) == "no[31m such repository"


# Refusals of GitLab ---------------------------------------------------------------------------------------------------


def refusal(status: int, body: object, *, has_token: bool = True) -> SourceError:
    text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    client = GitLabClient("https://x", token=SecretStr("glpat-x") if has_token else None)
    return client.explain(HttpRefused(status, text), path="g/p")


def test_each_kind_of_refusal_says_what_a_person_must_do() -> None:
    expired = refusal(401, {"error": "invalid_token", "error_description": "Token is expired. You can either ..."})
    revoked = refusal(401, {"error": "invalid_token", "error_description": "Token was revoked. You have to ..."})
    unknown = refusal(401, {"message": "401 Unauthorized"})
    scope = refusal(403, {"error": "insufficient_scope", "error_description": "...", "scope": "api read_api"})
    role = refusal(403, {"message": "403 Forbidden"})
    hidden = refusal(404, {"message": "404 Project Not Found"})
    anonymous = refusal(404, {"message": "404 Project Not Found"}, has_token=False)

    assert all(isinstance(error, SourceDenied) for error in (expired, revoked, unknown, scope, role))
    assert isinstance(hidden, SourceGone)
    assert "has expired" in str(expired)
    assert "was revoked" in str(revoked)
    assert "is not known there" in str(unknown)
    assert "needs api or read_api" in str(scope)
    assert "Reporter" in str(role)
    assert "missing, or hidden from this token" in str(hidden)
    assert "no token was given" in str(anonymous)


@given(
    st.integers(400, 499), st.one_of(st.text(max_size=200), st.dictionaries(st.text(max_size=9), st.text(max_size=9)))
)
def test_any_body_of_a_refusal_becomes_an_error_with_words(status: int, body: object) -> None:
    assert "g/p" in str(refusal(status, body))
