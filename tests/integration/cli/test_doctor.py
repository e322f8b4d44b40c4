"""`reposync doctor`: a line for everything that a daemon needs, with what to do about what is wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reposync.app.diagnosis import Diagnosis, Finding
from reposync.config.loading import LoadedRegistry
from reposync.config.registry import Registry
from reposync.config.settings import Settings
from reposync.store.schema import HEAD, REVISIONS
from tests.fixtures import released_schemas
from tests.fixtures.embedding_server import EmbeddingServer
from tests.fixtures.gitlab_server import GitLabServer
from tests.integration.cli.conftest import Types

TOKEN = "glpat-abcdefghij0123456789"
PASSWORD = "a-password-nobody-guesses"
CODES = {"ok": 0, "warning": 0, "failed": 1}


@pytest.fixture
def gitlab() -> Iterator[GitLabServer]:
    with GitLabServer() as server:
        server.add_token(TOKEN, scopes=("read_api", "read_repository"))
        yield server


@pytest.fixture
def registry(tmp_path: Path, gitlab: GitLabServer, types: Types, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its embedded engine is not started by a check."""
    monkeypatch.delenv("REPOSYNC_QDRANT_URL")
    monkeypatch.setenv("GITLAB_TOKEN", TOKEN)
    path = tmp_path / "repositories.yaml"
    server = f'gitlab: [{{name: main, url: "{gitlab.url}", token: "${{GITLAB_TOKEN}}"}}]'
    path.write_text(f"{server}\nrepositories: [{{name: app, gitlab: main, project: platform/app}}]\n")
    return path


def found(types: Types, *options: str, exit_code: int = 0) -> dict[str, dict[str, Any]]:
    """The checks by name. A free port of this machine is what `serve` would listen on."""
    code, out, err = types("doctor", "--port", "0", *options, "--json")
    assert code == exit_code, out + err
    document = json.loads(out)
    assert document["ok"] is (exit_code == 0)
    return {each["check"]: each for each in document["items"]}


def test_all_is_well_after_a_registry_was_applied(registry: Path, types: Types) -> None:
    assert types("apply")[0] == 0

    code, out, err = types("doctor", "--port", "0")

    assert code == 0, out + err
    words = {line.split()[1]: line.split()[0] for line in out.splitlines()[:-2]}
    assert words == {
        **dict.fromkeys(("registry", "database", "state", "qdrant", "embedding", "gitlab:main"), "ok"),
        **dict.fromkeys(("clock", "queue", "http"), "ok"),
        "webhooks": "skipped",
    }
    assert out.splitlines()[-1] == "All is well."
    assert f"writable, schema {HEAD}" in out
    assert "static, 256 dimensions; a question took" in out
    assert "token reposync, read_api and read_repository, until 2099-12-31" in out
    assert TOKEN not in out + err


def test_a_fresh_machine_is_told_what_to_do_and_nothing_is_made(types: Types, tmp_path: Path) -> None:
    checks = found(types, exit_code=1)

    assert "`reposync init`" in checks["registry"]["remedy"]
    assert (checks["database"]["status"], checks["state"]["status"]) == ("warning", "ok")
    assert list(tmp_path.iterdir()) == []
    # The fixture names a server that is not there.
    assert (checks["qdrant"]["status"], "REPOSYNC_QDRANT_URL" in checks["qdrant"]["remedy"]) == ("failed", True)


@pytest.mark.parametrize(
    ("token", "status", "said"),
    [
        ({"scopes": ("api",)}, "ok", "GitLab 18.5.0-ee, token reposync, api"),
        ({"scopes": ("read_api",)}, "failed", "lacks read_repository"),
        ({"scopes": ("read_api", "read_repository"), "expired": True}, "failed", "does not accept the token"),
        ({"scopes": ("read_api", "read_repository"), "days": 5}, "warning", "the token ends in 5 days"),
        ({"scopes": ("read_api", "read_repository"), "expires_at": None}, "ok", "without an end"),
    ],
)
def test_a_token_is_looked_at_with_its_scopes_and_its_last_day(
    registry: Path, gitlab: GitLabServer, types: Types, token: dict[str, Any], status: str, said: str
) -> None:
    if (days := token.pop("days", None)) is not None:
        token["expires_at"] = str(datetime.now(UTC).date() + timedelta(days=days))
    gitlab.add_token(TOKEN, **token)
    types("apply")

    check = found(types, exit_code=CODES[status])["gitlab:main"]

    assert (check["status"], said in check["message"]) == (status, True), check
    assert (check["remedy"] is None) == (status == "ok")


