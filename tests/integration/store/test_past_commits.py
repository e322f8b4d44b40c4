"""What searches remember of commits: read once, within a bound, and of the versions that were found alone."""

import asyncio

import pytest
from sqlalchemy import event

from reposync.embedding.commit_words import CommitWords
from reposync.embedding.sparse import query_vector
from reposync.search.past_commits import PastCommits
from reposync.vectors.port import Candidate
from tests.integration.store.conftest import Store

WANTED = query_vector("retry payments").indices
WORDS = CommitWords.of([("Retry a payment", ["a.py"])])


def found(version: str, path: str = "a.py") -> Candidate:
    return Candidate(path, version, "r", path, 1, 9, None, (), 0.5, {})


@pytest.fixture
async def versions(store: Store) -> list[str]:
    """Three with the same words, and one whose source had none."""
    ids = []
    for name in ("a", "b", "c", "none"):
        run = await store.running(name)
        ids.append((await store.publishes(run)).id)
        await store.versions.record_commit_words(run, None if name == "none" else WORDS.stored())
    return ids


async def test_a_version_is_read_once_and_each_file_is_judged_by_its_own_repository(
    store: Store, versions: list[str]
) -> None:
    commits, statements = PastCommits(), list[str]()
    engine = store.database._reader.sync_engine
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    of_all = [*map(found, versions), found(versions[0], "b.py")]

    first = await commits.like(store.database, of_all, WANTED)
    read = len(statements)
    again = await commits.like(store.database, of_all, WANTED)

    assert first == again and first.keys() == {(each, "a.py") for each in versions[:3]}
    assert len(set(first.values())) == 1
    assert read == len(statements) == 1


async def test_no_more_is_remembered_than_the_bound(store: Store, versions: list[str]) -> None:
    bound = 2 * (WORDS.size_bytes + 500)
    commits = PastCommits(bound)
    for _ in range(2):
        for each in versions[:3]:
            assert len(await commits.like(store.database, [found(each)], WANTED)) == 1
            assert 0 < commits.kept_bytes <= bound
    assert len(await commits.like(store.database, list(map(found, versions)), WANTED)) == 3, "more at once"
    assert commits.kept_bytes <= bound


async def test_searches_at_once_that_displace_what_the_others_know_find_the_same(
    store: Store, versions: list[str]
) -> None:
    commits = PastCommits(WORDS.size_bytes + 500)

    async def search(*which: str) -> None:
        assert len(await commits.like(store.database, list(map(found, which)), WANTED)) == len(which)

    for _ in range(5):
        await search(versions[0])
        async with asyncio.TaskGroup() as searches:
            for other in versions[1:3]:
                searches.create_task(search(versions[0], other))
                searches.create_task(search(other))
    assert commits.kept_bytes <= WORDS.size_bytes + 500
