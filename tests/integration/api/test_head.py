"""HEAD on every route that GET has: uptime monitors and link checkers ask so."""

from __future__ import annotations

import asyncio

from reposync.store.status import RunStatus
from tests.integration.api.rest import API, Rest
from tests.integration.api.serving import description

PAGES = ["/", "/runs", "/runs/{run_id}", "/search", "/locks", "/login", "/docs", "/help", "/help/errors"]
PAGES += ["/openapi.json", "/static/code.css"]
DESCRIBED = tuple(path for path, operations in description()["paths"].items() if "get" in operations)
QUERIES = {
    f"{API}/search": "?q=sessions",
    f"{API}/grep": "?pattern=sessions",
    f"{API}/repositories/{{name}}/wait": "?commit=8843d7f&timeout=0",
}
# Of each answer its own; and these figures count what was asked before.
OWN = ("date", "x-request-id")


async def test_head_answers_as_get_does_and_without_the_body(rest: Rest) -> None:
    run = await rest.run("payments", status=RunStatus.COMPLETED)

    for path in (*DESCRIBED, *PAGES):
        address = path.format(run_id=run.id, name="payments", path="a.py") + QUERIES.get(path, "")
        got = await rest.client.get(address)
        asked = await rest.client.head(address)
        headers = [{key: value for key, value in each.headers.items() if key not in OWN} for each in (got, asked)]
        if path == "/metrics":
            assert all(int(each.pop("content-length")) > 0 for each in headers)
        assert got.status_code != 405
        assert (asked.status_code, asked.content, headers[1]) == (got.status_code, b"", headers[0]), path
        assert "content-length" in got.headers or path.endswith("/events") or not got.content, path


async def test_head_of_what_goes_on_for_an_hour_ends_at_once(rest: Rest) -> None:
    run = await rest.run("payments")

    answer = await asyncio.wait_for(rest.client.head(f"{API}/runs/{run.id}/events"), 30)

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")
