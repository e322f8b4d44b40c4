"""One catalogue: what a repository is does not depend on the folder, or on the pod, that looks."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from reposync.config.database_url import sqlite_url
from reposync.store.database import Database
from tests.acceptance.conftest import Person
from tests.fixtures.applied import replace_document
from tests.fixtures.pods import ExecutionLog, Pod, until
from tests.fixtures.repositories import GitRepository

pytestmark = pytest.mark.full

REGISTRY = "embedding: {{provider: none}}\nrepositories:\n{entries}"


def registry(*entries: str) -> str:
    return REGISTRY.format(entries="".join(f"  - {{{entry}}}\n" for entry in entries))


@dataclass
class Folders:
    """Two folders with a registry file each, and the state that both work on."""

    person: Person
    other: Person
    state: Path
    alpha: GitRepository
    beta: GitRepository

    def pod(self, person: Person, name: str) -> Pod:
        return Pod(name, person.home, {"REPOSYNC_STATE_DIR": str(self.state), "HOME": str(person.home)})


@pytest.fixture
def folders(person: Person, tmp_path: Path) -> Folders:
    state = person.home / "state"
    other = Person(tmp_path / "other", {"REPOSYNC_STATE_DIR": str(state)})
    other.home.mkdir()
    person.environment["REPOSYNC_STATE_DIR"] = str(state)
    repositories = []
    for name in ("alpha", "beta"):
        repositories.append(GitRepository.create(tmp_path / f"{name}.git"))
        repositories[-1].commit({f"{name}.py": f"def {name}(): pass\n".encode()})
    alpha, beta = repositories
    person.configures(registry(f"name: alpha, path: '{alpha.path}', schedule: every second"))
    other.configures(registry(f"name: alpha, path: '{beta.path}'"))
    return Folders(person, other, state, alpha, beta)


def test_a_command_in_a_different_folder_syncs_what_the_daemon_serves(folders: Folders) -> None:
    person, other = folders.person, folders.other
    log = ExecutionLog(sqlite_url(folders.state / "reposync.db"))
    with folders.pod(person, "daemon") as pod:
        until(lambda: log.ended("alpha"), details=pod.log_tail)
        for _ in range(3):
            (run,) = other.lists("sync", "alpha")
            assert (run["status"], run["commit_after"]) == ("completed", folders.alpha.head())
        before = len(log.ended("alpha"))
        until(lambda: len(log.ended("alpha")) > before, details=pod.log_tail)
        shown = other.asks("repos", "show", "alpha")
        served = httpx.get(f"{pod.url}/api/v1/repositories/alpha").json()
        assert pod.terminate() == 0

    assert (shown["schedule"], shown["location"]) == ("every second", str(folders.alpha.path))
    assert (served["cron_expression"], served["location"]) == (shown["cron_expression"], shown["location"])
    assert {run.commit_after for run in log.ended("alpha")} == {folders.alpha.head()}
    assert [hit["path"] for hit in other.lists("search", "alpha")] == ["alpha.py"]
    assert other.lists("search", "beta") == []


def test_two_daemons_with_different_documents_do_not_fight_and_a_person_decides(folders: Folders) -> None:
    person, other = folders.person, folders.other

    def place() -> list[str]:
        """Empty while the daemon that is asked still waits for its database."""
        answer = person.types("repos", "list", "--json", exit_code=None)
        return [row["location"] for row in json.loads(answer.stdout)["items"]] if answer.returncode == 0 else []

    with folders.pod(person, "first") as first:
        until(lambda: place() == [str(folders.alpha.path)], details=first.log_tail)
    with folders.pod(other, "second") as second:
        until(lambda: place() == [str(folders.beta.path)], details=second.log_tail)
        with folders.pod(person, "restarted") as restarted:
            assert "a newer one was applied by second" in _conflict(restarted)
            assert place() == [str(folders.beta.path)]
            plan = person.asks("apply", "--dry-run")
            assert (plan["standing"], plan["applied"]) == ("superseded", False)
            assert person.asks("apply")["applied"] is True
            assert place() == [str(folders.alpha.path)]
            assert restarted.terminate() == 0
        assert place() == [str(folders.alpha.path)]
        assert second.terminate() == 0


def test_an_unapplied_file_is_named_in_errors_about_its_repositories(folders: Folders) -> None:
    for words, exit_code in ((("sync", "alpha"), 3), (("sync",), 2)):
        reported = folders.person.types(*words, exit_code=exit_code)
        assert f"{folders.person.home / 'repositories.yaml'} was not applied yet" in reported.stderr


def test_a_plan_shows_what_an_apply_would_change_and_writes_nothing(folders: Folders) -> None:
    person = folders.person
    person.types("apply")
    person.configures(registry(f"name: alpha, path: '{folders.alpha.path}', schedule: '@daily', exclude: ['*.lock']"))

    shown, plan = person.types("apply", "--dry-run").stdout, person.asks("apply", "--dry-run")

    for words in ("~ repository alpha", "schedule: @every 1s -> 0 0 * * *", "exclude: (none) -> *.lock"):
        assert words in shown
    keys = {"exclude": [[], ["*.lock"]], "schedule": ["@every 1s", "0 0 * * *"]}
    assert plan["changes"] == [{"kind": "changed", "what": "repository alpha", "keys": keys}]
    assert (plan["applied"], person.asks("repos", "show", "alpha")["schedule"]) == (False, "every second")
    assert person.asks("apply")["applied"] is True
    assert person.asks("repos", "show", "alpha")["schedule"] == "at 00:00 every day"


def _conflict(pod: Pod) -> str:
    """What the pod says of its registry file on /readyz."""

    def reason() -> str | None:
        found = pod.health()["components"].get("registry", {})
        return str(found["reason"]) if found.get("status") == "degraded" else None

    found: str = until(reason, details=pod.log_tail)
    return found


def test_a_daemon_continues_if_the_applied_registry_cannot_be_used(folders: Folders) -> None:
    """A newer program wrote it, or a variable of this pod is wrong."""
    person = folders.person
    log = ExecutionLog(sqlite_url(folders.state / "reposync.db"))

    async def rewrite(document: dict[str, object]) -> None:
        async with await Database.open(sqlite_url(folders.state / "reposync.db")) as database:
            await replace_document(database, document)

    with folders.pod(person, "daemon") as pod:
        until(lambda: log.ended("alpha"), details=pod.log_tail)
        asyncio.run(rewrite({"embedding": {"provider": "none"}, "daemon": {"concurrency": "plenty"}}))
        assert "daemon.concurrency" in _conflict(pod)
        before = len(log.ended("alpha"))
        until(lambda: len(log.ended("alpha")) > before, details=pod.log_tail)
        asyncio.run(rewrite({"embedding": {"provider": "none"}}))
        until(lambda: pod.health()["components"]["registry"]["status"] == "ok", details=pod.log_tail)
        assert pod.terminate() == 0
