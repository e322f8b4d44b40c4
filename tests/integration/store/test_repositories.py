"""What is registered, what a second registration changes, and what a run may write about a repository."""

from __future__ import annotations

from datetime import timedelta, timezone

import pytest

from reposync.errors import RepositoryNotFound, UsageError
from reposync.store.endings import Finish
from reposync.store.manifest import ManifestRow
from reposync.store.repository import Repository, repository_id
from reposync.store.run import Ask, Run, RunFigures
from reposync.store.status import RunStatus, RunTrigger
from tests.integration.store.conftest import COMMIT, ON_EVERY_DATABASE, WHEN, Store

FILE = ManifestRow("a.py", "a" * 40, 0o100644, 10, 1, None, "python", 1)


@pytest.fixture
def database_kind() -> str:
    """Little here depends on the database."""
    return "sqlite"


async def published(store: Store, run: Run, **said: object) -> Repository:
    """What the repository shows after `run` has published."""
    await store.publishes(run, **said)
    return await store.repositories.by_id(run.repository_id)


async def test_a_changed_schedule_keeps_what_was_synced(store: Store) -> None:
    run = await store.running()
    synced = await published(store, run)

    changed = await store.repository(cron_expression="0 3 * * *")

    assert changed.cron_expression == "0 3 * * *"
    assert changed.last_tick_at > synced.last_tick_at, "no tick of the new one can have been missed before"
    assert synced.next_due_at is None and changed.next_due_at > changed.last_tick_at
    before = {"cron_expression": None, "updated_at": synced.updated_at}
    before |= {"last_tick_at": synced.last_tick_at, "next_due_at": None}
    assert changed.model_copy(update=before) == synced


