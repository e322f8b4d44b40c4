"""The history says which files a run added to the index, changed and removed, and what its commit is about."""

from collections import defaultdict

from reposync.store.changes import MAX_CHANGES
from reposync.store.run import Ask, Run
from reposync.store.status import RunTrigger
from reposync.sync.version_update import FIRST_CHANGES
from tests.fixtures.gitlab_world import GitLabWorld
from tests.fixtures.repositories import AUTHOR, Content
from tests.fixtures.world import World

SECRET = "glpat-Zx9Qw3Er5Ty7Ui1Op2As"  # planted; no server has it


def sources(count: int, folder: str = "src", value: int = 1) -> dict[str, Content]:
    return {f"{folder}/m{number:04}.py": b"value_%d = %d\n" % (number, value) for number in range(count)}


async def listed(world: World, run: Run) -> dict[str, set[str]]:
    """Paths by what the run did to them."""
    changes: dict[str, set[str]] = defaultdict(set)
    for change in await world.app.history.changes(run.id, 1_000):
        changes[change.change].add(change.path)
    return dict(changes)


def counts(run: Run) -> tuple[int, int, int]:
    return run.files_added, run.files_changed, run.files_deleted


async def test_a_run_lists_what_it_added_changed_and_removed(gitlab_world: GitLabWorld):
    world = gitlab_world
    first = await world_with(world, {"a.py": b"a = 1\n", "b.py": b"b = 1\n", "c.py": b"c = 1\n", "d.py": b"d = 1\n"})
    assert await listed(world, first) == {"added": {"a.py", "b.py", "c.py", "d.py"}}
    world.repository.commit({"b.py": b"b = 2\n", "c.py": None, "d.py": b"\0\1\2", "e.py": b"e = 1\n"})

    run = await world.completed()

    assert await listed(world, run) == {"added": {"e.py"}, "changed": {"b.py"}, "removed": {"c.py", "d.py"}}
    assert counts(run) == (1, 1, 2)
    assert not run.idle

    again = await world.completed()

    assert again.idle
    assert (await listed(world, again), counts(again)) == ({}, (0, 0, 0))

    full = await world.completed(full=True)

    assert (await listed(world, full), counts(full)) == ({}, (0, 0, 0)), "it reads the same again"
    assert full.files_processed == 3
    assert not full.idle, "somebody asked for it"


async def test_of_a_first_sync_the_first_files_are_listed_and_all_are_counted(gitlab_world: GitLabWorld):
    run = await world_with(gitlab_world, sources(FIRST_CHANGES + 40))

    assert len((await listed(gitlab_world, run))["added"]) == FIRST_CHANGES
    assert counts(run) == (FIRST_CHANGES + 40, 0, 0)


async def test_of_a_large_change_a_bounded_number_is_listed_and_all_are_counted(gitlab_world: GitLabWorld):
    world = gitlab_world
    await world_with(world, {"a.py": b"a = 1\n"})
    world.repository.commit(sources(MAX_CHANGES + 30))

    run = await world.completed()

    assert len((await listed(world, run))["added"]) == MAX_CHANGES
    assert counts(run) == (MAX_CHANGES + 30, 0, 0)


async def test_a_blocked_run_lists_what_it_would_remove_and_after_its_approval_what_it_removed(
    gitlab_world: GitLabWorld,
):
    world = gitlab_world
    gone = {**sources(30), **sources(9, "test/unit", 2), "setup.py": b"x = 1\n"}
    await world_with(world, {**gone, **sources(20, "kept", 3)})
    unreadable: dict[str, Content] = {path: b"\0\1%d" % number for number, path in enumerate(sources(30))}
    world.repository.commit({**dict.fromkeys(gone), **unreadable, "new.py": b"n = 1\n"})

    run = await world.sync()

    assert run.status == "blocked", run.error_message
    assert await listed(world, run) == {"added": {"new.py"}, "at_risk": set(gone)}
    assert run.brake is not None
    assert run.brake["folders"] == {"src": 30, "test": 9, "": 1}
    assert counts(run) == (1, 0, 0)

    await world.app.runs.approve(run.id, Ask(RunTrigger.COMMAND))
    ended = await world.sync()

    assert (ended.id, ended.status) == (run.id, "completed"), ended.error_message
    assert await listed(world, ended) == {"added": {"new.py"}, "removed": set(gone)}
    assert counts(ended) == (1, 0, 40), "of both attempts, and nothing twice"


async def test_a_path_with_a_secret_is_in_no_list(gitlab_world: GitLabWorld):
    world = gitlab_world
    await world_with(world, {"a.py": b"a = 1\n", f"keys/{SECRET}.py": b"b = 1\n"})
    world.repository.commit({f"keys/{SECRET}.py": None})

    await world.completed()

    runs = await world.app.history.runs("project")
    assert SECRET not in str([await listed(world, run) for run in runs])


async def test_the_commit_is_recorded_with_its_title_and_author_without_another_request(gitlab_world: GitLabWorld):
    world = gitlab_world
    await world_with(world, {"a.py": b"a = 1\n"})
    world.forget()
    assert (await world.completed()).commit_title is None
    unchanged = world.rest()
    world.repository.commit({"b.py": b"b = 1\n"}, message=f"Rename the ledger ({SECRET})\n\nA long story.")

    run = await world.completed()

    assert run.commit_author == AUTHOR.partition(" <")[0]
    assert run.commit_title is not None
    assert run.commit_title.startswith("Rename the ledger (")
    assert SECRET not in run.commit_title
    assert "story" not in run.commit_title
    assert unchanged == 1


async def test_a_run_of_a_git_repository_names_its_commit(closed_world: World):
    world = closed_world
    async with world.opened():
        run = await world_with(world, {"a.py": b"a = 1\n"})

    assert (run.commit_title, run.commit_author) == ("Change files", AUTHOR.partition(" <")[0])


async def world_with(world: World, files: dict[str, Content]) -> Run:
    world.repository.commit(files)
    return await world.completed()
