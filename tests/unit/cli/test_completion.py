"""What the Tab key offers."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from reposync.cli.commands import COMPLETION_VARIABLE
from reposync.cli.main import COMMANDS, cli

NAMES = ("payments-api", "payments-web", "Payments-old", "handbook", "100%_sure", "100x-sure")


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a daemon with some repositories."""
    file = tmp_path / "state" / "reposync.db"
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE repositories (name TEXT)")
        connection.executemany("INSERT INTO repositories VALUES (?)", [(name,) for name in NAMES])
    monkeypatch.setenv("REPOSYNC_STATE_DIR", str(file.parent))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    return file


def offered(*words: str) -> list[str]:
    """What is offered to complete the last of `words`."""
    bash = get_completion_class("bash")
    assert bash is not None
    found = bash(cli, {}, "reposync", COMPLETION_VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [each.value if each.type == "plain" else f"{each.type}:{each.value}" for each in found]


def test_commands_and_options_are_offered() -> None:
    assert offered("") == list(COMMANDS)
    assert offered("se") == ["search", "serve"]
    assert offered("repos", "re") == ["remove", "resume"]
    assert "--allow-mass-delete" in offered("sync", "--")
    assert offered("completion", "") == ["bash", "zsh", "fish"]


def test_names_of_repositories_are_offered() -> None:
    payments = ["payments-api", "payments-web"]

    assert offered("repos", "show", "pay") == payments
    assert offered("search", "words", "--repository", "pay") == payments
    assert offered("history", "--repository", "hand") == ["handbook"]
    for command in ("status", "rollback", "pause", "resume"):
        assert offered("index", command, "pay") == payments
    assert offered("repos", "pause", "100%") == ["100%_sure"]
    assert offered("repos", "add", "") == [], "a new name cannot be guessed"
    assert offered("sync", "pay") == ["dir:pay", *payments]


@pytest.mark.parametrize("trouble", ["no state", "no database", "locked", "postgresql"])
def test_no_names_are_offered_if_they_cannot_be_read(
    database: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(database)) as holder:
        match trouble:
            case "no state":
                shutil.rmtree(database.parent)
            case "no database":
                database.write_text("this is no database, whatever its name says" * 40)
            case "locked":
                holder.execute("BEGIN EXCLUSIVE")
            case "postgresql":
                monkeypatch.setenv("DATABASE_URL", "postgresql://nobody:nothing@127.0.0.1:1/nowhere")

        assert offered("repos", "show", "pay") == []
    assert trouble != "no state" or not database.parent.exists(), "completion creates no state"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])

    assert done.exit_code == 0
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in done.stdout
