"""Exact search over what is indexed: every line of the commit that matches, once, and never another one."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator

import pytest

from reposync.errors import NothingIndexed
from reposync.next_steps import Sync
from reposync.search.documents import MatchingFiles
from reposync.search.grep import grep
from reposync.search.pattern import Pattern
from reposync.search.reading import read_file
from tests.fixtures.world import World
from tests.integration.sync.test_index_versions import another_collection
from tests.integration.sync.test_searching import Meanwhile

PROSE = "".join(f"This is the line of number {number}, which says little more than that.\n" for number in range(600))
LONG_LINE = "".join(f"key_{number}=value;" for number in range(1_500))
TEXTS = {
    **{f"src/f{number}.py": f"def parse_config(path):\n    return read(path, {number})\n" for number in range(20)},
    "src/session.py": "class SessionStore:\n    # the end of a Session\n    def remove_expired(self): ...\n",
    "crlf.txt": "first\r\nsecond line\r\nthird\r\n" * 100,
    "long.txt": f"{PROSE}{LONG_LINE}\nend\n",
    "page.html": f"{PROSE}<ul>"
    + "".join(f"<li>item {number} <b>of</b> list</li><div>x</div>" for number in range(300))
    + "</ul>",
    "中文.md": "# 会话管理\n\ncafé naïve ﬁle 会话管理器 parse_config™\n",
    "base64.txt": PROSE + "QUJD" * 100 + "parse_config" + "REVG" * 1_000 + "\n",
    "empty_lines.md": "# Title\n" + "\n" * 900 + "The end, without a line break",
}
PATTERNS = [
    *(
        "parse_config",
        r"\bparse_config\b",
        r"def parse_config\(",
        r"\breturn read\(path, 7\)",
        "Session",
        r"\bSession\b",
    ),
    *(
        r"^class \w+:$",
        "(?i)SESSION",
        r"\b(SessionStore|remove_expired)\b",
        "key_1499=value;$",
        "^key_0=",
        "key_77=value",
    ),
    *("item 299 <b>", "</b> list</li><div>x", "second line$", "会话管理", "naïve", r"\bcaf\b", "^$", "end", "^The end"),
    *("QUJDpars", r"\bif\b", r"read\(path, 1?3\)", r"path\):\n    return", "[0-9]{4}=", "x{3}"),
]


@pytest.fixture(params=[80, 200], ids=["with a short overlap", "with an overlap"])
async def world(closed_world: World, request: pytest.FixtureRequest) -> AsyncGenerator[World, None]:
    closed_world.configure(overlap=request.param)
    closed_world.repository.commit({path: text.encode() for path, text in TEXTS.items()})
    async with closed_world.opened():
        yield closed_world


def lines(found: MatchingFiles) -> list[tuple[str, int, int]]:
    return [(file.path, each.line, each.column) for file in found.items for each in file.matches]


def expected(pattern: str) -> list[tuple[str, int, int]]:
    compiled = Pattern(pattern)
    return [
        (path, each.line + 1, each.column)
        for path, text in sorted(TEXTS.items())
        for each in compiled.lines(text, 10_000, time.monotonic() + 60)
    ]


async def test_every_line_of_the_commit_that_matches_is_found_once(world: World):
    await world.completed()

    for pattern in PATTERNS:
        found = await grep(world.app, pattern, limit=1_000, max_seconds=60)
        assert lines(found) == expected(pattern), pattern
        assert found.is_complete, found.stopped


async def test_only_files_with_the_words_of_a_pattern_are_read(closed_world: World):
    world = closed_world
    world.configure(overlap=200)
    world.repository.commit({path: text.encode() for path, text in TEXTS.items()})
    async with world.opened():
        await world.completed()

        assert (await grep(world.app, r"\bSessionStore\b")).files_searched == 1
        assert (await grep(world.app, r"class SessionStore:")).files_searched == 1
        assert (await grep(world.app, r"\bNoSuchName\b")).files_searched == 0
        # Any word may have it as a part.
        assert (await grep(world.app, "SessionStore")).files_searched == len(TEXTS)
        # What is likely to match is read first.
        found = await grep(world.app, "remove_expired", limit=1)
        assert [each.path for each in found.items] == ["src/session.py"]


async def test_a_limit_and_a_deadline_are_told(world: World):
    await world.completed()

    found = await grep(world.app, "parse_config", limit=5)
    assert len(lines(found)) == 5
    assert found.stopped is not None and "the first 5 lines" in found.stopped
    found = await grep(world.app, "^first$", limit=7)
    assert (len(lines(found)), found.is_complete) == (7, False)
    assert (await grep(world.app, "^first$", limit=101)).is_complete
    found = await grep(world.app, r"\bparse_config\b", max_seconds=0)
    assert not found.is_complete
    assert found.stopped is not None and "narrow it by path or repository" in found.stopped


async def test_hostile_patterns_and_texts_are_inert(world: World):
    world.repository.commit({"hostile.txt": b"a" * 40_000 + b"!\n\x1b[31mred\n" + PROSE.encode()})
    await world.completed()

    assert lines(await grep(world.app, "^(a+)+$")) == []
    assert lines(await grep(world.app, "^(a|aa)+!$", max_seconds=60)) == [("hostile.txt", 1, 1)]
    (file,) = (await grep(world.app, "red", path_glob="hostile.txt")).items
    assert file.matches[0].text == "\x1b[31mred"


async def test_lines_of_a_notebook_are_near_those_of_its_file(world: World):
    cells = [{"cell_type": "code", "source": [f"value_{n} = {n}\n", "print()\n"], "outputs": []} for n in range(40)]
    notebook = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)
    world.repository.commit({"book.ipynb": notebook.encode()})
    await world.completed()

    ((path, line, column),) = lines(await grep(world.app, "^value_30 = 30$"))

    actual = 1 + next(number for number, text in enumerate(notebook.split("\n")) if "value_30" in text)
    assert (path, column) == ("book.ipynb", 1)
    assert abs(line - actual) < 60


async def test_nothing_indexed_is_an_error_and_not_an_empty_answer(closed_world: World):
    async with closed_world.opened() as world:
        for names in ([], ["project"]):
            with pytest.raises(NothingIndexed):
                await grep(world.app, "x", repositories=names)
        with pytest.raises(NothingIndexed) as refused:
            await read_file(world.app, "project", "a.py")
        assert refused.value.next_steps == (Sync("project"),)


async def test_a_commit_that_is_synced_during_a_search_is_found_as_it_is_before_or_after(closed_world: World):
    world = closed_world
    world.repository.commit({"a.py": b"old_line = 1\n" * 100})
    async with world.opened():
        await world.completed()
        before = list((await world.points()).values())
    async with world.opened():
        world.repository.commit({"a.py": b"new_line = 1\nnew_line = 2\n"})
        world.app.index_transport = meanwhile = Meanwhile(world.completed, "/points/scroll")

        old, new = ([("a.py", number, 1) for number in range(1, count + 1)] for count in (100, 2))
        assert lines(await grep(world.app, "old_line|new_line", max_seconds=60)) in (old, new)
        assert meanwhile.searches
        await world.put_points(before)  # a run deletes the points of the other blob after it stored the new ones
        assert lines(await grep(world.app, "old_line|new_line")) == new


async def test_a_version_that_is_replaced_during_a_search_is_searched_in_the_next(closed_world: World):
    world = closed_world
    world.repository.commit({path: text.encode() for path, text in TEXTS.items()})
    async with world.opened():
        await world.completed()
    another_collection(world)
    async with world.opened():
        world.app.index_transport = Meanwhile(world.completed, "/points/scroll")

        assert lines(await grep(world.app, "SessionStore", max_seconds=60)) == [("src/session.py", 1, 7)]
