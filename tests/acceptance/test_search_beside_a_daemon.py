"""`reposync search`, `grep` and `cat`: alone, and beside a daemon of the same state folder."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

import pytest

from reposync.cli.running_daemon import ask_daemon
from reposync.config.settings import Settings
from tests.acceptance.conftest import Person
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

QUERY = {"q": "remove sessions", "limit": 5}
ODD = "line one\r\n\tred \x1b[31m and \u202e back\r\n\nlast, without an end: \xe9".encode()


@pytest.fixture
def indexed(person: Person, repository: GitRepository) -> Person:
    files = {"sessions.py": b"def remove_expired_sessions(): pass\n", "mail.py": b"x = remove(1)\nremove\n"}
    repository.commit({**files, "odd name.txt": ODD, "lines.txt": b"".join(b"line %d\n" % n for n in range(1, 2_001))})
    person.environment |= {
        "REPOSYNC_STATE_DIR": str(person.home / "state"),
        "REPOSYNC_CONFIG": str(person.home / "repositories.yaml"),
    }
    person.applies(f"embedding: {{provider: none}}\nrepositories: [{{name: app, path: '{repository.path}'}}]\n")
    person.types("sync")
    return person


@pytest.fixture
def pod(indexed: Person) -> Generator[Pod, None, None]:
    with Pod("laptop", indexed.home, indexed.environment) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        yield pod


def in_daemon(person: Person, **more: str) -> Any:
    """The hits that a daemon with the person's settings finds."""
    settings = Settings.from_environment({**person.variables(), **more})
    return (ask_daemon(settings, "/api/v1/search", QUERY) or {}).get("items")


def prints(person: Person, *words: str) -> bytes:
    """As the next program of a pipe gets it."""
    command = person.command(*words)
    return subprocess.run(command, env=person.variables(), cwd=person.home, check=True, capture_output=True).stdout


def test_lines_and_texts_are_printed_as_they_are_and_terminals_get_no_control_characters(indexed: Person) -> None:
    assert indexed.types("grep", "red .* back").stdout == "app:odd name.txt:2: \tred \\x1b[31m and \\u202e back\n"
    assert indexed.types("grep", "-F", "remove(", "--path", "*.py").stdout == "app:mail.py:1: x = remove(1)\n"
    assert indexed.types("grep", "-i", "REMOVE$", "--repository", "app").stdout == "app:mail.py:2: remove\n"
    nothing = indexed.types("grep", "no such text")
    assert (nothing.stdout, nothing.stderr) == ("", "Nothing found.\n")
    assert "raise the limit" in indexed.types("grep", "remove", "--limit", "1").stderr

    assert prints(indexed, "cat", "app", "odd name.txt") == ODD
    assert prints(indexed, "cat", "app", "lines.txt", "--lines", "1999-") == b"line 1999\nline 2000\n"
    assert prints(indexed, "cat", "app", "lines.txt", "--lines", "7") == b"line 7\n"
    reader, writer = pty.openpty()
    command = indexed.command("cat", "app", "odd name.txt")
    with subprocess.Popen(command, env=indexed.variables(), cwd=indexed.home, stdout=writer, stdin=writer):
        os.close(writer)
        shown = b""
        try:
            while piece := os.read(reader, 4096):
                shown += piece
        except OSError:  # the terminal is closed
            pass
    os.close(reader)
    assert rb"red \x1b[31m and \u202e back" in shown and b"\x1b" not in shown


def test_what_is_not_possible_has_an_error_and_a_daemon_changes_nothing(indexed: Person, pod: Pod) -> None:
    words = [
        ("search", "remove", "sessions"),
        ("grep", "-i", "REMOVE", "--repository", "app", "--language", "python"),
        ("cat", "app", "sessions.py", "--lines", "1-1"),
    ]
    wrong = [
        (("cat", "app", "session.py"), 3, "Did you mean 'sessions.py'"),
        (("cat", "app", "sessions.py", "--lines", "5-9"), 2, "It has 1 line."),
        (("cat", "app", "sessions.py", "--lines", "a-b"), 2, "neither START-END"),
        (("grep", "foo("), 2, "missing ): foo(, at character 1"),
        (("grep", "foo", "--repository", "ap"), 3, "ap"),
    ]

    def answers() -> list[object]:
        for typed, exit_code, said in wrong:
            assert said in indexed.types(*typed, exit_code=exit_code).stderr, typed
        return [(indexed.types(*each).stdout, indexed.asks(*each)) for each in words]

    beside = answers()
    assert [(hit["path"], hit["start_line"]) for hit in in_daemon(indexed)][:1] == [("sessions.py", 1)]
    assert pod.terminate() == 0
    assert in_daemon(indexed) is None
    assert answers() == beside


def test_a_daemon_with_other_settings_or_a_token_that_the_command_lacks_is_left_aside(indexed: Person) -> None:
    indexed.environment["REPOSYNC_API_TOKEN"] = token = "a-token-of-32-characters-0123456"
    with Pod("laptop", indexed.home, indexed.environment) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        assert in_daemon(indexed)
        assert in_daemon(indexed, REPOSYNC_DATABASE_URL=f"sqlite:///{indexed.home}/another.db") is None
        assert in_daemon(indexed, REPOSYNC_API_TOKEN=token[::-1]) is None
        del indexed.environment["REPOSYNC_API_TOKEN"]
        assert in_daemon(indexed) is None
        assert indexed.asks("search", "remove", "sessions")[0]["path"] == "sessions.py"


def test_commands_beside_a_daemon_use_its_database_if_a_variable_without_a_prefix_names_it(
    person: Person, repository: GitRepository
) -> None:
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    person.environment["DATABASE_URL"] = f"sqlite:///{person.home}/shared.db"
    person.configures(f"embedding: {{provider: none}}\nrepositories: [{{name: app, path: '{repository.path}'}}]\n")
    with Pod("laptop", person.home, person.environment) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        assert "app" in person.types("repos", "list").stdout

    alone = person.types("repos", "list")
    assert "app" not in alone.stdout and "set REPOSYNC_DATABASE_URL" in alone.stderr


def test_after_a_kill_nothing_is_sent_to_the_process_that_has_the_port_now(indexed: Person, pod: Pod) -> None:
    port = urlsplit(pod.url or "").port
    pod.kill()
    with socket.create_server(("127.0.0.1", port or 0)) as stranger:
        stranger.setblocking(False)
        assert indexed.asks("search", "remove", "sessions")[0]["path"] == "sessions.py"
        with pytest.raises(BlockingIOError):
            stranger.accept()
