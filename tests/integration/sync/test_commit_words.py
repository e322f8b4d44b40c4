"""What commits say of files: when it is read, and what a search does with it."""

import pytest
from sqlalchemy import update

from reposync.app.history_evaluation import evaluate_history
from reposync.store.tables import COMMIT_WORDS
from reposync.sync.commit_words import EVERY_SECONDS
from tests.fixtures.gitlab_world import GitLabWorld
from tests.fixtures.world import World

SUBJECT = "Retry a payment after its timeout"
RETRIED = "payments are retried after a timeout"


def commit_all(world: World) -> None:
    """Two files with the same words, of which a commit says what only one of them is for."""
    code = b"def perform(order):\n    send(order, timeout=30)  # payments\n"
    world.repository.commit({"billing/client.py": code, "billing/server.py": code})
    world.repository.commit({"billing/server.py": code + b"# TODO\n"}, message=SUBJECT)
    world.repository.commit({"billing/notes.py": b"value = 1\n"}, message="Write something else")


async def first(world: World, question: str = RETRIED) -> tuple[str, float]:
    hit = (await world.app.searching.search(question))[0]
    return hit.path, hit.parts.get("commits", 0.0)


async def a_day_later(world: World) -> None:
    earlier = {"read_at": world.app.database.moment(-EVERY_SECONDS - 1)}
    await world.app.database.change(update(COMMIT_WORDS).values(**earlier))


async def test_the_file_that_a_similar_commit_changed_is_found_first(world: World) -> None:
    commit_all(world)
    await world.completed()

    path, commits = await first(world)

    assert path == "billing/server.py" and 0 < commits <= 0.4
    assert (await first(world, "def perform"))[1] == 0.0, "no commit says so"


async def test_questions_of_the_history_are_not_answered_by_themselves(world: World) -> None:
    commit_all(world)
    await world.completed()
    found = await evaluate_history(world.app, "project", 10)
    ranks = {each.question: each.ranks["words"] for each in found.answers}
    assert (await first(world, SUBJECT))[0] == "billing/server.py"
    hits = await world.app.searching.without_commits().search(SUBJECT)
    assert [hit.path for hit in hits][:2] == ["billing/client.py", "billing/server.py"]
    assert ranks[SUBJECT] == [2]


async def test_it_is_read_at_most_once_a_day_and_never_without_a_new_commit(gitlab_world: GitLabWorld) -> None:
    world = gitlab_world
    commit_all(world)
    await world.completed()
    world.repository.commit({"a.py": b"a = 1\n"})
    world.forget()
    await world.completed()
    assert world.git_requests() == 0, "it was read in the first run"

    await a_day_later(world)
    world.forget()
    await world.completed()
    assert (world.rest(), world.git_requests()) == (1, 0), "nothing changed: one call"
    world.repository.commit({"a.py": b"a = 2\n"})
    world.forget()
    await world.completed()
    assert 0 < world.git_requests() <= 2, "what the server can do, and commits with their trees"


@pytest.mark.parametrize("is_refused", [True, False])
async def test_a_server_that_refuses_it_or_would_send_all_contents_costs_the_run_nothing(
    gitlab_world: GitLabWorld, is_refused: bool
) -> None:
    world = gitlab_world
    commit_all(world)
    await world.completed()
    known = await world.app.versions.commit_words([(await world.app.repositories.get("project")).live_version or ""])
    await a_day_later(world)
    if is_refused:
        world.server.faults.refuse_git(403)
    else:
        world.project.allow_filter = False
    world.repository.commit({"a.py": b"a = 1\n"})
    world.forget()
    run = await world.completed()
    assert run.files_processed == 1 and world.git_requests() > 0
    assert (await first(world))[0] == "billing/server.py", "what was known stays"

    world.repository.commit({"a.py": b"a = 2\n"})
    world.forget()
    await world.completed()
    assert world.git_requests() == 0, "it is asked again a day later"
    again = await world.app.versions.commit_words(known.keys())
    assert known and again == known
