"""`verify --source` checks the commit itself: a file that should be indexed and is not is missing, whatever the
manifest says."""

from typing import Any

import pytest
from sqlalchemy import update

from reposync.app.verification import Verdict, Verification
from reposync.store.tables import FILES
from tests.fixtures.missing_blobs import unreadable
from tests.fixtures.world import World
from tests.integration.sync.test_bad_answers import FILES as CONTENTS


def verification(world: World, *, source: bool = True) -> Verification:
    return Verification(world.app, against_source=source, report=lambda _: None)


async def found(world: World, *, source: bool = True) -> Verdict:
    verdict = await verification(world, source=source).verify("project")
    assert verdict.trouble is None, verdict.trouble
    return verdict


async def left_out(world: World, path: str, **columns: Any) -> None:
    """The manifest says that the file is not indexed, and it has no points."""
    ids = [key for key, point in (await world.points()).items() if point["payload"]["metadata"]["path"] == path]
    await world.delete_points(ids)
    async with world.app.database.write() as connection:
        await connection.execute(update(FILES).where(FILES.c.path == path).values(chunks=0, **columns))


@pytest.mark.parametrize(
    ("reason", "size_bytes"), [("too_large", 42_035), ("failed", 42_035), ("failed", None), ("excluded", None)]
)
async def test_a_file_that_the_manifest_wrongly_leaves_out_is_missing_and_is_read_by_a_repair(
    world: World, reason: str, size_bytes: int | None
):
    world.repository.commit(CONTENTS)
    await world.completed()
    await left_out(world, "a.py", skip_reason=reason, size_bytes=size_bytes)
    verdict = await found(world)
    assert not verdict.exact
    assert [(each.kind, each.path) for each in verdict.differences] == [("missing", "a.py")]
    await verification(world).repair("project", lambda _: None)
    assert (await found(world)).exact
    assert await world.indexed() == await world.expected()


async def test_nothing_is_proven_while_a_file_that_was_left_out_cannot_be_read(world: World):
    world.repository.commit(CONTENTS)
    await world.completed()
    await left_out(world, "a.py", skip_reason="too_large", size_bytes=42_035)
    with unreadable(world.repository, "a.py"):
        verdict = await verification(world).verify("project")
        assert not verdict.exact
        assert "a.py" in (verdict.trouble or "")
