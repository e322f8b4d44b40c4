"""What the pages show of first syncs, which make words live before meaning."""

from __future__ import annotations

import re
from typing import Any

import httpx

from reposync.store.endings import Finish
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.status import RunStatus, RunTrigger
from tests.fixtures.showcase import COMMIT, Showcase
from tests.fixtures.versions import publish_commit


async def started(showcase: Showcase, name: str) -> Run:
    run, _ = await showcase.app.runs.enqueue(name, Ask(RunTrigger.COMMAND))
    claimed = await showcase.app.runs.claim("pod-1", 600.0, run_id=run.id)
    assert claimed is not None
    return claimed


def test_a_first_sync_that_was_cancelled_needs_attention_and_says_that_it_has_words_only(
    showcase: Showcase, url: str
) -> None:
    name = f"first/{showcase.next_number()}"
    showcase.register(name)

    async def is_cancelled() -> None:
        run = await started(showcase, name)
        await publish_commit(showcase.app.database, run, COMMIT, meaning_pending=9)
        await showcase.app.runs.end(
            run, Finish("RUN_CANCELLED", "On request.", status=RunStatus.CANCELLED), RunFigures()
        )

    showcase.call(is_cancelled())
    asked = {"name": name, "show": "attention"}

    page = httpx.get(f"{url}/", params=asked, headers={"Accept": "text/html"}).text
    assert "words only, 0% of meaning" in page
    assert 'Need attention <span class="count">1</span>' in page
    found = httpx.get(f"{url}/api/v1/repositories/{name}").json()
    assert (found["last_status"], found["meaning_indexed"]) == ("cancelled", 0.0)
    assert "No run continues it" in httpx.get(f"{url}/repositories/{name}", headers={"Accept": "text/html"}).text

    showcase.call(started(showcase, name))
    page = httpx.get(f"{url}/", params={"name": name}, headers={"Accept": "text/html"}).text
    assert "words only, 0% of meaning" in page and "Need attention" not in page, "a run continues it"


def test_while_words_are_stored_progress_is_that_of_files(showcase: Showcase, url: str) -> None:
    name = f"first/{showcase.next_number()}"
    showcase.register(name)
    run = showcase.call(started(showcase, name))
    words: dict[str, Any] = {"phase": "words", "files_total": 400, "files_done": 100, "chunks_total": 900}

    def shown() -> tuple[str, str]:
        accept = {"Accept": "text/html"}
        return (
            httpx.get(f"{url}/runs/{run.id}", headers=accept).text,
            httpx.get(f"{url}/", params={"name": name}, headers=accept).text,
        )

    showcase.call(showcase.app.runs.heartbeat(run, 3_600.0, words))
    for page in shown():
        assert re.search(r'<progress [^>]*max="400" value="100"', page)
    assert "data-live-chunks hidden" in shown()[0] and "words, then meaning" in shown()[1]

    showcase.call(showcase.app.runs.heartbeat(run, 3_600.0, words | {"phase": "indexing", "chunks_embedded": 45}))
    for page in shown():
        assert re.search(r'<progress [^>]*max="900" value="45"', page)
    assert "data-live-chunks hidden" not in shown()[0]


def test_what_was_requested_is_confirmed_until_it_is_over(showcase: Showcase, url: str) -> None:
    name = f"first/{showcase.next_number()}"
    showcase.register(name)
    run = showcase.queue(name)
    asked: dict[str, Any] = {"params": {"done": "sync"}, "headers": {"Accept": "text/html"}}

    before = httpx.get(f"{url}/runs/{run.id}", **asked).text
    done = httpx.post(
        f"{url}/actions/cancel", data={"run": run.id}, headers={"Accept": "text/html"}, follow_redirects=True
    )

    assert "A sync was requested." in before
    assert done.status_code == 200 and '<span class="status cancelled">' in done.text
    for text in (done.text, httpx.get(f"{url}/runs/{run.id}", **asked).text):
        assert 'id="notice"' not in text
