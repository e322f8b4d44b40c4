"""In random worlds of people, groups, shares and visibility, nobody is shown more or less than GitLab shows them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import pytest

from reposync.app.application import Application
from tests.fixtures.rights_leaks import LEAKS
from tests.fixtures.rights_walk import prepare, walking
from tests.fixtures.rights_world import RightsWorld

WORLDS = int(os.environ.get("REPOSYNC_RIGHTS_WORLDS", "25"))
"""`python -m benchmarks.rights` walks more of them."""
COMMANDS_EVERY = 12
"""Processes are slow."""
MOST_WORLDS_OF_A_LEAK = 150
PARTS = 15
"""Of the planted leaks, which tests look for at the same time."""
WORLDS_BETWEEN_LEAKS = 2
"""Without a leak, so that what is found is not left over from the one before."""


@pytest.fixture
async def app(rights_world: RightsWorld, database_url: str) -> AsyncGenerator[Application, None]:
    rights_world.database_url = database_url
    await prepare(rights_world)
    async with rights_world.opened() as app:
        await rights_world.index(app)
        yield app


async def test_nobody_is_shown_more_or_less_than_gitlab_shows_them(rights_world: RightsWorld, app: Application) -> None:
    async with walking(rights_world, app, seed=7) as walk:
        await walk.world_after_world(WORLDS, commands_every=COMMANDS_EVERY)
        assert walk.wrong == [], "\n".join(walk.wrong)
        assert walk.requests > 2 * WORLDS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("database_kind", ["sqlite"])
@pytest.mark.parametrize("part", range(PARTS))
async def test_the_walk_finds_each_leak_that_is_planted(rights_world: RightsWorld, app: Application, part: int) -> None:
    unnoticed = []
    for number, (name, plant) in list(enumerate(LEAKS.items()))[part::PARTS]:
        with plant(app):
            async with walking(rights_world, app, seed=number) as walk:
                await walk.world_after_world(MOST_WORLDS_OF_A_LEAK, until_wrong=True)
                unnoticed += [] if walk.wrong else [name]
        async with walking(rights_world, app, seed=number) as walk:
            await walk.world_after_world(WORLDS_BETWEEN_LEAKS)
            assert walk.wrong == [], f"after the leak: {name}"
    assert unnoticed == []
