"""`reposync status`: one screen says whether everything is current, and what to type next."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from reposync.operations.runs import Run
from reposync.operations.status import NameGroup, RunGroup, Status
from tests.acceptance.conftest import Person
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.pods import Pod, until
from tests.fixtures.repositories import GitRepository
from tests.fixtures.terminal import Terminal

REGISTRY = """
embedding: {{provider: none}}
defaults: {{schedule: never}}
repositories:
  - {{name: payments, path: {path}}}
"""


def said(person: Person, *options: str, exit_code: int = 0) -> list[str]:
    return [line.rstrip() for line in person.types("status", *options, exit_code=exit_code).stdout.splitlines()]


def test_nothing_registered_leads_to_the_first_command(person: Person) -> None:
    assert said(person) == ["Nothing is registered yet.", "                Next: reposync init, or reposync sync ."]
    assert said(person, "--check", exit_code=1)[0] == "Nothing is registered yet."


def test_a_repository_is_current_once_it_is_synced(person: Person, repository: GitRepository) -> None:
    repository.commit({"README.md": b"# Payments\n"})
    person.applies(REGISTRY.format(path=repository.path))

    assert said(person) == [
        "Not current: 1 of 1.",
        "1 repository: 1 active. No worker.",
        "never synced 1  payments",
        "                Next: reposync serve",
    ]
    person.types("status", "--check", exit_code=1)

    person.types("sync")

    assert said(person, "--check") == ["Everything is current.", "1 repository: 1 active. No worker."]
    found = person.asks("status")
    assert (found["is_current"], found["current"], found["failed"]) == (True, 1, {"count": 0, "items": []})


def test_each_kind_of_trouble_has_its_next_command(person: Person, repository: GitRepository) -> None:
    repository.many(40)
    person.applies(
        REGISTRY.format(path=repository.path) + "  - {name: lost, path: gone}\n  - {name: idle, path: gone}\n"
    )
    person.types("sync", "payments")
    repository.commit({"README.md": b"# Payments\n"}, replace=True)
    person.types("sync", "payments", exit_code=1)
    person.types("sync", "lost", exit_code=1)
    person.types("repos", "pause", "idle")

    lines = said(person)

    found = person.asks("status")
    blocked, failed = found["blocked"]["items"][0]["id"], found["failed"]["items"][0]["id"]
    assert lines[:2] == ["Not current: 2 of 2.", "3 repositories: 2 active, 1 paused. No worker."]
    assert lines[2].startswith("blocked 1       payments: ")
    assert lines[3] == f"                Next: reposync runs show {blocked[:8]}"
    assert lines[4].startswith("failed 1        lost: ")
    assert lines[5] == f"                Next: reposync runs show {failed[:8]}"
    person.types("status", "--check", exit_code=1)


def test_beside_a_daemon_a_running_sync_shows_how_far_it_is(
    person: Person, repository: GitRepository, embeddings: EmbeddingServer, pod: Pod
) -> None:
    repository.commit({"README.md": b"# Payments\n"})
    text = REGISTRY.format(path=repository.path).replace("embedding: {provider: none}", embeddings.registry)
    person.configures(text)
    with embeddings.holding(), pod:
        until(lambda: pod.gets("/readyz").status_code == 200, details=pod.log_tail)
        with person.starts("sync", "payments") as sync:
            embeddings.wait_for_waiting(1)

            lines = said(person)
            remote = said(person, "--server", pod.url)

            sync.terminate()
            sync.communicate()
    assert lines[1] == "1 repository: 1 active. 1 worker."
    assert [line for line in lines if line.startswith("running 1")], lines
    assert remote[:2] == lines[:2]


def test_a_thousand_repositories_in_every_kind_of_trouble_are_one_screen(tmp_path: Path) -> None:
    script = f"import {__name__} as here; here.show_everything()"
    folder = Path(__file__).resolve().parents[2]
    with Terminal([sys.executable, "-c", script], env={"PATH": ""}, folder=folder) as terminal:
        assert terminal.ends() == 0, terminal.shown

    lines = terminal.shown.replace("\r", "").rstrip("\n").split("\n")
    assert len(lines) < 24, terminal.shown
    plain = [click.unstyle(line) for line in lines]
    assert max(map(len, plain)) <= 80, terminal.shown
    assert plain[2].startswith("blocked 1,000   a-repository-with-a-long-name")
    assert sum("Next: reposync" in line for line in plain) == 8


def show_everything() -> None:
    from reposync.cli.output import say
    from reposync.cli.status import screen, status

    with status.make_context("status", []):
        say(*screen(everything()))


def everything() -> Status:
    names = [f"a-repository-with-a-long-name/{number:04}" for number in range(1_000)]

    def runs(status: str) -> RunGroup:
        return RunGroup(count=1_000, items=[made(name, status) for name in names[:20]])

    group = NameGroup(count=1_000, items=names[:20])
    counts = {"registered": 1_200, "active": 1_000, "paused": 150, "inactive": 50, "current": 0, "workers": 0}
    kinds = {status: runs(status) for status in ("blocked", "failed", "running", "waiting")}
    others = dict.fromkeys(("incomplete", "new", "behind", "late"), group)
    return Status.model_validate({"is_current": False, "now": datetime.now(UTC), **counts, **kinds, **others})


def made(repository: str, status: str) -> Run:
    values = dict.fromkeys(Run.model_fields, None) | {"id": "c9eb9463-e1cb-48d1-a652-aab4e8ffc996"}
    counts = [name for name in Run.model_fields if name.startswith(("files_", "chunks_"))]
    values |= {"repository": repository, "status": "queued" if status == "waiting" else status, "trigger": "schedule"}
    values |= {
        "removal": False,
        "queued_at": datetime.now(UTC),
        "attempt": 1,
        "asked_by": [],
        **dict.fromkeys(counts, 0),
    }
    return Run.model_validate(values | {"error_message": "The source did not answer for a long time. " * 5})
