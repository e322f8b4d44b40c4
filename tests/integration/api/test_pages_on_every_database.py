"""What the pages ask is asked of SQLite and of PostgreSQL alike."""

from __future__ import annotations

import html
import re

from reposync.store.endings import Finish
from reposync.store.repository import Registration
from reposync.store.run import RunFigures
from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.databases import database_kind  # noqa: F401
from tests.integration.api.rest import Rest


async def shown(rest: Rest, path: str) -> list[str]:
    """The repositories that the rows of a page are about, in their order."""
    answer = await rest.client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    table = answer.text.partition("<table")[2] or answer.text
    return re.findall(r'<a href="/repositories/[^"]*">([^<]*)</a>', table)


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
    assert await shown(rest, "/?name=PLATFORM&show=active") == ["platform/wait", "platform/api"]

    assert await shown(rest, "/runs?idle=show") == ["platform/wait", "platform/api", "platform/api", "payments"]
    assert await shown(rest, "/runs?status=failed&trigger=webhook") == ["payments"]
    assert await shown(rest, "/runs?until=2000-01-01&zone=Asia/Tokyo") == []
    for query in ("since=2000-01-01", "since=2000-01-01&zone=nowhere/at-all", "since=yesterday", "until=9999-12-31"):
        assert len(await shown(rest, f"/runs?idle=show&{query}")) == 4, query
    assert await shown(rest, "/runs?order=oldest") == ["payments", "platform/api", "platform/api", "platform/wait"]
    assert await shown(rest, "/runs?status=failed&status=running") == ["platform/wait", "platform/api", "payments"]
    assert await shown(rest, "/runs?q=repo:payments") == ["payments"]
    assert await shown(rest, "/runs?q=trigger:webhook") == ["payments"]
    assert await shown(rest, "/runs?q=code:NO_SUCH_CODE") == []


async def test_runs_without_change_are_hidden_and_counted_on_every_database(rest: Rest) -> None:
    for name in ("payments", "platform/api", "payments"):
        run = await rest.claimed((await rest.run(name, RunTrigger.SCHEDULE)).id)
        await rest.other.end(run, Finish(), RunFigures())
    await rest.run("platform/wait", RunTrigger.SCHEDULE, RunStatus.FAILED)
    for query, hidden in (
        ("", "3 runs without change are hidden"),
        ("repository=platform/api", "1 run without change is"),
    ):
        page = await rest.client.get(f"/runs?{query}", headers={"Accept": "text/html"})
        assert hidden in page.text, query

    assert await shown(rest, "/runs") == ["platform/wait"]
    assert await shown(rest, "/runs?status=completed") == []
    assert await shown(rest, "/runs?idle=show") == ["platform/wait", "payments", "platform/api", "payments"]
    assert await shown(rest, "/runs?status=completed&idle=show") == ["payments", "platform/api", "payments"]


async def test_the_first_page_counts_the_runs_of_the_last_day(rest: Rest) -> None:
    await rest.run("payments", RunTrigger.WEBHOOK, RunStatus.COMPLETED)
    await rest.run("payments", RunTrigger.HTTP, RunStatus.FAILED)
    await rest.run("platform/api", RunTrigger.HTTP, RunStatus.COMPLETED)
    await rest.run("platform/wait", RunTrigger.COMMAND)

    page = (await rest.client.get("/", headers={"Accept": "text/html"})).text
    row = re.sub(r"<[^>]+>|\s+", " ", page.partition('<dl class="row"')[2].partition("</dl>")[0])
    assert "Runs, 24 h 3 1 failed Running 0 Queued 1" in " ".join(row.split())


async def test_what_needs_attention_is_first_then_what_runs_on_every_page_of_the_list(rest: Rest) -> None:
    names = [f"many/{number:02}" for number in range(54)]
    place = "https://gitlab.example.com/"
    known = {"source": "gitlab", "origin": "http", "collection": "code"}
    entries = [Registration(name=name, location=place + name, **known) for name in names]
    await rest.app.repositories.register_all(entries)
    await rest.run("many/53", RunTrigger.SCHEDULE, RunStatus.FAILED)
    running = await rest.run("many/52", RunTrigger.SCHEDULE)
    await rest.claimed(running.id)

    first = (await rest.client.get("/?name=many", headers={"Accept": "text/html"})).text
    (following,) = re.findall(r'rel="next" href="([^"]*)"', first)
    assert await shown(rest, "/?name=many") == ["many/53", "many/52", *names[:48]]
    assert await shown(rest, html.unescape(following)) == names[48:52]


async def test_a_strip_has_the_latest_twenty_runs_of_each_repository(rest: Rest) -> None:
    statuses = [RunStatus.COMPLETED] * 20 + [RunStatus.FAILED] * 2
    runs = [await rest.run("payments", RunTrigger.SCHEDULE, status) for status in reversed(statuses)]
    await rest.run("platform/api", RunTrigger.HTTP, RunStatus.FAILED)

    page = (await rest.client.get("/", headers={"Accept": "text/html"})).text
    strips = re.findall(r'<span class="strip".*?</span>', page, re.DOTALL)
    marks = [re.findall(r'href="/runs/([0-9a-f-]{13})" class="(\w+)', strip) for strip in strips]
    assert [len(each) for each in marks] == [1, 20]  # what failed is first
    assert marks[1] == [(run.id[:13], "completed") for run in runs[2:]]
    assert 'aria-label="Latest 20 runs, 20 completed"' in page