CHANGES = [
    {"location": "https://new.example.com/x.git"},
    {"source": "gitlab"},
    {"collection": "other"},
    {"branch": "develop"},
    {"resolved": {"include": ["*.py"]}},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
async def test_another_definition_is_another_generation_and_the_live_version_keeps_its_commit(
    store: Store, change: dict
) -> None:
    run = await store.running()
    await store.manifests.record(run, run.repository_id, [FILE])
    before = await published(store, run)

    changed = await store.repository(**change)

    assert (before.generation, changed.generation) == (0, 1)
    assert (await store.repository(**change)).generation == 1, "the same once more is no change"
    assert (changed.live_version, changed.last_commit) == (before.live_version, COMMIT)
    assert await store.manifests.load(changed.id) == {"a.py": FILE}


async def test_a_repository_that_returns_to_the_registry_is_active_again_and_a_paused_one_stays_paused(
    store: Store,
) -> None:
    await store.repository()
    await store.repositories.deactivate("payments")
    assert not (await store.repositories.get("payments")).is_active

    assert (await store.repository()).is_active

    await store.repositories.pause("payments", "being moved")
    again = await store.repository(cron_expression="0 3 * * *")
    assert (again.is_active, again.paused_reason) == (False, "being moved")


@ON_EVERY_DATABASE
async def test_a_removed_repository_takes_the_files_of_every_version_along(store: Store) -> None:
    run = await store.running()
    other = await store.running("other")
    first, theirs = await store.building(run), await store.building(other)
    second = await store.building(run, settings_key="settings-2")
    for each, version in ((run, first), (run, second), (other, theirs)):
        await store.manifests.record(each, version.id, [FILE])

    await store.repositories.remove("payments")

    assert await store.versions.all() == {other.repository_id: [theirs]}
    assert set(await store.manifests.counts()) == {theirs.id}


# Another name -------------------------------------------------------------------------------------------------------


async def test_a_renamed_repository_keeps_what_it_is_and_did_and_its_run_goes_on(store: Store) -> None:
    run = await store.running("old")
    await store.manifests.record(run, run.repository_id, [FILE])
    before = await published(store, run)

    renamed = await store.renamed(before, "new")

    changed = {"name": "new", "generation": before.generation + 1, "updated_at": renamed.updated_at}
    assert renamed == before.model_copy(update=changed)
    assert await store.repositories.get("new") == renamed
    assert [each.id for each in await store.history.runs("new")] == [run.id]
    assert await store.history.runs("old") == []
    with pytest.raises(RepositoryNotFound, match="'old'"):
        await store.runs.enqueue("old", Ask(RunTrigger.HTTP))
    assert await store.runs.heartbeat(run, 60.0) is False
    assert (await published(store, run)).name == "new"
    assert (await store.ended(run)).repository == "new"


async def test_a_new_repository_under_an_old_name_has_its_own_id_and_history(store: Store) -> None:
    first = await store.repository("name")
    run = await store.queued("name")
    await store.renamed(first, "first")

    second = await store.repository("name")
    again = await store.repository("name", cron_expression="0 3 * * *")

    assert first.id == repository_id("name") != second.id == again.id
    queued, created = await store.runs.enqueue("name", Ask(RunTrigger.HTTP))
    assert created and queued.repository_id == second.id
    assert await store.history.runs("name") == [queued]
    assert [each.id for each in await store.history.runs("first")] == [run.id]
    assert {(await store.runs.claim("worker-1", 60.0)).repository for _ in range(2)} == {"name", "first"}
    await store.repositories.remove("name")
    assert [each.id for each in await store.history.runs("name")] == [queued.id], "of the one that had it last"
    assert [each.id for each in await store.history.runs("first")] == [run.id]


async def test_a_name_has_1_to_255_characters(store: Store) -> None:
    for name in ("", "n" * 256):
        with pytest.raises(UsageError, match="1 to 255 characters"):
            await store.repository(name)


# Removal by a run ---------------------------------------------------------------------------------------------------


@ON_EVERY_DATABASE
async def test_a_run_that_removes_its_repository_ends_as_it_likes(store: Store) -> None:
    run = await store.running()
    await store.manifests.record(run, run.repository_id, [FILE])
    waiting, _ = await store.runs.enqueue("payments", Ask(RunTrigger.HTTP))

    await store.repositories.remove("payments", by=run)

    assert await store.repositories.list() == []
    assert await store.manifests.load(run.repository_id) == {}
    assert (await store.history.get(waiting.id)).error_code == "REPOSITORY_REMOVED"
    assert await store.runs.heartbeat(run, 60.0) is False
    done = await store.runs.end(run, Finish(), RunFigures(files_deleted=1))
    assert (done.status, done.files_deleted) == (RunStatus.COMPLETED, 1)


# In the name of a run -----------------------------------------------------------------------------------------------


@ON_EVERY_DATABASE
async def test_what_a_run_publishes_is_what_the_repository_shows(store: Store) -> None:
    run = await store.running()
    attributes = {
        "nul\0/.gitattributes": ["d" * 40, "\udce9\0\u2028 ☃"],
        ".gitattributes": ["e" * 40, "*.js linguist-generated\n"],
    }
    committed = (WHEN - timedelta(hours=1)).astimezone(timezone(timedelta(hours=9)))

    live = await store.publishes(
        run, committed_at=committed, attributes=attributes, project_id=4711, links="https://x/p"
    )

    shown = await store.repositories.get("payments")
    assert (shown.live_version, shown.last_commit) == (live.id, COMMIT)
    assert shown.last_sync_at is not None and run.started_at <= shown.last_sync_at <= store.history.now()
    assert (shown.last_committed_at, shown.project_id) == (committed, 4711)
    assert shown.last_committed_at.utcoffset() == timedelta(0), "whatever zone it was said in"
    assert await store.versions.attributes(live.id) == attributes
    assert await store.versions.attributes("unknown") == {}
    for each in (live, shown, *await store.versions.of(run.repository_id)):
        assert "linguist" not in repr(each), "up to 13 MB are read only by runs"
