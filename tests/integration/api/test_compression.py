"""What goes over the wire is compressed, and nothing else changes: neither conditions, nor streams, nor what a page of
another site could learn from the size of a page."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.integration.api.test_pages_over_http import BROWSER, ask

PLAIN = {"Accept-Encoding": "identity"}


def is_compressed(answer: httpx.Response) -> bool:
    return answer.headers.get("content-encoding") == "gzip"


def without_times(text: str) -> str:
    return re.sub(r'data-relative(="for")?>[^<]*<', "", text)


@pytest.mark.parametrize(
    "path",
    ["/", "/runs", "/docs", "/nothing/here", "/openapi.json", "/api/v1/runs", "/static/app.css", "/static/app.js"],
)
def test_a_response_is_the_same_and_clearly_smaller(url: str, path: str) -> None:
    plain, small = (ask("GET", url + path, headers={**BROWSER, **each}) for each in (PLAIN, {}))

    assert is_compressed(small) and not is_compressed(plain)
    assert small.num_bytes_downloaded < plain.num_bytes_downloaded * 0.6
    assert without_times(small.text) == without_times(plain.text)
    assert small.headers.get("etag") == plain.headers.get("etag")
    for answer in (plain, small):
        assert "Accept-Encoding" in answer.headers["vary"]
        assert int(answer.headers["content-length"]) == answer.num_bytes_downloaded


def test_head_and_unchanged_responses_have_the_headers_of_the_compressed_one(url: str) -> None:
    for path in ("/docs", "/openapi.json", "/static/app.css", "/api/v1/runs"):
        got, asked = (ask(method, url + path, headers=BROWSER) for method in ("GET", "HEAD"))
        for name in ("content-encoding", "content-length", "vary"):
            assert asked.headers[name] == got.headers[name], (path, name)
        assert asked.content == b""
        if "etag" in got.headers:
            again = ask("GET", url + path, headers={**BROWSER, "If-None-Match": got.headers["etag"]})
            assert (again.status_code, again.content, "content-encoding" in again.headers) == (304, b"", False)
            assert again.headers["etag"] == got.headers["etag"]
            assert "Accept-Encoding" in again.headers["vary"]


def test_a_page_of_another_site_learns_nothing_from_the_size_of_a_page(url: str) -> None:
    for site in ("cross-site", "same-site"):
        link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        answer = ask("GET", f"{url}/?name=guess", headers={**BROWSER, **link})
        assert answer.status_code == 200 and not is_compressed(answer)
    for site in ("same-origin", "none"):
        assert is_compressed(ask("GET", f"{url}/?name=guess", headers={**BROWSER, "Sec-Fetch-Site": site}))
