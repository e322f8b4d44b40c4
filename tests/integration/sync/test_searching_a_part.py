"""A search in a part of the repositories finds what is live in them, whatever happens in the others meanwhile."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from reposync.app.application import Application
from reposync.errors import NothingIndexed, RepositoryNotFound
from reposync.operations.core import Actor
from reposync.operations.search import FacetedSearch, search
from reposync.search.documents import Facet, Facets
from reposync.search.facets import facets_of
from reposync.search.grep import grep
from reposync.search.query import read_query
from reposync.vectors.index import QdrantIndex
from reposync.vectors.port import IndexQuery, SearchHit
from reposync.visible import NOTHING, Visible
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World

QUESTION = "how is the zebra striped"
NAMES = ("shown/a", "shown/b", "shown/c", "hidden/a", "hidden/b")


def code_of(name: str) -> dict[str, bytes]:
    return {"src/zebra.py": f"def zebra_striped_{name[-1]}():\n    return '{name}'\n".encode()}


@pytest.fixture
async def several(closed_world: World) -> AsyncGenerator[World, None]:
    """The last ones of the names are not synced yet."""
    extra = ""
    for name in NAMES:
        repository = GitRepository.create(closed_world.folder / f"{name.replace('/', '-')}.git")
        repository.commit(code_of(name))
        extra += f"  - {{name: {name}, path: '{repository.path}'}}\n"
    closed_world.configure(extra=extra)
    async with closed_world.opened() as world:
        for name in NAMES[:2] + NAMES[3:4]:
            await world.completed(name)
        yield world


async def part(world: World, *names: str) -> Application:
    ids = [row.id for row in await world.app.repositories.list(names)]
    return world.app.limited(Visible(frozenset(ids)))


async def found(app: Application, **options: Any) -> list[str]:
    return sorted({hit.repository for hit in await app.searching.search(QUESTION, limit=50, **options)})


async def matching(app: Application) -> list[str]:
    return sorted(file.repository for file in (await grep(app, "zebra_striped")).items)


async def test_what_becomes_live_is_found_in_the_part_that_it_belongs_to(several: World):
    shown, hidden = await part(several, *NAMES[:3]), await part(several, *NAMES[3:])
    assert (await found(shown), await found(hidden)) == (["shown/a", "shown/b"], ["hidden/a"])

    await several.completed("hidden/b")
    assert (await found(shown), await found(hidden)) == (["shown/a", "shown/b"], ["hidden/a", "hidden/b"])
    await several.completed("shown/c")
    assert await found(shown) == await matching(shown) == ["shown/a", "shown/b", "shown/c"]

    await several.app.repositories.deactivate("shown/b")
    assert await found(shown) == await matching(shown) == ["shown/a", "shown/c"]
    await several.app.repositories.remove("shown/a")
    assert await found(shown) == await matching(shown) == ["shown/c"]


async def test_a_part_is_found_whether_it_is_most_of_the_repositories_or_few(several: World):
    """The filter names the versions that are searched, or those that are not."""
    await several.completed("hidden/b")
    for names in (["shown/a"], ["shown/a", "shown/b", "hidden/a"]):
        app = await part(several, *names)
        assert await found(app) == await matching(app) == sorted(names)
    one = await part(several, "shown/a", "shown/b")
    assert await found(one, repository="shown/b") == ["shown/b"]
    with pytest.raises(RepositoryNotFound):
        await found(one, repository=["shown/b", "hidden/a"])


async def test_who_sees_nothing_gets_the_answer_of_an_empty_index(several: World):
    nobody = several.app.limited(NOTHING)
    for ask in (found, matching):
        with pytest.raises(NothingIndexed) as refused:
            await ask(nobody)
        assert refused.value.message == "Nothing is indexed yet."


async def test_a_search_that_is_refused_leaves_nothing_running(several: World):
    """Whatever it asked the database meanwhile would keep a connection that nobody closes."""
    nobody, others = several.app.limited(NOTHING), asyncio.all_tasks()
    with pytest.raises(NothingIndexed):
        await search(nobody, Actor.at_terminal("ada"), FacetedSearch(q=[QUESTION], facets=True))

    assert asyncio.all_tasks() == others


async def test_points_of_no_repository_are_in_no_part(several: World):
    points = await several.points()
    strangers = [copy.deepcopy(point) for point in points.values()]
    for number, point in enumerate(strangers):
        point["id"] = f"00000000-0000-4000-8000-{number:012}"
        point["payload"]["metadata"]["repository_id"] = "stranger"
        point["payload"]["metadata"]["repository"] = "stranger"
    await several.put_points(strangers)

    most = await part(several, *NAMES[:3])
    assert await found(most) == await matching(most) == ["shown/a", "shown/b"]


class SlowIndex:
    """An index before whose first answer something else happens."""

    def __init__(self, index: QdrantIndex, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._index, self._meanwhile = index, meanwhile
        self.searches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    async def search(self, query: IndexQuery) -> list[SearchHit]:
        self.searches += 1
        if self.searches == 1:
            await self._meanwhile()
        return await self._index.search(query)


@pytest.mark.parametrize(("name", "expected"), [("hidden/b", ["shown/a", "shown/b"]), ("shown/c", list(NAMES[:3]))])
async def test_a_version_that_becomes_live_during_a_search_is_found_by_those_who_may_see_it(
    several: World, name: str, expected: list[str]
):
    view = copy.copy(await part(several, *NAMES[:3]))
    await found(view)
    slow = SlowIndex(view.index(await several.physical()), lambda: several.completed(name))
    vars(view).update(index=lambda collection: slow, searching=several.app.searching.of(view))

    assert await found(view) == expected
    assert slow.searches > 1, "the first answer was not of one moment"


# Facets ---------------------------------------------------------------------------------------------------------------


async def facets(app: Application, text: str = QUESTION) -> Facets:
    found = await facets_of(app, read_query(text))
    assert found is not None
    return found


def counts(values: list[Facet]) -> dict[str, int]:
    return {each.value: each.count for each in values}


async def test_facets_count_what_may_be_seen_and_nothing_else(several: World):
    shown, hidden = await part(several, *NAMES[:3]), await part(several, *NAMES[3:])
    of_all = await facets(several.app)
    assert counts(of_all.repository) == {"shown/a": 1, "shown/b": 1, "hidden/a": 1}
    assert (of_all.counted, of_all.is_complete) == (3, True)
    assert counts(of_all.language) == {"python": 3} and counts(of_all.kind) == {"function": 3}
    assert counts(of_all.folder) == {"/src/": 3}

    of_shown = await facets(shown)
    assert counts(of_shown.repository) == {"shown/a": 1, "shown/b": 1}
    assert counts(of_shown.language) == {"python": 2} and of_shown.counted == 2
    assert counts((await facets(hidden)).repository) == {"hidden/a": 1}

    await several.completed("hidden/b")
    assert counts((await facets(shown)).language) == {"python": 2}
    await several.app.repositories.deactivate("shown/b")
    assert counts((await facets(shown)).repository) == {"shown/a": 1}


async def test_facets_are_of_what_the_filters_leave(several: World):
    assert (await facets(several.app, f"{QUESTION} lang:go")).counted == 0
    assert counts((await facets(several.app, f"{QUESTION} repo:shown/b")).repository) == {"shown/b": 1}
    for glob, number in (("src/", 3), ("*.py", 3), ("s*/zebra.*", 3), ("z*a.rs", 0)):
        assert (await facets(several.app, f"{QUESTION} path:{glob}")).counted == number, glob
    assert (await facets(several.app, "zebra_striped_a")).counted == 3, "its parts are words, too"
    assert (await facets(several.app, "symbol:zebra_striped_a")).counted == 2, "of shown/a and hidden/a"
    assert (await facets(several.app, "quagga")).counted == 0
