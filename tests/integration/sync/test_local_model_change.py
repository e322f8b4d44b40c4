"""The local model of a later version has different vectors: an index of the earlier one stays whole meanwhile."""

import logging

import pytest

from reposync.app.application import embedder_config
from reposync.embedding.local import LocalEmbedder
from reposync.embedding.settings import FORMER_LOCAL_MODEL, LOCAL_MODEL, EmbedderConfig
from reposync.store.tables import VersionState
from reposync.sync.index_versions import VersionSettings
from tests.fixtures.world import World

FILES = {
    "fruit.txt": b"apples, pears and cherries grow on trees in an orchard\n",
    "net.py": b"def connect(host, port):\n    return socket.create_connection((host, port))\n",
}


async def live_model(world: World) -> str:
    row = await world.app.repositories.get("project")
    (live,) = [each for each in await world.app.versions.of(row.id) if each.state is VersionState.LIVE]
    made = VersionSettings.read(live.settings)
    assert made is not None
    return made.spec.model


async def by_meaning(world: World) -> str:
    """The first hit for words that are in no file."""
    return (await world.app.searching.search("plums harvested by a farmer"))[0].path


async def test_an_index_of_the_earlier_local_model_is_searched_by_meaning_until_the_new_one_is_live(
    closed_world: World, caplog: pytest.LogCaptureFixture
):
    world = closed_world
    registry = world.folder / "repositories.yaml"
    lines = registry.read_text().splitlines(keepends=True)
    registry.write_text("".join("embedding: {provider: local}\n" if "test/words" in each else each for each in lines))
    world.repository.commit(FILES)
    async with world.opened():
        # As 0.1.0 did, whose registry file was the same.
        former = LocalEmbedder(EmbedderConfig("local", model=FORMER_LOCAL_MODEL))
        world.app._embedders[embedder_config(world.app.configuration.registry)] = former
        await world.completed()
        assert await live_model(world) == FORMER_LOCAL_MODEL
        await former.close()
    async with world.opened():
        with caplog.at_level(logging.WARNING):
            assert await by_meaning(world) == "fruit.txt"
        assert "searching words only" not in caplog.text
        run = await world.completed()
        assert (run.chunks_embedded, run.chunks_reused) == (2, 0)
        assert await live_model(world) == LOCAL_MODEL
        assert await by_meaning(world) == "fruit.txt"
