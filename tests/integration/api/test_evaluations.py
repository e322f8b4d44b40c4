"""Evaluations from the history over HTTP, and on the page of the repository."""

from __future__ import annotations

import httpx

from tests.fixtures.world import World
from tests.integration.api.serving import serving

PATH = "/api/v1/repositories/project/evaluations"


async def filled(world: World) -> None:
    world.repository.commit({"rates.py": b"value = 1\n"}, message="Start with nothing much")
    code = b"def convert_amounts_between_currencies(): pass\n"
    world.repository.commit({"rates.py": code}, message="Convert amounts between currencies")
    await world.completed()


async def test_figures_are_kept_without_the_questions_and_drawn(world: World) -> None:
    await filled(world)
    async with serving(world.app) as client:
        empty = await client.get(PATH)
        before = await page_of(client)
        made = (await client.post(PATH, json={"last": 10})).json()
        await client.post(PATH, json={"last": 10, "replay": True})
        kept = (await client.get(PATH)).json()
        after = await page_of(client)

    assert empty.json() == {"items": [], "next_cursor": None}
    assert "Search quality" not in before
    newest, first = kept["items"]
    assert (first["states"], first["questions"], newest["states"]) == (0, 1, 1)
    assert first["commit"] == world.repository.head() == made["commit"]
    assert first["figures"]["both"]["ndcg"] == made["by"]["both"]["ndcg"]
    assert "Convert amounts" not in str(kept)
    assert "Search quality" in after and after.count("NDCG@10 1.000") >= 1
    assert 'class="blocked"' in after and 'class="replay"' in after


async def page_of(client: httpx.AsyncClient) -> str:
    answer = await client.get("/repositories/project", headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_wrong_requests_are_refused(world: World) -> None:
    await filled(world)
    async with serving(world.app) as client:
        for body in ({"last": 0}, {"last": 2_001}, {"last": "many"}, {"first": 1}, {"replay": "perhaps"}):
            assert (await client.post(PATH, json=body)).status_code == 422, body
        assert (await client.post(PATH.replace("project", "absent"), json={})).status_code == 404
        assert (await client.get(PATH.replace("project", "absent"))).status_code == 404
        assert (await client.get(PATH, params={"limit": 0})).status_code == 422
