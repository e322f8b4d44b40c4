"""Who gets in with a token, who does not, and what every answer says to browsers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from reposync.api.app import create_app
from reposync.api.auth import Access
from reposync.api.middleware import SECURITY_HEADERS
from reposync.config.sections import HttpConfig
from reposync.errors import ConfigError
from tests.integration.api.conftest import Daemon
from tests.integration.api.serving import OPERATOR, READER, TOKENS, bearer, code, parts_of, server, status_of

WRONG = "this-token-nobody-has"
JSON = "Content-Type: application/json\r\n"


@pytest.fixture
async def door() -> AsyncIterator[httpx.AsyncClient]:
    async with server(Access(TOKENS)) as client:
        yield client


async def test_a_token_may_do_what_its_role_may(door: httpx.AsyncClient) -> None:
    statuses = {
        token: [
            (await door.get("/test/read", headers=bearer(token))).status_code,
            (await door.post("/test/operate", headers=bearer(token))).status_code,
        ]
        for token in (READER, OPERATOR, WRONG)
    }

    assert statuses == {READER: [200, 403], OPERATOR: [200, 200], WRONG: [401, 401]}
    refused = await door.post("/test/operate", headers=bearer(READER))
    assert code(refused) == (403, "FORBIDDEN")
    assert refused.json()["error"]["message"] == "This token may read, but not operate."


async def test_a_request_without_a_token_gets_401_with_instructions(door: httpx.AsyncClient) -> None:
    for headers in ({}, {"Authorization": f"Basic {OPERATOR}"}, {"Authorization": OPERATOR}, {"Authorization": ""}):
        answer = await door.get("/test/read", headers=headers)

        assert code(answer) == (401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == 'Bearer realm="reposync"'
    assert (await door.get("/test/read", headers={"authorization": f"bEARER  {READER}"})).status_code == 200


async def test_no_header_that_is_made_up_lets_anybody_in_or_breaks_anything() -> None:
    config = HttpConfig(root_path="/reposync", trusted_proxies=("0.0.0.0/0",), allowed_hosts=("127.0.0.1",))
    made_up = [b"", b"null", b"Bearer", b"\xff\x80", b"read:", b"A" * 4_000, b'"', b"a; reposync-session=b", b"\t;=,"]
    made_up += [each.encode() for each in (OPERATOR[:-1], OPERATOR.upper(), f"{OPERATOR}x", f"read:{READER}")]
    async with server(Access(TOKENS, config)) as door:
        for value in made_up:
            for headers in (
                {b"Authorization": b"Bearer " + value},
                {b"Authorization": value, b"Cookie": value, b"Content-Type": value},
                {b"Cookie": b"; ".join(b"%sreposync-session=%s" % (each, value) for each in (b"", b"__Secure-"))},
                {b"X-Forwarded-For": value, b"X-Forwarded-Proto": value, b"X-Forwarded-Host": value, b"Origin": value},
            ):
                sent = {name: each.strip(b" \t") for name, each in headers.items()}  # as httpx demands
                for method, path in (("GET", "/test/read"), ("GET", "/test/page"), ("POST", "/test/operate")):
                    answer = await door.request(method, path, headers=sent)
                    assert answer.status_code in (303, 400, 401, 403, 421), (headers, answer.text)
                    assert answer.headers.get("location", "/reposync/").startswith("/reposync/")
                    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("setting", "anybody", "reader"), [(None, 401, 200), ("open", 200, 200), ("token", 401, 200), ("off", 404, 404)]
)
async def test_metrics_are_open_by_token_or_off(setting: str | None, anybody: int, reader: int) -> None:
    async with server(Access([])) as local:
        assert (await local.get("/metrics")).status_code == 200
    async with server(Access(TOKENS, HttpConfig(metrics=setting))) as door:  # type: ignore[arg-type]
        assert (await door.get("/metrics")).status_code == anybody
        assert (await door.get("/metrics", headers=bearer(READER))).status_code == reader
        assert (await door.get("/healthz")).status_code == 200


async def test_a_wrong_token_is_logged_with_the_address_that_sent_it(caplog: pytest.LogCaptureFixture) -> None:
    config = HttpConfig(trusted_proxies=("127.0.0.1",))
    async with server(Access(TOKENS, config)) as door:
        answer = await door.get("/test/read", headers={**bearer(WRONG), "X-Forwarded-For": "192.0.2.1"})

    assert code(answer) == (401, "UNAUTHENTICATED")
    (logged,) = (record for record in caplog.records if record.getMessage() == "a token was refused")
    assert logged.__dict__["address"] == "192.0.2.1"
    assert WRONG not in caplog.text


@pytest.mark.parametrize("root", ["", "/reposync"])
async def test_no_body_is_read_before_the_client_is_admitted(root: str) -> None:
    """Whoever waited for the body would answer 408, after 15 s."""
    async with server(Access(TOKENS, HttpConfig(root_path=root))) as door:
        described = (await door.get("/openapi.json")).json()["paths"]
        asked = [(method.upper(), path) for path, methods in described.items() for method in methods]
        below = "/api/v1/repositories/x/api/v1/webhooks/gitlab"
        asked += [("PATCH", below), ("PATCH", below.replace("/webhooks", "%2Fwebhooks")), ("DELETE", below)]
        asked += [("POST", path) for path in ("/mcp", "/logout", "/actions/sync", "/no/such/page", "/healthz")]
        statuses = {}
        for method, path in asked:
            if method != "GET":
                path = path.replace("{", "").replace("}", "")
                head = f"{method} {root}{path} HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: 9\r\n\r\n"
                statuses[method, path] = await status_of(door.base_url, head)

    refused = {where: status for where, status in statuses.items() if status != 401}
    assert len(statuses) > 15
    assert refused == {
        # There is no database behind this server, and so no secret of a webhook.
        ("POST", "/api/v1/webhooks/gitlab"): 503,
        ("POST", "/api/v1/webhooks/gitlab-system"): 503,
        ("POST", "/logout"): 303,
        ("POST", "/actions/sync"): 303,
        ("POST", "/no/such/page"): 404,
        ("POST", "/healthz"): 405,
    }


async def test_every_route_that_reads_needs_a_token_but_the_probes(door: httpx.AsyncClient) -> None:
    described = (await door.get("/openapi.json")).json()["paths"]
    paths = [path for path, methods in described.items() if "get" in methods and not path.startswith("/test/")]
    read = [path.format(name="x", path="y", run_id="x", repository_id="x") for path in paths]

    statuses = {path: (await door.get(path)).status_code for path in read}

    assert {path: status for path, status in statuses.items() if status != 401} == {
        "/healthz": 200,
        "/readyz": 503,
    }
    assert len(statuses) > 15
    # This server has no database, so that an admitted client gets 503.
    assert (await door.get("/api/v1/files/x/-/y", headers=bearer(READER))).status_code == 503


async def test_a_reader_cannot_use_any_route_that_changes_something(door: httpx.AsyncClient) -> None:
    routes = [
        (method, path.format(name="x", run_id="x", repository="x", repository_id="x", group="x"))
        for path, methods in (await door.get("/openapi.json")).json()["paths"].items()
        for method in methods
        if method != "get" and "/webhooks/" not in path and not path.endswith("/search")
    ]

    assert len(routes) == 21
    for method, path in routes:
        assert code(await door.request(method, path, headers=bearer(READER))) == (403, "FORBIDDEN"), path


async def test_readiness_without_a_token_shows_statuses_only() -> None:
    reason = "/etc/reposync/repositories.yaml:7:1: unknown key `Tr0ub4dor-and-3`"
    daemon = Daemon()
    daemon.health.report("database", "ok")
    daemon.health.report("registry", "degraded", reason)
    nothing = {"reason": None, "since": None, "latency_seconds": None}
    async with server(Access(TOKENS), health=daemon.health) as door:
        for headers in ({}, bearer(WRONG)):
            answer = await door.get("/readyz", headers=headers)
            assert (answer.status_code, answer.json()) == (
                200,
                {
                    "status": "degraded",
                    "components": {
                        "database": {"status": "ok", **nothing},
                        "registry": {"status": "degraded", **nothing},
                    },
                },
            )
        shown = (await door.get("/readyz", headers=bearer(READER))).json()["components"]["registry"]
        assert shown["reason"] == reason
        assert shown["since"] is not None
    # Without tokens everybody on this machine is trusted.
    async with server(Access([]), health=daemon.health) as door:
        assert (await door.get("/readyz")).json()["components"]["registry"]["reason"] == reason


async def test_every_answer_has_the_headers_that_browsers_go_by(door: httpx.AsyncClient) -> None:
    answers = [
        await door.get("/login"),
        await door.get("/no/such/page"),
        await door.post("/test/operate", headers={"Sec-Fetch-Site": "cross-site"}),
        await door.get("/api/v1/locks", headers=bearer(READER)),
    ]

    assert [answer.status_code for answer in answers] == [200, 404, 403, 503]
    for answer in answers:
        policy = answer.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "base-uri 'none'", "frame-ancestors 'none'"} <= set(policy)
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert {key: answer.headers[key] for key in SECURITY_HEADERS} == SECURITY_HEADERS
        assert answer.headers["x-content-type-options"] == "nosniff"
        names = ("referrer-policy", "cross-origin-opener-policy", "cross-origin-resource-policy")
        assert {answer.headers[name] for name in names} == {"same-origin"}
        assert answer.headers["cache-control"] in ("no-store", "private, no-cache")
        assert "strict-transport-security" not in answer.headers
        assert "server" not in answer.headers
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


@pytest.mark.parametrize(("root", "told"), [("", True), ("/reposync", False)])
async def test_hsts_is_sent_over_https_and_not_for_a_shared_host(root: str, told: bool) -> None:
    config = HttpConfig(trusted_proxies=("127.0.0.0/8",), root_path=root)
    async with server(Access(TOKENS, config)) as door:
        over_https = await door.get("/healthz", headers={"X-Forwarded-Proto": "https"})
        over_http = await door.get("/healthz", headers={"X-Forwarded-Proto": "http"})

    assert ("strict-transport-security" in over_https.headers) is told
    assert "strict-transport-security" not in over_http.headers


async def test_without_tokens_everybody_on_this_machine_may_do_everything_but_other_sites_nothing() -> None:
    async with server(Access([])) as door:
        assert (await door.get("/test/read")).status_code == 200
        assert (await door.post("/test/operate", data={"a": "1"})).json() == {"fields": ["a"]}
        # A program may have a token nevertheless.
        assert (await door.get("/test/read", headers=bearer(WRONG))).status_code == 200
        for path in ("/test/read", "/readyz", "/", "/metrics"):
            rebound = await door.get(path, headers={"Host": "evil.example"})
            assert code(rebound) == (421, "HOST_NOT_ALLOWED"), path
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://127.0.0.1:1"}):
            for each in (headers, headers | bearer(WRONG)):
                refused = await door.post("/test/operate", headers=each)
                assert code(refused) == (403, "CROSS_SITE_REFUSED")
        own = {"Origin": str(door.base_url).rstrip("/")}
        assert (await door.post("/test/operate", headers=own)).status_code == 200


async def test_without_tokens_a_page_of_another_site_can_link_to_pages_and_read_nothing() -> None:
    """It cannot see a response, but could measure how long a search takes, and use up those that run at once."""
    link = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with server(Access([])) as door:
        for site in ("cross-site", "same-site"):
            for path, how, status in (
                ("/test/read", {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
                ("/test/read", {**link, "Sec-Fetch-Dest": "iframe"}, 403),
                ("/test/read", {}, 403),
                ("/test/page", link, 200),
                ("/api/v1/grep?q=key", link, 403),
                ("/metrics", link, 403),
                ("/static/app.css", {}, 200),
                ("/healthz", {}, 200),
            ):
                answer = await door.get(path, headers={"Sec-Fetch-Site": site, **how})
                assert answer.status_code == status, (site, path, how)
        for site in ("same-origin", "none"):
            assert (await door.get("/test/read", headers={"Sec-Fetch-Site": site})).status_code == 200


async def test_a_forwarded_host_does_not_hide_the_one_that_was_requested() -> None:
    config = HttpConfig(allowed_hosts=("tools.example.com",), trusted_proxies=("127.0.0.1",))
    async with server(Access(TOKENS, config)) as door:
        for host, forwarded, status in (
            ("evil.example", "tools.example.com", 421),
            ("evil.example", "localhost", 421),
            ("tools.example.com", "evil.example", 421),
            ("tools.example.com", "tools.example.com", 200),
            ("127.0.0.1:8080", "tools.example.com", 200),  # proxies that send their own name for the server
        ):
            names = {"Host": host, "X-Forwarded-Host": forwarded}
            assert (await door.get("/test/read", headers=bearer(READER) | names)).status_code == status, names


async def test_allowed_hosts_hold_for_everything_but_the_probes() -> None:
    config = HttpConfig(allowed_hosts=("sync.example.com",))
    async with server(Access(TOKENS, config)) as door:
        for host, status in (("sync.example.com", 200), ("sync.example.com:8443", 200), ("evil.example", 421)):
            assert (await door.get("/test/read", headers=bearer(READER) | {"Host": host})).status_code == status
        # Kubernetes asks by the pod's address.
        assert (await door.get("/healthz", headers={"Host": "10.1.2.3:8080"})).status_code == 200


@pytest.mark.parametrize("root", ["/runs", "/api", "/api/v1", "/static", "/help"])
def test_a_root_path_that_is_one_of_the_server_itself_is_refused(root: str) -> None:
    """Whether a proxy has stripped it from `/runs/ID` could not be known."""
    with pytest.raises(ConfigError, match=f"must not be {root}: .*such as /reposync"):
        create_app(parts_of(access=Access(TOKENS, HttpConfig(root_path=root))))


@pytest.mark.parametrize("prefix", ["", "/reposync"])
async def test_under_a_path_everything_is_found_with_and_without_it_and_links_have_it(prefix: str) -> None:
    config = HttpConfig(root_path="/reposync", trusted_proxies=("127.0.0.1",))
    outside = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "sync.example.com", "X-Forwarded-For": "203.0.113.9"}
    async with server(Access(TOKENS, config)) as door:
        assert (await door.get(f"{prefix}/healthz")).status_code == 200
        seen = (await door.get(f"{prefix}/test/page", headers=bearer(READER) | outside)).json()
        assert seen["address"] == "https://sync.example.com/reposync/test/page"
        assert seen["who"] == ["READ", "token 1", "203.0.113.9"]
        described = (await door.get(f"{prefix}/openapi.json")).json()
        assert described["servers"] == [{"url": "/reposync"}]
        sent_away = await door.get(f"{prefix}/test/page?a=b")
        assert (sent_away.status_code, sent_away.headers["location"]) == (
            303,
            "/reposync/login?next=%2Freposync%2Ftest%2Fpage%3Fa%3Db",
        )
