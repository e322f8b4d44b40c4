"""However many commits lie between two syncs, the index ends where a fresh sync of the last one would."""

import subprocess
from pathlib import Path

import pytest

from tests.fixtures.world import World, comparable

pytestmark = pytest.mark.full

PROJECT = Path(__file__).parents[3]
COMMITS = 8


async def test_this_projects_own_history_commit_by_commit_ends_as_a_fresh_sync_of_its_last_commit(closed_world: World):
    listed = subprocess.run(
        ["git", "-C", str(PROJECT), "rev-list", "--reverse", "--first-parent", "HEAD"], capture_output=True, text=True
    )
    commits = listed.stdout.split()
    if listed.returncode or len(commits) < 2:
        pytest.skip("this checkout has no history (an archive, or a shallow clone)")
    world = closed_world
    world.edit_registry("name: project", 'name: project, include: ["reposync/s*/**"]')
    world.repository.git("fetch", "--quiet", str(PROJECT), "+HEAD:refs/heads/source")
    async with world.opened():
        for commit in [*commits[:: max(1, len(commits) // COMMITS)], commits[-1]]:
            world.repository.git("update-ref", "refs/heads/main", commit)
            await world.completed(approved=True)
        found = comparable(await world.points())
        await world.drop_collection()
        await world.completed()
        assert found == comparable(await world.points())