def test_servers_that_do_not_answer_are_named_without_their_passwords(
    registry: Path, types: Types, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPOSYNC_DATABASE_URL", f"postgresql://ada:{PASSWORD}@127.0.0.1:9/code")
    monkeypatch.setenv("REPOSYNC_REDIS_URL", f"redis://:{PASSWORD}@127.0.0.1:9")
    monkeypatch.setenv("REPOSYNC_QDRANT_URL", "http://127.0.0.1:9")

    code, out, err = types("doctor", "--port", "0")

    assert code == 1
    for name, variable in (("database", "DATABASE"), ("redis", "REDIS"), ("qdrant", "QDRANT")):
        assert f"failed   {name}" in out
        assert f"REPOSYNC_{variable}_URL" in out
    assert "3 failed" in out.splitlines()[-1]
    assert PASSWORD not in out + err


def test_an_invalid_registry_file_is_a_matter_of_configuration(registry: Path, types: Types) -> None:
    registry.write_text("repositories: [{nme: app}]\n")

    check = found(types, exit_code=2)["registry"]

    assert f"{registry}:1:" in check["message"]
    assert "`name` is missing" in check["message"]
    assert check["remedy"] == "Next: reposync config check"


def test_a_registry_file_that_is_not_applied_yet_is_no_failure(registry: Path, types: Types) -> None:
    types("apply")
    registry.write_text(registry.read_text().replace("name: app", "name: other"))

    check = found(types)["registry"]

    assert (check["status"], check["remedy"]) == ("warning", "Next: reposync apply")


def test_a_schema_that_is_to_be_upgraded_is_left_as_it_is(registry: Path, types: Types, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    url = f"sqlite:///{tmp_path / 'state' / 'reposync.db'}"
    asyncio.run(released_schemas.make(url, REVISIONS[-2]))

    check = found(types)["database"]

    assert (check["status"], "db upgrade" in check["remedy"]) == ("warning", True)
    assert f"schema {REVISIONS[-2]}" in found(types)["database"]["message"]


def test_a_port_that_another_program_has_is_a_failure(registry: Path, types: Types) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        check = found(types, "--port", port, exit_code=1)["http"]

    assert (check["status"], port in check["message"], "--port N" in check["remedy"]) == ("failed", True, True)


def test_an_embedding_server_gets_a_real_question(registry: Path, types: Types) -> None:
    with EmbeddingServer() as server:
        registry.write_text(registry.read_text() + server.registry)
        assert f"{server.dimension} dimensions" in found(types)["embedding"]["message"]
        assert len(server.inputs) == 1
        server.answer_next(401)
        assert found(types, exit_code=1)["embedding"]["status"] == "failed"


@pytest.mark.parametrize(("ahead_seconds", "status"), [(0, "ok"), (300, "warning")])
def test_the_clock_is_compared_with_that_of_gitlab(
    registry: Path, gitlab: GitLabServer, types: Types, ahead_seconds: int, status: str
) -> None:
    gitlab.clock = lambda: time.time() - ahead_seconds

    assert found(types)["clock"]["status"] == status


def test_a_server_that_says_nothing_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = Settings.from_environment({"REPOSYNC_STATE_DIR": str(tmp_path), "REPOSYNC_QDRANT_URL": url})
        registry = Registry.model_validate({"gitlab": [{"name": "main", "url": url}]})
        loaded = LoadedRegistry(registry, path=tmp_path / "repositories.yaml")
        diagnosis = Diagnosis(settings, loaded, "127.0.0.1", 0, daemon_url=None, limit_seconds=0.5)

        findings: list[Finding] = asyncio.run(diagnosis.run())

    failed = {each.check for each in findings if each.status == "failed"}
    assert failed == {"qdrant", "gitlab:main"}
    assert all("0.5 s" in each.message or "time" in each.message for each in findings if each.check in failed)


def test_webhooks_are_checked_if_the_registry_says_where_the_daemon_is(
    registry: Path, types: Types, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITLAB_WEBHOOK_SECRET", "0123456789abcdef")
    text = registry.read_text().replace("}]\nrepo", ', webhook_secret: "${GITLAB_WEBHOOK_SECRET}"}]\nrepo')
    registry.write_text(text)
    assert "`http.public_url`" in found(types)["webhooks"]["message"]

    registry.write_text(f"{text}http: {{public_url: 'http://127.0.0.1:9'}}\n")

    assert found(types)["webhooks"]["status"] == "warning"
