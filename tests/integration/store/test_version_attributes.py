"""Lines of `.gitattributes`: exact, written if they changed, read if somebody asks; also beside older programs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select, update

from reposync.store.tables import REPOSITORIES, VERSION_ATTRIBUTES, VERSIONS
from tests.integration.store.conftest import ON_EVERY_DATABASE, Store

ROOT = {".gitattributes": ["d" * 40, "*.js linguist-generated\n"]}
OTHER = {".gitattributes": ["e" * 40, "*.ts linguist-vendored\n"], "lib/.gitattributes": ["f" * 40, ""]}


@pytest.fixture
def database_kind() -> str:
    """Little here depends on the database."""
    return "sqlite"


async def column(store: Store, version_id: str) -> Any:
    """What programs up to schema 0005 read."""
    async with store.database.read() as connection:
        return await connection.scalar(select(VERSIONS.c.attributes).where(VERSIONS.c.id == version_id))


async def stored(store: Store) -> int:
    async with store.database.read() as connection:
        return int(await connection.scalar(select(func.count()).select_from(VERSION_ATTRIBUTES)) or 0)


async def published_by_an_older_program(store: Store, version_id: str, said: dict[str, list[str]]) -> None:
    async with store.database.write() as connection:
        for table, key in ((VERSIONS, VERSIONS.c.id), (REPOSITORIES, REPOSITORIES.c.live_version)):
            await connection.execute(update(table).where(key == version_id).values(attributes=said))


@ON_EVERY_DATABASE
async def test_they_come_back_exactly_whatever_bytes_they_were(store: Store) -> None:
    run = await store.running()
    attributes = {"nul\0/.gitattributes": ["d" * 40, "\udce9\0\u2028 ☃"], "a/.gitattributes": ["e" * 40, ""]}

    live = await store.publishes(run, attributes=attributes)

    assert await store.versions.attributes(live.id) == attributes
    assert await store.versions.attributes("unknown") == {}


async def test_a_run_that_finds_the_same_lines_writes_none(store: Store) -> None:
    run = await store.running()
    live = await store.publishes(run, attributes=ROOT)
    async with store.database.write() as connection:
        await connection.execute(update(VERSION_ATTRIBUTES).values(lines="as they were written"))

    await store.publishes(run, live, attributes=ROOT)
    assert (await store.versions.attributes(live.id))[".gitattributes"][1] == "as they were written"

    await store.publishes(run, live, attributes=OTHER)
    assert await store.versions.attributes(live.id) == OTHER
    await store.publishes(run, live, attributes={})
    assert (await store.versions.attributes(live.id), await stored(store)) == ({}, 0)


@pytest.mark.parametrize("said", [OTHER, {}])
async def test_those_that_an_older_program_published_during_the_upgrade_are_the_latest(
    store: Store, said: dict[str, list[str]]
) -> None:
    run = await store.running()
    live = await store.publishes(run, attributes=ROOT)

    await published_by_an_older_program(store, live.id, said)

    assert await store.versions.attributes(live.id) == said
    await store.publishes(run, live, attributes=ROOT)
    assert await store.versions.attributes(live.id) == ROOT


async def test_an_older_program_that_keeps_what_it_cannot_understand_hides_nothing(store: Store) -> None:
    """It does so where a listing cannot be proven."""
    run = await store.running()
    live = await store.publishes(run, attributes=ROOT)

    await published_by_an_older_program(store, live.id, await column(store, live.id) | OTHER)
    assert await store.versions.attributes(live.id) == OTHER
    second = await store.publishes(run, live, attributes=ROOT)
    await published_by_an_older_program(store, live.id, await column(store, live.id))

    assert await store.versions.attributes(second.id) == ROOT


async def test_older_programs_find_no_lines_and_read_them_again(store: Store) -> None:
    run = await store.running()

    live = await store.publishes(run, attributes=ROOT)

    said = await column(store, live.id)
    # They look a file up by its path and take what is there if its sha is the commit's.
    assert not said.keys() & ROOT.keys() and [lines for _, lines in said.values()] == [""]
    async with store.database.read() as connection:
        assert await connection.scalar(select(REPOSITORIES.c.attributes)) == {}


@ON_EVERY_DATABASE
async def test_they_go_with_their_version(store: Store) -> None:
    run = await store.running()
    first = await store.publishes(run, attributes=ROOT)
    second = await store.publishes(run, await store.building(run, settings_key="settings-2"), attributes=OTHER)
    assert (await store.versions.attributes(first.id), await store.versions.attributes(second.id)) == (ROOT, OTHER)

    await store.versions.remove(run, first.id)
    assert await stored(store) == len(OTHER)
    await store.repositories.remove("payments")

    assert await stored(store) == 0


async def test_no_list_and_no_version_carries_them(store: Store) -> None:
    run = await store.running()
    live = await store.publishes(run, attributes=ROOT)

    for each in (live, *await store.repositories.list(), *await store.versions.of(run.repository_id)):
        assert "linguist" not in repr(each)
