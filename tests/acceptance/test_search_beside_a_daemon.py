"""`reposync search`, `grep` and `cat`: alone, and beside a daemon of the same state folder."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
from collections.abc import Generator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from reposync.cli.running_daemon import RunningDaemon, running_daemon
from reposync.config.settings import Settings
from tests.acceptance.conftest import Person
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

QUERY = "/api/v1/search?q=remove+sessions&limit=5"
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


def daemon_of(person: Person, **more: str) -> RunningDaemon | None:
    """The one that commands with the person's settings ask."""
    return running_daemon(Settings.from_environment({**person.variables(), **more}))


def in_daemon(daemon: RunningDaemon | None) -> Any:
    """The hits that it finds."""
    answer = None if daemon is None else daemon.request("GET", QUERY, timeout_seconds=60)
    return None if answer is None else json.loads(answer)["items"]


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
    assert [(hit["path"], hit["start_line"]) for hit in in_daemon(daemon_of(indexed))][:1] == [("sessions.py", 1)]
    assert pod.terminate() == 0
    assert in_daemon(daemon_of(indexed)) is None
    assert answers() == beside


def test_commands_act_by_a_daemon_without_its_token_and_not_by_one_with_other_settings(
    indexed: Person, repository: GitRepository
) -> None:
    with Pod("laptop", indexed.home, {**indexed.environment, "REPOSYNC_API_TOKEN": "read:a-token-of-32-chars"}) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        daemon = daemon_of(indexed)
        assert daemon is not None and in_daemon(daemon)
        assert in_daemon(replace(daemon, key="a guess")) is None
        assert daemon_of(indexed, REPOSYNC_DATABASE_URL=f"sqlite:///{indexed.home}/another.db") is None
        assert (indexed.home / "state" / "serve.json").stat().st_mode & 0o077 == 0, "nobody else may read the key"

        repository.commit({"more.py": b"def more(): pass\n"})
        folder = os.path.relpath(repository.path, indexed.home)
        assert indexed.lists("sync", folder)[0]["worker"].startswith("laptop:"), "a relative path is the command's"
        assert indexed.types("repos", "add", "again", "--path", folder, "--schedule", "never").returncode == 0
        assert indexed.asks("repos", "set", "again", "--schedule", "hourly")["schedule"] == "every hour"
        assert indexed.asks("repos", "set", "again", "--schedule", "")["definition"].keys() == {"name", "path"}
        assert "registry file" in indexed.types("repos", "set", "app", "--branch", "x", exit_code=4).stderr


def test_after_a_kill_nothing_is_sent_to_the_process_that_has_the_port_now(indexed: Person, pod: Pod) -> None:
    port = urlsplit(pod.url or "").port
    pod.kill()
    with socket.create_server(("127.0.0.1", port or 0)) as stranger:
        stranger.setblocking(False)
        assert indexed.lists("search", "remove", "sessions")[0]["path"] == "sessions.py"
        with pytest.raises(BlockingIOError):
            stranger.accept()


def test_the_metrics_of_a_daemon_have_the_points_and_the_size_of_the_index(pod: Pod) -> None:
    assert (pod.metric("reposync_index_points", collection="code") or 0) >= 4
    assert (pod.metric("reposync_index_size_bytes") or 0) > 100_000
