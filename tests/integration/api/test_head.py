"""HEAD on every route that GET has: uptime monitors and link checkers ask so."""

from __future__ import annotations

import asyncio

import httpx

from reposync.store.status import RunStatus
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.integration.api.rest import API, Rest
from tests.integration.api.serving import description

PAGES = ["/", "/runs", "/runs/{run_id}", "/search", "/workers", "/locks", "/login", "/docs", "/help", "/help/errors"]
PAGES += ["/openapi.json", "/static/code.css"]
DESCRIBED = tuple(path for path, operations in description()["paths"].items() if "get" in operations)
QUERIES = {
    f"{API}/search": "?q=sessions",
    f"{API}/grep": "?q=sessions",
    f"{API}/repositories/{{name}}/wait": "?commit=8843d7f&timeout=0",
}
# Of each answer its own; and these figures count what was asked before.
OWN = ("date", "x-request-id")


async def test_head_answers_as_get_does_and_without_the_body(rest: Rest) -> None:
    run = await rest.run("payments", status=RunStatus.COMPLETED)

    for path in (*DESCRIBED, *PAGES):
        address = path.format(run_id=run.id, name="payments", path="a.py") + QUERIES.get(path, "")
        got, asked = await unchanged_while_asked(rest, address)
        headers = [_shared(answer) for answer in (got, asked)]
        if path == "/metrics":
            assert all(int(of_answer.pop("content-length")) > 0 for of_answer in headers)
        assert got.status_code != 405
        assert (asked.status_code, asked.content, headers[1]) == (got.status_code, b"", headers[0]), path
        assert "content-length" in got.headers or path.endswith("/events") or not got.content, path


async def unchanged_while_asked(rest: Rest, address: str) -> tuple[httpx.Response, httpx.Response]:
    """Answers to GET and HEAD. Pages say how long ago something was: HEAD is asked between two equal answers to GET."""
    got = await rest.client.get(address)
    while True:
        asked = await rest.client.head(address)
        before, got = got, await rest.client.get(address)
        if _shared(before) == _shared(got) or address == "/metrics":
            return got, asked


def _shared(answer: httpx.Response) -> dict[str, str]:
    return {key: value for key, value in answer.headers.items() if key not in OWN}


async def test_head_of_what_goes_on_for_an_hour_ends_at_once(rest: Rest) -> None:
    run = await rest.run("payments")

    answer = await asyncio.wait_for(rest.client.head(f"{API}/runs/{run.id}/events"), PATIENCE_SECONDS)

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")
