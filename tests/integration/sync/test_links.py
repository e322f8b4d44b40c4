"""Links lead to where a file is now, and to renew them no content is read."""

from tests.fixtures.gitlab_world import GitLabWorld

FILES = {"a.py": b"def a():\n    return 1\n", "src/b.py": b"def b():\n    return 2\n"}


async def urls(world: GitLabWorld) -> set[str]:
    return {each["url"] for each in await world.metadata()}


def contents_read(world: GitLabWorld) -> int:
    assert world.server is not None
    return sum("/blobs/" in each.path for each in world.server.log.rest) + world.git_requests()


async def test_a_project_that_moved_keeps_its_points_and_renews_its_links(gitlab_world: GitLabWorld):
    world = gitlab_world
    assert world.project is not None and world.server is not None
    world.repository.commit(FILES)
    await world.completed()
    points = set(await world.points())
    world.project.move("shop/payments")
    world.edit_registry("platform/payments-api", "shop/payments")
    async with world.opened():
        world.forget()
        await world.completed()
        assert contents_read(world) == 0
        assert await urls(world) == {
            f"{world.server.url}/shop/payments/-/blob/HEAD/a.py#L1-2",
            f"{world.server.url}/shop/payments/-/blob/HEAD/src/b.py#L1-2",
        }
        assert set(await world.points()) == points


async def test_a_changed_branch_has_its_own_links(gitlab_world: GitLabWorld):
    world = gitlab_world
    assert world.server is not None
    world.repository.commit(FILES)
    await world.completed()
    world.repository.git("branch", "release")
    world.repository.commit({"src/b.py": b"def b():\n    return 3\n"}, branch="release")
    world.edit_registry("project: platform/payments-api", "project: platform/payments-api, branch: release")
    async with world.opened():
        await world.completed()
        assert await urls(world) == {
            f"{world.server.url}/platform/payments-api/-/blob/release/a.py#L1-2",
            f"{world.server.url}/platform/payments-api/-/blob/release/src/b.py#L1-2",
        }
