"""An answer that finds nothing says which of three things it is: not indexed yet, excluded by a rule, or no match."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reposync.errors import FileNotIndexed
from reposync.operations.core import Actor
from reposync.operations.search import FacetedSearch, Grep, Missing, grep, search
from reposync.search.reading import read_file
from reposync.store.run import Ask
from reposync.store.status import RunTrigger
from reposync.visible import Visible
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World

FILES = {
    "src/zebra.py": b"def stripes():\n    return 1\n",
    "src/zebra.min.js": b"var zebra=1;\n",
    "src/vendor/zebra.png": b"\x89PNG\0\0",
    "notes.txt": b"",
}
ACTOR = Actor.at_terminal("somebody")


async def missing(world: World, actor: Actor = ACTOR, *, q: str = "zebra stripes", **filters: Any) -> Missing | None:
    """Of a search, which is that of a grep."""
    found = await search(world.app, actor, FacetedSearch(q=[q], **filters))
    lines = await grep(world.app, actor, Grep(q=q.split()[-1], **filters))
    # A search by meaning finds something in every file.
    if bool(found.items) == bool(lines.items):
        assert found.missing == lines.missing
    return found.missing


async def test_a_search_within_a_path_says_which_rule_excludes_what_is_there(world: World):
    world.repository.commit(FILES)
    await world.completed()

    for path, rule in (("src/zebra.min.js", "minified"), ("*.png", "binary"), ("notes.txt", "empty")):
        absent = await missing(world, path=path)
        assert absent is not None
        assert (absent.reason, absent.rule) == ("excluded", rule)
        assert "of project is excluded by the rule" in absent.message
    several = await missing(world, path="src/**", language="javascript")
    assert several is not None and several.reason == "excluded" and several.rule is None
    assert "Excluded by a rule (binary, minified): 2 files that match" in several.message
    assert await missing(world, path="nowhere/*") == Missing("no_match", "Nothing in the index matches.")
    assert await missing(world) is None, "something is found, and all is indexed"


async def test_a_repository_without_an_index_and_a_newer_commit_are_not_indexed_yet(closed_world: World):
    world = closed_world
    other = GitRepository.create(world.folder / "other.git")
    other.commit({"a.py": b"a = 1\n"})
    world.configure(extra=f"  - {{name: other, path: '{other.path}'}}\n")
    world.repository.commit(FILES)
    async with world.opened():
        await world.completed("project")

        absent = await missing(world, path="nowhere/*")
        assert absent is not None and (absent.reason, absent.repositories) == ("not_indexed", ["other"])
        less = await missing(world)
        assert less is not None and less.message.startswith("Not indexed yet: other."), "what is found is not all"
        seen = await world.app.repositories.get("project")
        only = replace(ACTOR, visible=Visible(frozenset({seen.id})))
        hidden = await missing(world, only, path="nowhere/*")
        assert hidden is not None and hidden.reason == "no_match", "the other one does not exist for them"

        await world.completed("other")
        assert await missing(world) is None
        await world.app.runs.enqueue_for_push(seen, "f" * 40, Ask(RunTrigger.WEBHOOK))
        newer = await missing(world, repository=["project"], path="nowhere/*")
        assert newer is not None and newer.message.startswith("Not indexed yet: the newest commit of project.")
        with pytest.raises(FileNotIndexed) as unread:
            await read_file(world.app, "project", "src/later.py")
        assert unread.value.details == {"reason": "not_indexed", "repositories": ["project"]}
        assert "may have it" in str(unread.value)
