from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.datastructures import Headers

from reposync.api.auth import local_address
from reposync.api.hosts import AllowedHosts, Proxies, is_cross_site
from reposync.config.sections import HttpConfig

LOOPBACK = ["localhost", "localhost:8080", "LOCALHOST", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "app.localhost"]
OTHERS = ["", " ", "a b", "evil.example/x", "user@localhost", "localhost:x", "localhost:99999999", "[::1", "ä.example"]
OTHERS += ["evil.example", "192.168.1.5", "localhost.evil.example", "127.0.0.1.nip.io"]


def scope(peer: str = "10.0.0.7", path: str = "/runs", **headers: str) -> dict[str, object]:
    sent = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {
        "type": "http",
        "scheme": "http",
        "client": (peer, 4711),
        "path": path,
        "raw_path": path.encode(),
        "headers": [(b"host", b"inner:8080"), *sent],
    }


def corrected(config: HttpConfig, given: dict[str, object]) -> dict[str, object]:
    async def app(*_: object) -> None: ...

    asyncio.run(Proxies(app, config)(given, app, app))  # type: ignore[arg-type]
    return given


def client(config: HttpConfig, peer: str, forwarded: str) -> object:
    return corrected(config, scope(peer, x_forwarded_for=forwarded))["client"]


def test_without_tokens_names_of_loopback_are_ours_and_no_others() -> None:
    hosts = AllowedHosts((), has_tokens=False)

    assert [host for host in LOOPBACK if not hosts.allows(host)] == []
    assert [host for host in OTHERS if hosts.allows(host)] == []


def test_names_that_are_listed_are_ours_with_all_below_a_star_and_no_others() -> None:
    hosts = AllowedHosts(("sync.example.com", "*.corp.example"), has_tokens=True)

    assert all(map(hosts.allows, ("sync.example.com", "Sync.Example.COM:8443", "a.b.corp.example", "localhost")))
    others = ("corp.example", "evilcorp.example", "x.sync.example.com", "sync.example.com.evil.example", "")
    assert not any(map(hosts.allows, others))
    assert AllowedHosts((), has_tokens=True).allows("whatever.example"), "with tokens and no list"


def test_forwarded_headers_of_untrusted_peers_are_ignored() -> None:
    told = {"x_forwarded_for": "203.0.113.9", "x_forwarded_proto": "https", "x_forwarded_host": "evil.example"}
    for config in (HttpConfig(), HttpConfig(trusted_proxies=("192.0.2.0/24",))):
        found = corrected(config, scope("10.0.0.7", **told))
        assert found == scope("10.0.0.7", **told)


def test_the_client_is_the_last_address_that_no_trusted_proxy_has() -> None:
    config = HttpConfig(trusted_proxies=("10.0.0.0/8", "fd00::/8"))

    # What stands before was written by the client itself.
    assert client(config, "10.0.0.7", "1.1.1.1, 203.0.113.9, 10.0.0.6, fd00::1") == ("203.0.113.9", 0)
    assert client(config, "::ffff:10.0.0.7", "[2001:db8::1]:5000") == ("2001:db8::1", 5000)


@pytest.mark.parametrize(
    ("asked", "whole"),
    [
        ("/runs", "/reposync/runs"),
        ("/reposync/runs", "/reposync/runs"),
        ("/reposync", "/reposync"),
        ("/", "/reposync/"),
        ("/reposyncer", "/reposync/reposyncer"),
    ],
)
def test_the_path_is_whole_whether_the_proxy_takes_the_root_path_off_or_not(asked: str, whole: str) -> None:
    found = corrected(HttpConfig(root_path="/reposync/"), scope(path=asked))

    assert (found["path"], found["raw_path"], found["root_path"]) == (whole, whole.encode(), "/reposync")


@pytest.mark.parametrize(
    ("headers", "elsewhere"),
    [
        ({}, False),  # no browser
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "same-site"}, True),  # another port of this machine
        ({"sec-fetch-site": "cross-site"}, True),
        ({"origin": "http://localhost:8080"}, False),
        ({"origin": "https://localhost:8080"}, False),  # a proxy that is not trusted ended TLS
        ({"origin": "http://localhost:8081"}, True),
        ({"origin": "http://evil.example:8080"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://[::1"}, True),
    ],
)
def test_requests_of_other_sites_are_recognized(headers: dict[str, str], elsewhere: bool) -> None:
    assert is_cross_site(Headers({"host": "localhost:8080", **headers})) is elsewhere


@given(
    st.text(max_size=60),
    st.sampled_from(
        ["", "/", "//", "/\\", "https://", "/reposync/", "/reposync", "/reposync//", "javascript:", "/\t/"]
    ),
    st.sampled_from(["", "/reposync"]),
)
def test_a_login_never_redirects_to_another_server(rest: str, start: str, root: str) -> None:
    address = local_address(start + rest, root)

    assert address.startswith(f"{root}/") or address == root or address.startswith(f"{root}?")
    assert not address.startswith(("//", "/\\"))
    assert address.isascii() and address.isprintable() and "\\" not in address and " " not in address


@pytest.mark.parametrize("dots", ["..", ".", "%2e%2e", "%2E.", ".%2e", "%2e"])
def test_a_login_never_redirects_out_of_the_path_of_this_server(dots: str) -> None:
    for wanted in (f"/reposync/{dots}/other", f"/reposync/runs/{dots}/{dots}/other", f"/reposync/{dots}"):
        assert local_address(wanted, "/reposync") == "/reposync/"
        assert local_address(f"{wanted}?a=b", "/reposync") == "/reposync/"
    assert local_address(f"/reposync/files/a/-/{dots}git", "/reposync") == f"/reposync/files/a/-/{dots}git"
    assert local_address(f"/reposync/runs?q={dots}/x", "/reposync") == f"/reposync/runs?q={dots}/x"


def test_a_login_redirects_to_the_requested_page() -> None:
    assert local_address("/runs?status=failed&limit=5", "") == "/runs?status=failed&limit=5"
    assert local_address("/reposync/runs/1", "/reposync") == "/reposync/runs/1"
    assert local_address("/runs", "/reposync") == "/reposync/"


def test_an_invalid_setting_is_refused() -> None:
    paths = ("reposync", "//evil.example", "/a/../b", "/a b", '/"x')
    hosts = ("https://sync.example.com", "sync.example.com:8080", "*")
    for wrong in (
        *({"root_path": path} for path in paths),
        *({"allowed_hosts": [host]} for host in hosts),
        {"trusted_proxies": ["proxy.example.com"]},
        {"metrics": "closed"},
        {"root": "/x"},
    ):
        with pytest.raises(ValidationError):
            HttpConfig.model_validate(wrong)
