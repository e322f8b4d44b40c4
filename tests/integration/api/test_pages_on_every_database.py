"""What the pages ask is asked of SQLite and of PostgreSQL alike."""

from __future__ import annotations

import re

from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.databases import database_kind  # noqa: F401
from tests.integration.api.rest import Rest


async def shown(rest: Rest, path: str) -> list[str]:
    """The repositories that the rows of a page are about, in their order."""
    answer = await rest.client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return re.findall(r'<a href="/(?:repositories/|runs\?repository=)[^"]*">([^<]*)</a>', answer.text)


async def test_the_filters_of_the_pages_work_on_every_database(rest: Rest) -> None:
    await rest.run("payments", RunTrigger.WEBHOOK, RunStatus.FAILED)
    await rest.run("platform/api", RunTrigger.HTTP, RunStatus.FAILED)
    await rest.run("platform/api", RunTrigger.HTTP, RunStatus.COMPLETED)
    waiting = await rest.run("platform/wait", RunTrigger.COMMAND)

    assert await shown(rest, "/") == ["payments", "platform/api", "platform/wait"]
    # The latest run counts.
    assert await shown(rest, "/?show=attention") == ["payments"]
    assert await shown(rest, "/?show=running") == []
    await rest.claimed(waiting.id)
    assert await shown(rest, "/?show=running") == ["platform/wait"]
    assert await shown(rest, "/?name=PLATFORM&show=active") == ["platform/api", "platform/wait"]

    assert await shown(rest, "/runs") == ["platform/wait", "platform/api", "platform/api", "payments"]
    assert await shown(rest, "/runs?status=failed&trigger=webhook") == ["payments"]
    assert await shown(rest, "/runs?until=2000-01-01&zone=Asia/Tokyo") == []
    for query in ("since=2000-01-01", "since=2000-01-01&zone=nowhere/at-all", "since=yesterday", "until=9999-12-31"):
        assert len(await shown(rest, f"/runs?{query}")) == 4, query


async def test_the_first_page_counts_the_runs_of_the_last_day(rest: Rest) -> None:
    await rest.run("payments", RunTrigger.WEBHOOK, RunStatus.COMPLETED)
    await rest.run("payments", RunTrigger.HTTP, RunStatus.FAILED)
    await rest.run("platform/api", RunTrigger.HTTP, RunStatus.COMPLETED)
    await rest.run("platform/wait", RunTrigger.COMMAND)

    page = (await rest.client.get("/", headers={"Accept": "text/html"})).text
    figures = dict(re.findall(r"<dt>([^<]*)</dt><dd[^>]*>([^<]*)", page))
    assert (figures["Success, last 24 h"].strip(), figures["Queued"].strip()) == ("67%", "1")
    for kind, runs in (("completed", 2), ("failed", 1)):
        assert sum(map(int, re.findall(rf"UTC: (\d+) {kind}", page))) == runs
    assert "of 3 runs" in page
