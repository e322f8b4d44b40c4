"""In random worlds of people, groups, shares and visibility, nobody is shown more or less than GitLab shows them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import pytest

from reposync.app.application import Application
from tests.fixtures.rights_walk import LEAKS, walking
from tests.fixtures.rights_world import RightsWorld

WORLDS = int(os.environ.get("REPOSYNC_RIGHTS_WORLDS", "25"))
"""`python -m benchmarks.rights` walks more of them."""
MOST_WORLDS_OF_A_LEAK = 150


@pytest.fixture
async def app(rights_world: RightsWorld, database_url: str) -> AsyncGenerator[Application, None]:
    rights_world.database_url = database_url
    async with rights_world.opened() as app:
        await rights_world.index(app)
        yield app


async def test_nobody_is_shown_more_or_less_than_gitlab_shows_them(rights_world: RightsWorld, app: Application) -> None:
    async with walking(rights_world, app, seed=7) as walk:
        await walk.world_after_world(WORLDS)
        assert walk.wrong == []
        assert walk.requests > 2 * WORLDS


@pytest.mark.parametrize("database_kind", ["sqlite"])
async def test_the_walk_finds_each_leak_that_is_planted(rights_world: RightsWorld, app: Application) -> None:
    unnoticed = []
    for number, (name, plant) in enumerate(LEAKS.items()):
        with plant():
            async with walking(rights_world, app, seed=number) as walk:
                await walk.world_after_world(MOST_WORLDS_OF_A_LEAK, until_wrong=True)
                unnoticed += [] if walk.wrong else [name]
    assert unnoticed == []
