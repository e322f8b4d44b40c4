"""The program as a person runs it: a process of its own, an empty home, nothing but what the test says."""

import contextlib
import json
import subprocess
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reposync.config.database_url import sqlite_url
from tests.fixtures.browser import browser, page  # noqa: F401
from tests.fixtures.databases import postgresql  # noqa: F401
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.patience import PATIENCE_SECONDS
from tests.fixtures.pods import ExecutionLog, Pod, end_engines, variables_of
from tests.fixtures.redis_server import redis_server  # noqa: F401
from tests.fixtures.repositories import GitRepository
from tests.fixtures.warm_program import PROGRAM, popen, warm_program  # noqa: F401


@dataclass
class Person:
    """Types commands. The embedded engine of its state folder is ended with the test."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    program: tuple[str, ...] = PROGRAM

    def variables(self) -> dict[str, str]:
        return {**variables_of(self.home), "COLUMNS": "160", **self.environment}

    def command(self, *words: str) -> list[str]:
        return [*self.program, *words]

    def types(self, *words: str, exit_code: int | None = 0) -> "subprocess.CompletedProcess[str]":
        with self.starts(*words) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_SECONDS)
            except BaseException:
                process.kill()
                raise
        reported = f"{words}: exit {process.returncode}\n{out}\n{err}"
        assert exit_code is None or process.returncode == exit_code, reported
        assert "Traceback" not in err, reported
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def asks(self, *words: str, exit_code: int = 0) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.types(*words, "--json", exit_code=exit_code).stdout)

    def lists(self, *words: str, exit_code: int = 0) -> list[Any]:
        """The items of the list that is the document."""
        items: list[Any] = self.asks(*words, exit_code=exit_code)["items"]
        return items

    def starts(self, *words: str) -> "subprocess.Popen[str]":
        return popen(
            self.program,
            *words,
            env=self.variables(),
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def configures(self, text: str) -> None:
        (self.home / "repositories.yaml").write_text(text)

    def applies(self, text: str) -> None:
        """Writes the registry file and makes it the catalogue; a running `serve` does the latter by itself."""
        self.configures(text)
        self.types("apply")


@pytest.fixture
def person(tmp_path: Path) -> Generator[Person, None, None]:
    home = tmp_path / "home"
    home.mkdir()
    someone = Person(home)
    yield someone
    end_engines(home)


@pytest.fixture
def embeddings() -> Generator[EmbeddingServer, None, None]:
    with EmbeddingServer() as server:
        yield server


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    return GitRepository.create(tmp_path / "payments.git")


@pytest.fixture
def log(person: Person) -> ExecutionLog:
    """Of the person's own state folder, which daemons of the person share."""
    person.environment["REPOSYNC_STATE_DIR"] = str(person.home / "state")
    return ExecutionLog(sqlite_url(person.home / "state" / "reposync.db"))


@pytest.fixture
def pod(person: Person, log: ExecutionLog) -> Generator[Pod, None, None]:
    """A daemon in the person's home, where its commands see what it does; not started."""
    with contextlib.ExitStack() as ended:
        yield ended.push(Pod("laptop", person.home))
