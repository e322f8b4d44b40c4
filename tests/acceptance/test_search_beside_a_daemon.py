"""`reposync search`, `grep` and `cat`: alone, and beside a daemon of the same state folder."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import subprocess
import termios
from collections.abc import Generator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import click
import pytest

from reposync.cli.running_daemon import RunningDaemon, running_daemon
from reposync.config.settings import Settings
from tests.acceptance.conftest import Person
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository

LINK = re.compile(r"\x1b\]8;;.*?\x1b\\")
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


def on_a_terminal(person: Person, *words: str, **environment: str) -> str:
    """What it shows there, in 70 columns."""
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (24, 70))
    command, variables = person.command(*words), person.variables() | {"TERM": "xterm"} | environment
    variables.pop("COLUMNS", None)
    with subprocess.Popen(command, env=variables, cwd=person.home, stdout=writer, stdin=writer):
        os.close(writer)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is closed
            while piece := os.read(reader, 4096):
                shown += piece
    os.close(reader)
    return shown.decode().replace("\r\n", "\n")


def test_further_phrasings_are_searched_together_also_beside_a_daemon(indexed: Person) -> None:
    words = ("search", "remove_expired_sessions", "--or", "line 7 lang:python", "--or", "mail", "--json")
    alone = json.loads(prints(indexed, *words))
    with Pod("laptop", indexed.home, indexed.environment) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        assert json.loads(prints(indexed, *words)) == alone
    assert {each["path"]: each["phrasings"] for each in alone["items"]} == {"sessions.py": [1], "mail.py": [3]}
    shown = prints(indexed, "search", "--or", "remove_expired_sessions", "--or", "mail").decode()
    assert "sessions.py:1  app" in shown and "phrasing 2" in shown


def test_a_traceback_is_read_from_the_standard_input_alone_and_beside_a_daemon(indexed: Person) -> None:
    text = b'Traceback:\n  File "/srv/app/mail.py", line 2, in f\nKeyError: x\n' + b"filler\n" * 1_000
    command = indexed.command("search", "-", "--limit", "1")

    def finds() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, input=text, env=indexed.variables(), cwd=indexed.home, capture_output=True)

    alone = finds()
    assert alone.stdout.startswith(b"mail.py:") and b"Used 1 of 1 frame, " in alone.stderr
    with Pod("laptop", indexed.home, indexed.environment) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        assert finds().stdout == alone.stdout


def test_lines_and_texts_are_printed_as_they_are_and_terminals_get_no_control_characters(indexed: Person) -> None:
    assert indexed.types("grep", "red .* back").stdout == "app:odd name.txt:2: \tred \\x1b[31m and \\u202e back\n"
    assert indexed.types("grep", "-F", "remove(", "--path", "*.py").stdout == "app:mail.py:1: x = remove(1)\n"
    assert indexed.types("grep", "-i", "REMOVE$", "--repository", "app").stdout == "app:mail.py:2: remove\n"
    calls = indexed.types("grep", "--kind", "call", "remove", "--repository", "app").stdout
    assert calls == "app:mail.py:1: name only x = remove(1)\n"
    assert indexed.types("search", "usages:remove repo:app").stdout == calls
    nothing = indexed.types("grep", "no such text")
    assert (nothing.stdout, nothing.stderr) == ("", "Nothing found.\n")
    assert "raise the limit" in indexed.types("grep", "remove", "--limit", "1").stderr

    assert prints(indexed, "cat", "app", "odd name.txt") == ODD
    assert prints(indexed, "cat", "app", "lines.txt", "--lines", "1999-") == b"line 1999\nline 2000\n"
    assert prints(indexed, "cat", "app", "lines.txt", "--lines", "7") == b"line 7\n"
    shown = on_a_terminal(indexed, "cat", "app", "odd name.txt")
    assert r"red \x1b[31m and \u202e back" in shown and "\x1b" not in shown


def test_a_terminal_shows_matches_in_color_with_places_that_open_and_lines_that_fit(
    indexed: Person, repository: GitRepository
) -> None:
    long = b"def remove_expired_sessions(): return %s\n" % b"+".join(b"old" for _ in range(60))
    repository.commit({"sessions.py": b"import os\n\n" + long + b"\nx = 1\n"})
    clone = repository.clone(indexed.home / "clone")
    indexed.types("sync")
    indexed.types("sync", "clone")
    word = "\x1b[31m\x1b[1mremove_expired_sessions\x1b[0m"

    found = on_a_terminal(indexed, "grep", r"remove_\w+", "--repository", "clone", "--context", "1").splitlines()
    assert [click.unstyle(LINK.sub("", line)) for line in found] == [
        "clone",
        "sessions.py-2- ",
        "sessions.py:3: def remove_expired_sessions(): return old+old+old+old+…",
        "sessions.py-4- ",
    ]
    assert word in found[2]
    assert f"\x1b]8;;{(clone / 'sessions.py').as_uri()}\x1b\\" in found[2]

    found = on_a_terminal(indexed, "search", "remove expired sessions", "--repository", "clone").splitlines()
    assert f"\x1b]8;;{(clone / 'sessions.py').as_uri()}\x1b\\" in found[0] and "sessions.py:3" in found[0]
    (line,) = [line for line in found if word in line]
    assert click.unstyle(line).startswith("  3 > def remove_expired_sessions(): return old+") and line.endswith("…")
    assert max(len(click.unstyle(LINK.sub("", line))) for line in found) <= 70

    assert "\x1b" not in on_a_terminal(indexed, "search", "remove expired sessions", TERM="dumb")
    assert "\x1b" not in on_a_terminal(indexed, "grep", "remove", "--color", "never")
    piped = indexed.types("grep", "-F", "remove_", "--repository", "clone", "--color=always").stdout
    assert click.unstyle(piped) == f"clone:sessions.py:3: {long.decode()}" and "\x1b[31m\x1b[1mremove_\x1b[0m" in piped


def test_what_is_not_possible_has_an_error_and_a_daemon_changes_nothing(indexed: Person, pod: Pod) -> None:
    words = [
        ("search", "remove", "sessions"),
        ("grep", "-i", "REMOVE", "--repository", "app", "--language", "python"),
        ("grep", "--kind", "call", "remove"),
        ("search", "usages:remove"),
        ("cat", "app", "sessions.py", "--lines", "1-1"),
    ]
    wrong = [
        (("cat", "app", "session.py"), 3, "Did you mean 'sessions.py'"),
        (("cat", "app", "sessions.py", "--lines", "5-9"), 2, "It has 1 line."),
        (("cat", "app", "sessions.py", "--lines", "a-b"), 2, "neither START-END"),
        (("grep", "foo("), 2, "missing ): foo(, at character 1"),
        (("grep", "foo", "--repository", "ap"), 3, "ap"),
        (("grep", "-i", "remove", "--kind", "call"), 2, "by their name as it is written"),
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
