"""Commands in this process: many of them take seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reposync.cli.main import run
from tests.fixtures.databases import database_kind, empty_database_url, postgresql  # noqa: F401

Types = Callable[..., tuple[int, str, str]]


@pytest.fixture
def types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Types:
    """Executes a command in an empty folder; exit code, stdout and stderr. No index answers."""
    for name, value in {
        "REPOSYNC_STATE_DIR": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path),
        "REPOSYNC_QDRANT_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("REPOSYNC_CONFIG", "REPOSYNC_DATABASE_URL", "DATABASE_URL", "REPOSYNC_REDIS_URL", "REPOSYNC_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def typed(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(words)
        return code, *capsys.readouterr()

    return typed
