"""However many commits lie between two syncs, the index ends where a fresh sync of the last one would."""

import subprocess
from pathlib import Path

import pytest

from tests.fixtures.world import World, comparable

PROJECT = Path(__file__).parents[3]
COMMITS = 10


async def fresh(world: World, closed: World) -> dict[str, object]:
    """What one sync of the present commit makes in an empty collection, under the same name."""
    again = World(
        closed.folder / "fresh", world.repository, world.embeddings, world.qdrant_url, f"{world.collection}-f"
    )
    again.folder.mkdir()
    again.configure()
    async with again.opened():
        await again.completed()
        return comparable(await again.points())


async def test_this_projects_own_history_commit_by_commit_ends_as_a_fresh_sync_of_its_last_commit(closed_world: World):
    listed = subprocess.run(
        ["git", "-C", str(PROJECT), "rev-list", "--reverse", "--first-parent", "HEAD"], capture_output=True, text=True
    )
    commits = listed.stdout.split()
    if listed.returncode or len(commits) < 2:
        pytest.skip("this checkout has no history (an archive, or a shallow clone)")
    step = max(1, len(commits) // COMMITS)
    world = closed_world
    world.repository.git("fetch", "--quiet", str(PROJECT), "+HEAD:refs/heads/source")
    async with world.opened():
        for commit in [*commits[::step], commits[-1]]:
            world.repository.git("update-ref", "refs/heads/main", commit)
            await world.completed(approved=True)
        assert comparable(await world.points()) == await fresh(world, closed_world)
