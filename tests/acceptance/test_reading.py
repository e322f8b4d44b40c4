"""`reposync cat`, beside a daemon and without one."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from tests.acceptance.conftest import Person
from tests.acceptance.test_search_beside_a_daemon import indexed, pod
from tests.fixtures.pods import Pod
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

__all__ = ["indexed", "pod"]

TEXT = "line one\r\n\tred \x1b[31m and \u202e back\r\n\nlast, without an end: \xe9".encode()


def prints(person: Person, *words: str) -> bytes:
    """As the next program of a pipe gets it."""
    command = person.command("cat", *words)
    return subprocess.run(command, env=person.variables(), cwd=person.home, check=True, capture_output=True).stdout


def test_a_pipe_gets_the_exact_text_and_a_terminal_no_control_characters(indexed: Person, repository: GitRepository):
    repository.commit({"odd.txt": TEXT, "sub/lines.txt": b"".join(b"line %d\n" % n for n in range(1, 2_001))})
    indexed.types("sync")

    assert prints(indexed, "app", "odd.txt") == TEXT
    assert prints(indexed, "app", "odd.txt", "--lines", "2-3") == b"".join(TEXT.splitlines(keepends=True)[1:3])
    assert prints(indexed, "app", "sub/lines.txt", "--lines", "1999-") == b"line 1999\nline 2000\n"
    assert prints(indexed, "app", "sub/lines.txt", "--lines", "7") == b"line 7\n"
    document = indexed.asks("cat", "app", "odd.txt")
    assert (document["text"], document["total_lines"], document["path"]) == (TEXT.decode(), 4, "odd.txt")

    reader, writer = pty.openpty()
    command = indexed.command("cat", "app", "odd.txt")
    with subprocess.Popen(command, env=indexed.variables(), cwd=indexed.home, stdout=writer, stdin=writer):
        os.close(writer)
        shown = b""
        try:
            while piece := os.read(reader, 4096):
                shown += piece
        except OSError:  # the terminal is closed
            pass
    os.close(reader)
    assert rb"red \x1b[31m and \u202e back" in shown
    assert b"\x1b" not in shown


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (("app", "session.py"), 3, "Did you mean 'sessions.py'"),
        (("ap", "sessions.py"), 3, "app"),
        (("app", "sessions.py", "--lines", "5-9"), 2, "It has 1 line."),
        (("app", "sessions.py", "--lines", "5-2"), 2, "START is before END"),
        (("app", "sessions.py", "--lines", "a-b"), 2, "neither START-END"),
    ],
)
def test_what_cannot_be_read_has_an_error_with_what_to_do(
    indexed: Person, words: tuple[str, ...], exit_code: int, said: str
):
    assert said in indexed.types("cat", *words, exit_code=exit_code).stderr


def test_the_daemon_answers_and_the_command_prints_the_same_as_without_one(indexed: Person, pod: Pod):
    beside = prints(indexed, "app", "sessions.py"), indexed.asks("cat", "app", "sessions.py", "--lines", "1-1")
    assert "mail.py" in indexed.types("cat", "app", "mial.py", exit_code=3).stderr
    assert beside[0] == b"def remove_expired_sessions(): pass\n"

    assert pod.terminate() == 0
    assert (
        prints(indexed, "app", "sessions.py"),
        indexed.asks("cat", "app", "sessions.py", "--lines", "1-1"),
    ) == beside
