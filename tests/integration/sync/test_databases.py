"""The same sync on SQLite and on PostgreSQL: first, nothing changed, changed, cut off, and the history of it all."""

from tests.fixtures.databases import (  # noqa: F401
    database_kind,
    empty_database_url,
    postgresql,
    upgraded_sqlite_file,
)
from tests.fixtures.world import World
from tests.integration.sync.test_exactness import CODE, module


async def test_a_life_of_a_repository(closed_world: World, empty_database_url: str):  # noqa: F811
    world = closed_world
    world.database_url = empty_database_url
    world.repository.commit({"a.py": CODE, b"caf\xe9\n.py": b"x = 1\n", "b.py": module("b"), "empty.py": b""})
    async with world.opened():
        first = await world.completed()
        assert (first.files_processed, first.files_skipped) == (3, 1)
        assert (await world.completed()).files_processed == 0
        world.repository.commit({"a.py": None, "b.py": module("b", 61)})
        changed = await world.completed()
        assert (changed.files_processed, changed.files_deleted) == (1, 1)
        assert set(await world.indexed()) == {"b.py", '"caf\\351\\012.py"'}
    async with world.opened():
        await world.drop_collection()
        assert (await world.completed()).error_code == "INDEX_REBUILT"
        assert len(await world.app.history.runs()) == 4
        repository = await world.app.repositories.get("project")
        assert (repository.last_commit, repository.epoch) == (world.repository.head(), 3)
