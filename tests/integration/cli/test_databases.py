"""Which commands use the database that a variable names, and which change its schema."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from reposync.store.database import Database
from tests.fixtures.released_schemas import RELEASED, execute, make, rows
from tests.integration.cli.conftest import Types

REGISTRY = "repositories: [{name: app, path: /tmp, schedule: never}]\n"
READ_COMMANDS = (
    "history",
    "repos list",
    "repos show app",
    "runs show 1",
    "index status",
    "locks list",
    "search word",
    "verify",
    "sync",
    "apply --dry-run repositories.yaml",
)
WRITE_COMMANDS = ("apply repositories.yaml", "db upgrade")


@pytest.fixture
def named(tmp_path: Path, types: Types, monkeypatch: pytest.MonkeyPatch, empty_database_url: str) -> str:
    """The address of an empty database, which REPOSYNC_DATABASE_URL names."""
    (tmp_path / "repositories.yaml").write_text(REGISTRY)
    monkeypatch.setenv("REPOSYNC_DATABASE_URL", empty_database_url)
    return empty_database_url


@pytest.fixture
def bare(named: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, which DATABASE_URL names, as in the shell of a different program."""
    monkeypatch.delenv("REPOSYNC_DATABASE_URL")
    monkeypatch.setenv("DATABASE_URL", named)
    return named


async def state(url: str) -> str:
    async with await Database.open(url) as database:
        return (await database.schema()).state


@pytest.mark.parametrize("revision", [None, RELEASED])
def test_no_command_that_reads_changes_a_schema(named: str, types: Types, revision: str | None) -> None:
    if revision is not None:
        asyncio.run(make(named, revision))
    before = asyncio.run(state(named)), asyncio.run(rows(named))

    for words in READ_COMMANDS:
        code, out, err = types(*words.split())
        assert (code, out) == (1, ""), words
        assert "Next: reposync db upgrade" in err, words

    assert (asyncio.run(state(named)), asyncio.run(rows(named))) == before


@pytest.mark.parametrize("words", [*READ_COMMANDS, *WRITE_COMMANDS])
def test_the_database_of_a_different_program_is_refused_by_every_command(named: str, types: Types, words: str) -> None:
    asyncio.run(execute(named, "CREATE TABLE users (id INTEGER PRIMARY KEY)"))

    code, out, err = types(*words.split())

    assert (code, out) == (2, "")
    assert "belongs to a different program: it has the tables users, and none of reposync" in err
    assert set(asyncio.run(rows(named))) == {"users"}
    assert "foreign (tables of a different program: users)" in types("db", "current")[1]


@pytest.mark.parametrize("words", ["history", "repos list", "runs show 1", "locks list", "search word", "sync"])
def test_a_command_leaves_the_database_of_a_different_program_alone_and_says_why_it_finds_nothing(
    bare: str, types: Types, words: str
) -> None:
    asyncio.run(execute(bare, "CREATE TABLE users (id INTEGER PRIMARY KEY)"))

    _, _, err = types(*words.split())

    assert set(asyncio.run(rows(bare))) == {"users"}
    assert "different program" not in err
    assert "set REPOSYNC_DATABASE_URL for all commands" in err


def test_the_address_of_a_different_program_may_have_any_form(types: Types, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "mysql://there")

    assert types("history")[0] == 0
    code, _, err = types("db", "current")
    assert code == 2 and "DATABASE_URL: The address of the database must start with" in err


@pytest.mark.parametrize("words", WRITE_COMMANDS)
def test_apply_and_db_use_a_variable_without_a_prefix(bare: str, types: Types, words: str) -> None:
    assert types(*words.split())[0] == 0

    assert asyncio.run(state(bare)) == "current"


@pytest.mark.parametrize("words", WRITE_COMMANDS)
def test_a_command_that_is_for_it_makes_the_schema(named: str, types: Types, words: str) -> None:
    assert types(*words.split())[0] == 0

    assert asyncio.run(state(named)) == "current"
    assert types("history")[0] == 0


def test_the_database_of_the_state_folder_is_made_by_any_command(types: Types) -> None:
    assert types("history")[0] == 0


LEFT = "'app' has left the registry file"


def test_a_repository_that_has_left_its_file_is_neither_resumed_nor_paused_nor_synced(
    types: Types, tmp_path: Path
) -> None:
    file = tmp_path / "repositories.yaml"
    file.write_text(REGISTRY.replace("never", "every minute"))
    types("apply")
    file.write_text("repositories: []\n")
    types("apply")

    for words in ("repos resume app", "repos pause app", "sync app"):
        code, out, err = types(*words.split())
        assert (code, out) == (4, ""), words
        assert LEFT in err and "Add it there again to sync it." in err

    assert json.loads(types("repos", "list", "--json")[1])["items"][0]["state"] == "inactive"
    file.write_text(REGISTRY)
    types("apply")
    assert types("repos", "pause", "app")[0] == types("repos", "resume", "app")[0] == 0
