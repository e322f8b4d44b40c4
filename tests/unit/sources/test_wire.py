"""What servers say and how it is read: pkt-lines, advertisements, Retry-After, addresses, refusals in words."""

from __future__ import annotations

import json
import time
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from reposync.errors import ConfigError, SourceDenied, SourceError, SourceGone, SourceUnavailable
from reposync.sources.addresses import check_way, header_secret, parse_address, redirected, same_home
from reposync.sources.git_protocol import FetchRefused, parse_advertisement
from reposync.sources.gitlab_words import explain
from reposync.sources.pktline import FLUSH_PACKET, FramingError, Mark, PacketReader, packet
from reposync.sources.rest import RestRefused
from reposync.sources.retries import TransientFailure, patiently, retry_after_seconds
from reposync.sources.spec import Patience

QUICK = Patience(first_delay_seconds=0.001, max_delay_seconds=0.002, max_wait_seconds=1)


class Watched:
    """Keeps what an observer is told."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def request(self, kind: str) -> None: ...

    def rate_limited(self, seconds: float) -> None:
        self.waits.append(seconds)


# Pkt-lines -----------------------------------------------------------------------------------------------------------


@given(lines=st.lists(st.binary(min_size=1, max_size=300), max_size=8), cuts=st.lists(st.integers(0, 2500), max_size=8))
def test_packets_are_the_same_however_the_network_cuts_them(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(packet(line) for line in lines) + FLUSH_PACKET
    reader = PacketReader()
    places = sorted({0, *(cut % (len(stream) + 1) for cut in cuts), len(stream)})

    found = [item for start, end in pairwise(places) for item in reader.feed(stream[start:end])]

    assert found == [*lines, Mark.FLUSH]
    assert reader.complete


@given(st.binary(max_size=100))
def test_rubbish_is_no_packet_and_raises_nothing_unforeseen(rubbish: bytes) -> None:
    reader = PacketReader()
    try:
        for _ in reader.feed(rubbish):
            pass
    except FramingError:
        return


def test_an_advertisement_of_version_2_tells_about_filters_and_hashes() -> None:
    lines: list[bytes | Mark] = [b"version 2\n", b"agent=git/2\n", b"fetch=shallow filter\n", b"object-format=sha256\n"]

    server = parse_advertisement([*lines, Mark.FLUSH], "it")

    assert (server.version, server.filters, server.object_format) == (2, True, "sha256")


def test_an_advertisement_of_version_0_holds_the_refs_without_peeled_tags() -> None:
    sha = b"1" * 40
    first = sha + b" HEAD\0side-band-64k shallow symref=HEAD:refs/heads/main\n"
    lines: list[bytes | Mark] = [b"# service=git-upload-pack\n", Mark.FLUSH, first, sha + b" refs/tags/v1^{}\n"]

    server = parse_advertisement([*lines, Mark.FLUSH], "it")

    assert server.version == 0
    assert server.refs == {b"HEAD": "1" * 40}
    assert not server.filters


def test_what_git_refuses_with_is_cleaned_of_control_characters() -> None:
    with pytest.raises(FetchRefused) as refused:
        parse_advertisement([b"ERR no\x1b[31m such\r\nrepository\n"], "it")

    assert str(refused.value) == "no[31m such repository"


# Waiting -------------------------------------------------------------------------------------------------------------


def test_retry_after_is_understood_as_seconds_as_a_date_and_from_the_reset_time() -> None:
    assert retry_after_seconds("7") == 7
    assert 50 < (retry_after_seconds(formatdate(time.time() + 60, usegmt=True)) or 0) <= 60
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert 50 < (retry_after_seconds(None, str(int(time.time()) + 60)) or 0) <= 60


@given(st.one_of(st.none(), st.text(max_size=40)), st.one_of(st.none(), st.text(max_size=40)))
def test_nonsense_about_waiting_is_never_an_error(header: str | None, reset: str | None) -> None:
    wait = retry_after_seconds(header, reset)
    assert wait is None or wait >= 0


async def test_a_rate_limit_that_lasts_longer_than_the_patience_ends_with_its_length_in_the_message() -> None:
    async def call() -> None:
        raise TransientFailure("too many requests", rate_limited=True, wait_seconds=3600)

    watched = Watched()
    with pytest.raises(SourceUnavailable, match=r"another 3600 s.*1 s at most"):
        await patiently(call, QUICK, watched, doing="Reading")
    assert watched.waits == []


async def test_short_rate_limits_are_waited_for_more_often_than_errors_are_repeated() -> None:
    watched, calls = Watched(), 0

    async def call() -> str:
        nonlocal calls
        calls += 1
        if calls < 10:
            raise TransientFailure("too many requests", rate_limited=True, wait_seconds=0.001)
        return "answer"

    assert await patiently(call, QUICK, watched, doing="Reading") == "answer"
    assert watched.waits == [0.001] * 9


async def test_errors_are_repeated_a_bounded_number_of_times() -> None:
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        raise TransientFailure("the server answered 502")

    with pytest.raises(SourceUnavailable, match=r"Reading failed 4 times: the server answered 502\."):
        await patiently(call, QUICK, None, doing="Reading")
    assert calls == 4


async def test_what_is_no_passing_failure_is_not_repeated() -> None:
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        raise SourceGone("gone")

    with pytest.raises(SourceGone):
        await patiently(call, QUICK, None, doing="Reading")
    assert calls == 1


# Addresses -----------------------------------------------------------------------------------------------------------


def test_user_and_password_are_taken_out_of_an_address() -> None:
    address = parse_address("https://ada:s%40cret@git.example.com:8443/a/b.git/?x=1#y", what="The address")

    assert address.url == "https://git.example.com:8443/a/b.git"
    assert address.username == "ada"
    assert address.password is not None
    assert address.password.get_secret_value() == "s@cret"
    assert "s@cret" not in repr(address)


@pytest.mark.parametrize(
    "url",
    ["git@host:group/project.git", "ssh://git:hunter2@host/x", "file:///etc", "", "https://", "http://[::1", "/srv/x"],
)
def test_addresses_that_are_not_http_are_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_address(url, what="The address")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("https://a.example/x", "https://a.example/y", True),
        ("https://a.example/x", "https://a.example:443/y", True),
        ("http://a.example/x", "https://a.example/y", True),
        ("https://a.example/x", "http://a.example/y", False),
        ("https://a.example/x", "https://b.example/y", False),
        ("https://a.example/x", "https://a.example:8443/y", False),
        ("http://a.example:8080/x", "https://a.example/y", False),
        ("https://a.example/x", "https://a.example.evil/y", False),
    ],
)
def test_secrets_stay_with_the_server_they_were_meant_for(old: str, new: str, same: bool) -> None:
    assert same_home(old, new) is same
    if same:
        assert redirected(old, new) == new
    else:
        with pytest.raises(SourceError, match="redirects to another server"):
            redirected(old, new)


def test_a_token_from_a_file_loses_its_line_end_and_one_with_a_line_break_is_refused_unshown() -> None:
    assert header_secret(SecretStr("glpat-x\n"), what="The token") == "glpat-x"
    assert header_secret(SecretStr(" \n"), what="The token") is None
    with pytest.raises(ConfigError) as refused:
        header_secret(SecretStr("glpat-secret\nX-Evil: 1"), what="The token")
    assert "glpat" not in str(refused.value)


def test_a_ca_file_that_is_none_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")

    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=name):
            check_way("https://gitlab.example.com", tmp_path / name)


# Refusals in words ---------------------------------------------------------------------------------------------------


def refusal(status: int, body: object, *, has_token: bool = True) -> SourceError:
    text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return explain(RestRefused(status, text, "https://x/api"), project="g/p", instance="https://x", has_token=has_token)


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
    assert "wants api or read_api" in str(scope)
    assert "Reporter" in str(role)
    assert "missing, or hidden from this token" in str(hidden)
    assert "no token was given" in str(anonymous)


@given(
    st.integers(400, 499), st.one_of(st.text(max_size=200), st.dictionaries(st.text(max_size=9), st.text(max_size=9)))
)
def test_any_body_of_a_refusal_becomes_an_error_with_words(status: int, body: object) -> None:
    assert "g/p" in str(refusal(status, body))
