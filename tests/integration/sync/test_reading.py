"""The indexed text of a file is what the commit has, or an error says why not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from reposync.errors import (
    FileIncomplete,
    FileNotIndexed,
    RepositoryNotFound,
)
from reposync.next_steps import Sync, Verify
from reposync.search.documents import FileLines
from reposync.search.reading import read_file
from reposync.words import escape_unprintable
from tests.fixtures.world import World
from tests.integration.sync.test_index_versions import another_chunk_size
from tests.integration.sync.test_searching import Meanwhile

LINES = "".join(f"line {number} of the file\n" for number in range(1, 101))
TEXTS = {
    "lines.txt": LINES,
    "crlf.py": "".join(f"def f{number}():\r\n    return {number}\r\n\r\n" for number in range(200)),
    "one_line.md": "word " * 2_000 + "end",
    "empty_lines.md": "# Title\n" + "\n" * 900 + "The end, without a line break",
    "repeats.csv.txt": "a,a,a,a\n" * 500,
    "controls.txt": "bell \x07 form feed \x0c line separator \u2028 next line \x85 \U0001f600\n" * 60,
    'odd "name\x1b[31m.txt': "odd\n",
}


async def read(world: World, path: str, *lines: int) -> FileLines:
    return await read_file(world.app, "project", path, *lines)


async def test_every_text_is_read_as_the_commit_has_it(world: World):
    head = world.repository.commit({path: text.encode() for path, text in TEXTS.items()})
    await world.completed()

    for path, text in TEXTS.items():
        file = await read(world, path)
        assert file.text == text
        lines = text.count("\n") + (not text.endswith("\n"))
        assert (file.start_line, file.end_line, file.total_lines) == (1, lines, lines)
        assert (file.repository, file.path, file.commit) == ("project", path, head)
        assert not file.outdated


async def test_a_path_with_control_characters_is_read_by_the_name_that_is_shown(world: World):
    paths = ["a\nb\x1b[31m.txt", "\u202eodd \U0001f600.txt", "plain\\n.txt", "back\\x1b\\slash.txt"]
    world.repository.commit({path: f"{number}\n".encode() for number, path in enumerate(paths)})
    await world.completed()

    for number, path in enumerate(paths):
        file = await read(world, escape_unprintable(path))
        assert (file.path, file.text) == (path, f"{number}\n")
    with pytest.raises(FileNotIndexed):
        await read(world, "no\\x1bfile.txt")


async def test_a_file_that_is_not_indexed_says_why_and_which_one_may_be_meant(world: World):
    world.repository.commit({
        "src/session/store.py": b"store\n", "src/session/expiry.py": b"expiry\n", "other/store.py": b"other\n",
        "logo.png": b"\x89PNG\0\0", "vendor/lib.py": b"vendored\n",
    })  # fmt: skip
    await world.completed()

    for path, said in {
        "logo.png": "is excluded by the rule binary: it is binary.",
        "vendor/lib.py": "is excluded by the rule vendored: it is third-party code.",
        "session/store.py": "'src/session/store.py'",
        "/src/session/Store.py": "'src/session/store.py'",
        "src/session/expirey.py": "Did you mean 'src/session/expiry.py'",
        "src/session": "is a folder. It has 'src/session/expiry.py', 'src/session/store.py'",
        "100%_nothing": "Give the path from the root",
    }.items():
        with pytest.raises(FileNotIndexed) as missing:
            await read(world, path)
        assert said in str(missing.value)
        is_excluded = "rule" in said
        assert missing.value.details["reason"] == ("excluded" if is_excluded else "no_match")
    with pytest.raises(RepositoryNotFound):
        await read_file(world.app, "projekt", "logo.png")


async def test_what_decoding_changes_is_all_that_differs(world: World):
    contents = {
        "mark.txt": (b"\xef\xbb\xbf" + LINES.encode(), LINES),
        "wide.txt": (LINES.encode("utf-16"), LINES),
        "latin.txt": ("caf\xe9, cr\xe8me\n".encode("latin-1") * 60, "caf\xe9, cr\xe8me\n" * 60),
        "nul.txt": (b"text\n" * 2_000 + b"a NUL: \0\n", "text\n" * 2_000 + "a NUL: \ufffd\n"),
    }
    world.repository.commit({path: content for path, (content, _) in contents.items()})
    await world.completed()

    assert {path: (await read(world, path)).text for path in contents} == {
        path: text for path, (_, text) in contents.items()
    }


async def test_lines_have_the_definitions_that_they_are_part_of(world: World):
    body = "    x = 1\n" * 200
    world.repository.commit({"a.py": f"class A:\n  def f(self):\n{body}\ndef last():\n    pass\n".encode()})
    await world.completed()

    assert [each.name for each in (await read(world, "a.py")).symbols] == ["A", "f", "last"]
    assert [each.name for each in (await read(world, "a.py", 204)).symbols] == ["last"]


async def test_lines_of_a_notebook_are_whole_chunks_of_its_cells(world: World):
    cells = [{"cell_type": "code", "source": [f"x = {n}\n", "print(x)"], "outputs": []} for n in range(60)]
    content = json.dumps({"cells": cells, "nbformat": 4}, indent=1)
    world.repository.commit({"a.ipynb": content.encode()})
    await world.completed()

    whole = await read(world, "a.ipynb")
    assert (whole.is_notebook, whole.text) == (True, "".join(f"x = {n}\nprint(x)\n\n" for n in range(60)))
    line = 1 + content[: content.index("x = 30")].count("\n")
    part = await read(world, "a.ipynb", line, line)
    assert "x = 30\n" in part.text and len(part.text) <= 400
    assert part.start_line <= line <= part.end_line < whole.total_lines


async def test_points_of_01_which_do_not_say_where_they_start_are_joined_if_that_is_certain(world: World):
    texts = {"lines.txt": LINES, "zeros.txt": "0, " * 250 + "\n" + LINES, "latin.txt": "\xe9" + "0, " * 2_000}
    world.repository.commit({path: text.encode("latin-1") for path, text in texts.items()})
    await world.completed()
    stored = await world.points()
    for point in stored.values():
        del point["payload"]["metadata"]["start_index"]
    await world.put_points(list(stored.values()))

    assert (await read(world, "lines.txt")).text == LINES
    for path in ("zeros.txt", "latin.txt"):
        with contextlib.suppress(FileIncomplete):
            assert (await read(world, path)).text == texts[path]


# While a run replaces it ---------------------------------------------------------------------------------------------


async def test_a_file_whose_version_is_replaced_while_it_is_read_is_that_of_the_next(closed_world: World):
    world = closed_world
    world.repository.commit({"a.txt": LINES.replace("file", "old file").encode()})
    async with world.opened():
        await world.completed()
    another_chunk_size(world)
    async with world.opened():
        world.repository.commit({"a.txt": LINES.encode()})
        world.app.index_transport = Meanwhile(world.completed, "/points/scroll")
        assert (await read(world, "a.txt")).text == LINES


async def test_a_text_whose_row_is_not_written_yet_is_read_and_the_one_before_is_not(world: World):
    world.repository.commit({"a.txt": b"old\n"})
    await world.completed()
    before = await points_of(world, "a.txt")
    world.repository.commit({"a.txt": LINES.encode()})
    await world.completed()
    after = await points_of(world, "a.txt")

    await world.put_points(before)
    assert (await read(world, "a.txt")).text == LINES
    await world.delete_points([each["id"] for each in after])
    # The row is of the other blob: the blob's name proves that this is all of it.
    assert (await read(world, "a.txt")).text == "old\n"


# Points that are missing or changed ----------------------------------------------------------------------------------


async def points_of(world: World, path: str) -> list[dict[str, Any]]:
    points = [each for each in (await world.points()).values() if each["payload"]["metadata"]["path"] == path]
    return sorted(points, key=lambda each: each["payload"]["metadata"]["chunk_index"])


@pytest.mark.parametrize("place", [0, 1, -1])
async def test_a_missing_point_is_an_error_and_never_a_gap(world: World, place: int):
    world.repository.commit({"a.txt": LINES.encode()})
    await world.completed()
    points = await points_of(world, "a.txt")
    await world.delete_points([points[place]["id"]])

    with pytest.raises(FileIncomplete) as refused:
        await read(world, "a.txt")
    assert refused.value.next_steps == (Sync("project", full=True), Verify("project"))
    await world.completed(full=True)
    assert (await read(world, "a.txt")).text == LINES


async def test_a_point_that_a_different_program_changed_is_an_error_and_one_that_it_added_is_left_out(world: World):
    world.repository.commit({"a.txt": LINES.encode()})
    await world.completed()
    points = await points_of(world, "a.txt")
    stranger = json.loads(json.dumps(points[1])) | {"id": "11111111-1111-1111-1111-111111111111"}
    stranger["payload"]["page_content"] = "not of this file\n"
    await world.put_points([stranger])
    assert (await read(world, "a.txt")).text == LINES

    for change in ({"start_index": 3}, {"start_line": "1"}, {"chunk_index": "1"}, {"blob_sha": None}):
        changed = json.loads(json.dumps(points[1]))
        changed["payload"]["metadata"] |= change
        await world.put_points([changed])
        with pytest.raises(FileIncomplete):
            await read(world, "a.txt")
    changed = json.loads(json.dumps(points[1]))
    changed["payload"]["page_content"] += "added\n"
    await world.put_points([changed])
    with pytest.raises(FileIncomplete):
        await read(world, "a.txt")
