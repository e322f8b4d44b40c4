"""Where a name is called, in all repositories that a reader may see: which lines, in which order, with which mark."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from reposync.app.application import Application
from reposync.errors import UsageError
from reposync.search.documents import MatchingFiles
from reposync.search.usages import usages
from reposync.visible import Visible
from tests.fixtures.repositories import GitRepository
from tests.fixtures.world import World

PADDING = "".join(f"value_{number} = {number}\n" for number in range(80))
LIBRARY = {
    "billing/parsing.py": "def parse_config(path):\n    return read(path)\n\n\ndefault = parse_config('default')\n",
    "billing/__init__.py": "from .parsing import parse_config\n",
    "billing/session.py": f"{PADDING}class Session:\n    def remove_expired(self):\n        pass\n",
}
SERVICE = {
    "app.py": (
        "import billing\nfrom billing.parsing import parse_config\n\n# parse_config('in a comment')\n"
        "text = \"parse_config('in a string')\"\nmain = parse_config('app')\n"
        "other = billing.parse_config(\n    'other'\n)\n"
    ),
    "late.py": f"from billing.parsing import parse_config\n{PADDING}last = parse_config('late')\nx = parse_config\n",
    "named.py": "def run(parser):\n    return parser.parse_config('named')\n",
    "store.py": "from billing.session import Session\n\n\ndef clean(session: Session):\n    session.remove_expired()\n",
    "main.go": 'package main\n\nimport "billing/parsing"\n\nfunc main() {\n\tparse_config("go")\n}\n',
}
HIDDEN = {"secret.py": "from billing.parsing import parse_config\nhidden = parse_config('hidden')\n"}
NAMES = {"billing": LIBRARY, "service": SERVICE, "hidden": HIDDEN}


@pytest.fixture
async def world(closed_world: World) -> AsyncGenerator[World, None]:
    extra = ""
    for name, files in NAMES.items():
        repository = GitRepository.create(closed_world.folder / f"{name}.git")
        repository.commit({path: text.encode() for path, text in files.items()})
        extra += f"  - {{name: team/{name}, path: '{repository.path}'}}\n"
    closed_world.configure(extra=extra, size=600, overlap=200)
    async with closed_world.opened() as world:
        for name in NAMES:
            await world.completed(f"team/{name}")
        yield world


async def visible(world: World, *names: str) -> Application:
    rows = await world.app.repositories.list(names or ("team/billing", "team/service"))
    return world.app.limited(Visible(frozenset(row.id for row in rows)))


def sites(found: MatchingFiles) -> list[str]:
    return [f"{file.path}:{each.line} {each.mark}" for file in found.items for each in file.matches]


async def test_calls_are_found_with_their_marks_repositories_with_imports_first(world: World) -> None:
    found = await usages(await visible(world), "parse_config")

    assert [file.repository for file in found.items] == ["team/service"] * 4 + ["team/billing"]
    assert sites(found) == [
        "app.py:6 imported",
        "app.py:7 imported",
        "late.py:82 imported",
        "main.go:6 name only",
        "named.py:2 name only",
        "billing/parsing.py:5 same file",
    ]
    assert found.is_complete, found.stopped
    line = found.items[0].matches[0]
    assert (line.end_line, line.column, line.text) == (6, 8, "main = parse_config('app')")


async def test_a_method_is_imported_with_the_module_of_its_class(world: World) -> None:
    found = await usages(await visible(world), "Session::remove_expired()")

    assert sites(found) == ["store.py:5 imported"]


async def test_calls_in_hidden_repositories_are_neither_shown_nor_counted(world: World) -> None:
    shown = await visible(world)

    everything, part = await usages(world.app, "parse_config"), await usages(shown, "parse_config", limit=1)

    assert "secret.py:2 imported" in sites(everything)
    assert part.stopped is not None and part.stopped.startswith("1 of 6 calls")


async def test_a_definition_in_a_hidden_repository_marks_nothing(world: World) -> None:
    found = await usages(await visible(world, "team/service"), "remove_expired")

    assert sites(found) == ["store.py:5 name only"]


async def test_more_calls_than_the_limit_are_told_and_imported_ones_come_first(world: World) -> None:
    found = await usages(await visible(world), "parse_config", limit=4)

    assert sites(found) == [
        "app.py:6 imported",
        "app.py:7 imported",
        "late.py:82 imported",
        "billing/parsing.py:5 same file",
    ]
    assert found.stopped == "4 of 6 calls, imported ones first; narrow it by path or repository."
    assert not found.is_complete


async def test_a_search_is_limited_by_repository_path_and_language(world: World) -> None:
    app = await visible(world)

    assert sites(await usages(app, "parse_config", repositories=["team/billing"])) == ["billing/parsing.py:5 same file"]
    assert sites(await usages(app, "parse_config", language="go")) == ["main.go:6 name only"]
    in_file = await usages(app, "parse_config", path_glob="/late.py")
    assert sites(in_file) == ["late.py:82 imported"], "a limit is none of the definitions"
    assert sites(await usages(app, "parse_confi")) == []


async def test_time_that_is_up_is_told(world: World) -> None:
    found = await usages(await visible(world), "parse_config", max_seconds=0)

    assert found.stopped is not None and "narrow it by path or repository" in found.stopped


async def test_what_is_no_name_is_an_error(world: World) -> None:
    for text in ("", "()", "parse config", "a(b"):
        with pytest.raises(UsageError, match="not the name of what is called"):
            await usages(world.app, text)
