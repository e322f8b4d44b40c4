"""`reposync search` beside a daemon of the same state folder, whose libraries and model are loaded already."""

from __future__ import annotations

import socket
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


@pytest.fixture
def indexed(person: Person, repository: GitRepository) -> Person:
    repository.commit({"sessions.py": b"def remove_expired_sessions(): pass\n", "mail.py": b"def send(): pass\n"})
    person.environment |= {
        "REPOSYNC_STATE_DIR": str(person.home / "state"),
        "REPOSYNC_CONFIG": str(person.home / "repositories.yaml"),
    }
    person.applies(f"embedding: {{provider: none}}\nrepositories: [{{name: app, path: '{repository.path}'}}]\n")
    person.types("sync")
    return person


@pytest.fixture
def pod(indexed: Person) -> Generator[Pod, None, None]:
    pod = Pod("laptop", indexed.home, indexed.environment)
    try:
        pod.start()
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        yield pod
    finally:
        pod.__exit__(None, None, None)


def in_daemon(person: Person, **more: str) -> Any:
    """The hits that a daemon with the person's settings finds."""
    settings = Settings.from_environment({**person.variables(), **more})
    return (ask_daemon(settings, "/api/v1/search", QUERY) or {}).get("items")


def test_the_daemon_answers_and_the_command_prints_the_same_as_without_one(indexed: Person, pod: Pod) -> None:
    beside = indexed.types("search", "remove", "sessions").stdout, indexed.asks("search", "remove", "sessions")
    found = in_daemon(indexed)
    assert found is not None
    assert [(hit["path"], hit["start_line"]) for hit in found] == [("sessions.py", 1)]

    assert pod.terminate() == 0
    assert in_daemon(indexed) is None
    alone = indexed.types("search", "remove", "sessions").stdout, indexed.asks("search", "remove", "sessions")
    assert alone == beside


def test_a_daemon_with_other_settings_or_a_token_that_the_command_lacks_is_left_aside(
    indexed: Person, repository: GitRepository
) -> None:
    indexed.environment["REPOSYNC_API_TOKEN"] = token = "a-token-of-32-characters-0123456"
    with Pod("laptop", indexed.home, indexed.environment) as pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        assert in_daemon(indexed)
        assert in_daemon(indexed, DATABASE_URL=f"sqlite:///{indexed.home}/another.db") is None
        assert in_daemon(indexed, REPOSYNC_API_TOKEN=token[::-1]) is None
        del indexed.environment["REPOSYNC_API_TOKEN"]
        assert in_daemon(indexed) is None
        assert [hit["path"] for hit in indexed.asks("search", "remove", "sessions")] == ["sessions.py"]


def test_after_a_kill_nothing_is_sent_to_the_process_that_has_the_port_now(indexed: Person, pod: Pod) -> None:
    port = urlsplit(pod.url or "").port
    pod.kill()
    with socket.create_server(("127.0.0.1", port or 0)) as stranger:
        stranger.setblocking(False)
        assert [hit["path"] for hit in indexed.asks("search", "remove", "sessions")] == ["sessions.py"]
        with pytest.raises(BlockingIOError):
            stranger.accept()
