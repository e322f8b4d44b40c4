"""Limits that an operator sets in a collection's `strict_mode_config`: reposync keeps them, or names the key."""

from typing import Any

import pytest

from reposync.app.verification import Verification
from reposync.search.grep import grep
from tests.fixtures.world import World
from tests.integration.sync.test_exactness import module

pytestmark = pytest.mark.full

FILES = {f"src/{name}.py": module(name, 20) for name in ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")}


async def restrict(world: World, **limits: Any) -> None:
    async with world.qdrant() as client:
        mode = {"strict_mode_config": {"enabled": True, **limits}}
        answer = await client.patch(f"/collections/{await world.physical()}", json=mode)
        assert answer.is_success, answer.text


async def prove(world: World) -> None:
    """Everything that is done with an index works, and ends exact."""
    world.repository.commit({**FILES, "src/beta.py": None, "src/moved.py": FILES["src/beta.py"]})
    await world.completed()
    world.repository.commit({f"lib/{n}.py": b"value = %d\n" % n for n in range(40)})
    await world.completed()
    await world.completed(full=True)
    assert await world.indexed() == await world.expected()
    assert {hit.path for hit in await world.app.searching.search("alpha", limit=30)} >= {"src/alpha.py"}
    assert await world.app.searching.search("alpha path:src/", limit=30)
    for pattern in (r"def alpha_7\(", "alpha_7", r"alpha_[7]\("):  # narrowed by the index, and not
        found = await grep(world.app, pattern, path_glob="src/")
        assert [(each.path, [line.line for line in each.matches]) for each in found.items] == [("src/alpha.py", [15])]
        assert found.stopped is None
    verdict = await Verification(world.app, against_source=True).verify("project")
    assert verdict.trouble is None, verdict.trouble
    assert verdict.exact


@pytest.mark.parametrize(
    "limits",
    [
        {"max_timeout": 2, "unindexed_filtering_retrieve": False, "unindexed_filtering_update": False},
        {"search_allow_exact": False, "max_query_limit": 20, "upsert_max_batchsize": 5, "condition_max_size": 10},
    ],
    ids=lambda limits: "-".join(limits),
)
async def test_sync_search_and_verify_keep_a_limit(closed_server_world: World, limits: dict[str, Any]) -> None:
    world = closed_server_world
    world.repository.commit(FILES)
    world.page_points = limits.get("max_query_limit", world.page_points)
    async with world.opened():
        await world.completed()
        await restrict(world, **limits)
    async with world.opened():
        await prove(world)


@pytest.mark.parametrize("key", ["write_rate_limit", "read_rate_limit"])
async def test_a_rate_limit_slows_syncs_down_and_fails_none(closed_server_world: World, key: str) -> None:
    world = closed_server_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        await restrict(world, **{key: 600})
        world.repository.many(700)
        run = await world.completed()
        assert run.attempt == 1
        assert await world.indexed() == await world.expected()


@pytest.mark.parametrize("key", ["filter_max_conditions", "max_payload_index_count"])
async def test_a_limit_that_no_request_can_keep_is_named_at_once(closed_server_world: World, key: str) -> None:
    world = closed_server_world
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed()
        before = await world.points()
        async with world.qdrant() as client:  # a later version of reposync may need one more index, too
            url = f"/collections/{await world.physical()}/index/metadata.language"
            assert (await client.delete(url, params={"wait": "true"})).is_success
        await restrict(world, **{key: 2})
    world.repository.commit({"src/later.py": b"later = 1\n"})
    async with world.opened():
        run = await world.sync()
        assert (run.status, run.error_code) == ("failed", "INDEX_UNSUPPORTED")
        assert f"strict_mode_config.{key}" in str(run.error_message)
    assert await world.points() == before
