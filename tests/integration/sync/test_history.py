"""However many commits lie between two syncs, the index ends where a fresh sync of the last one would."""

import random
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.repositories import Executable, GitRepository, Symlink
from tests.fixtures.world import World, comparable
from tests.integration.sync.test_exactness import module

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


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_random_history_commit_by_commit_ends_as_a_fresh_sync_of_its_last_commit(
    closed_world: World, seed: int
):
    world, chance = closed_world, random.Random(seed)
    async with world.opened():
        for _ in range(8):
            random_commit(world.repository, chance)
            if chance.random() < 0.8:
                await world.completed(approved=True)
        await world.completed(approved=True)
        assert comparable(await world.points()) == await fresh(world, closed_world)


def random_commit(repository: GitRepository, chance: random.Random) -> None:
    """Edits, additions, deletions, renames, copies, changes of type, moves of folders; sometimes a force-push."""
    names = [f"{folder}{name}.py" for folder in ("", "src/", "src/deep/", "docs/") for name in "abcd"]
    bodies = [module(name, 25) for name in "uvwxyz"] + [b"", b"\x00\x01" * 9, b"one line\n"]
    change: dict[str, object] = {}
    for name in chance.sample(names, chance.randint(1, 8)):
        kind = chance.random()
        if kind < 0.25:
            change[name] = None
        elif kind < 0.32:
            change[name] = Symlink("a.py")
        elif kind < 0.4:
            change[name] = Executable(chance.choice(bodies))
        else:
            change[name] = chance.choice(bodies) + (b"# %d\n" % chance.randint(1, 3) if chance.random() < 0.5 else b"")
    repository.commit(change, replace=chance.random() < 0.15)  # type: ignore[arg-type]
