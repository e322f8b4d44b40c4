"""The Tab key, in real shells where this machine has them."""

from __future__ import annotations

import os
import pty
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from reposync.cli.main import COMMANDS, cli

PATIENCE_SECONDS = 30
NAMES = ("payments-api", "payments-web", "Payments-old", "handbook", "100%_sure", "100x-sure")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine where `reposync` is in PATH, with the state of a daemon that knows some repositories."""
    programs, state = tmp_path / "bin", tmp_path / "state"
    programs.mkdir()
    state.mkdir()
    (programs / "reposync").write_text(f"#!{sys.executable}\nfrom reposync.cli.main import main\nmain()\n")
    (programs / "reposync").chmod(0o755)
    with closing(sqlite3.connect(state / "reposync.db")) as database, database:
        database.execute("CREATE TABLE repositories (name TEXT)")
        database.executemany("INSERT INTO repositories VALUES (?)", [(name,) for name in NAMES])
    (tmp_path / "folder-of-code").mkdir()
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "REPOSYNC_STATE_DIR": str(state),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


def offered(environment: dict[str, str], *words: str, shell: str = "bash") -> list[str]:
    """What the program itself answers to a shell that completes the last of `words`."""
    asked = {"_REPOSYNC_COMPLETE": f"{shell}_complete", "COMP_CWORD": str(len(words))}
    asked["COMP_WORDS"] = " ".join(["reposync", *words])
    done = subprocess.run(
        ["reposync"], env=environment | asked, executable=shutil.which("reposync", path=environment["PATH"]),
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def words(lines: list[str]) -> list[str]:
    return [line.removeprefix("plain,") for line in lines if line.startswith("plain,")]


def test_commands_their_own_commands_and_options_are_offered(environment: dict[str, str]) -> None:
    assert words(offered(environment, "")) == list(COMMANDS)
    assert words(offered(environment, "se")) == ["search", "serve"]
    assert words(offered(environment, "repos", "re")) == ["remove", "resume"]
    assert "--allow-mass-delete" in words(offered(environment, "sync", "--"))
    assert words(offered(environment, "completion", "")) == ["bash", "zsh", "fish"]


def test_names_of_repositories_are_offered_wherever_one_is_asked_for(environment: dict[str, str]) -> None:
    payments = ["payments-api", "payments-web"]

    assert words(offered(environment, "repos", "show", "pay")) == payments
    assert words(offered(environment, "search", "words", "--repository", "pay")) == payments
    assert words(offered(environment, "history", "--repository", "hand")) == ["handbook"]
    for command in ("status", "rollback", "pause", "resume"):
        assert words(offered(environment, "index", command, "pay")) == payments
    assert words(offered(environment, "repos", "pause", "100%")) == ["100%_sure"]
    assert words(offered(environment, "repos", "add", "")) == [], "a new name is nobody's to guess"
    assert offered(environment, "sync", "pay") == ["dir,pay", "plain,payments-api", "plain,payments-web"]


@pytest.mark.parametrize("trouble", ["no state", "no database", "locked", "postgresql"])
def test_where_the_names_cannot_be_had_nothing_is_said(environment: dict[str, str], trouble: str) -> None:
    file = Path(environment["REPOSYNC_STATE_DIR"]) / "reposync.db"
    holder = sqlite3.connect(file)
    with closing(holder):
        match trouble:
            case "no state":
                shutil.rmtree(file.parent)
            case "no database":
                file.write_text("this is no database, whatever its name says" * 40)
            case "locked":
                holder.execute("BEGIN EXCLUSIVE")
            case "postgresql":
                environment["DATABASE_URL"] = "postgresql://nobody:nothing@127.0.0.1:1/nowhere"

        assert words(offered(environment, "repos", "show", "pay")) == []
    assert trouble != "no state" or not file.parent.exists(), "asking makes no state"


def test_bash_completes(environment: dict[str, str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash on this machine")
    with terminal([bash, "--norc", "--noprofile", "-i"], environment) as typed:
        typed('eval "$(reposync completion bash)" && echo re""ady\n', "ready")
        typed("reposync hist\t", "history ")
        typed("\x15reposync repos show hand\t", "handbook ")
        typed("\x15reposync sync fol\t", "folder-of-code")
        typed("\x15reposync sync --allow\t", "--allow-mass-delete ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])

    assert done.exit_code == 0
    assert f"_REPOSYNC_COMPLETE={shell}_complete" in done.stdout


@contextmanager
def terminal(command: list[str], environment: dict[str, str]) -> Generator[Typed, None, None]:
    """A shell at a terminal. What is typed is waited for until the terminal shows `expected`."""
    child, screen = pty.fork()
    if child == 0:  # pragma: no cover  (another process)
        os.chdir(environment["HOME"])
        os.execve(command[0], command, environment)
    try:
        yield Typed(screen)
    finally:
        os.close(screen)  # the terminal is gone: the shell ends
        os.waitpid(child, 0)


class Typed:
    def __init__(self, screen: int) -> None:
        self._screen = screen

    def __call__(self, keys: str, expected: str) -> None:
        os.write(self._screen, keys.encode())
        shown, deadline = "", time.monotonic() + PATIENCE_SECONDS
        while expected not in shown:
            ready, _, _ = select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{expected!r} did not appear: {shown!r}"
            shown += os.read(self._screen, 4096).decode(errors="replace")
