"""Every command ends alike with and without --json: one exit code, and one document on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from reposync.cli.main import cli
from tests.fixtures.repositories import GitRepository
from tests.integration.cli.conftest import Types

REGISTRY = "repositories: [{{name: {name}, path: {path}, schedule: never}}]\n"


def commands(group: click.Group = cli, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands that print a document."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        elif any(parameter.name == "as_json" for parameter in command.params):
            yield (*words, name), command


def line(words: tuple[str, ...], command: click.Command) -> tuple[str, ...]:
    """With all arguments, which name nothing that exists; and without a question."""
    given = ["9" if isinstance(each, click.Option) else "nothing-here" for each in command.params if is_needed(each)]
    yes = ["--yes"] if any("--yes" in each.opts for each in command.params) else []
    return (*words, *given, *yes)


def is_needed(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


COMMANDS = [pytest.param(line(*each), id=" ".join(each[0])) for each in commands()]


def ends_alike(types: Types, *words: str) -> tuple[int, Any]:
    """The exit code and the document."""
    code, _, err = types(*words)
    with_json, out, err_with_json = types(*words, "--json")
    assert with_json == code, err + err_with_json
    document = json.loads(out)
    if is_error(document):
        assert set(document["error"]) == {"code", "message", "details", "next"}
        assert code not in (0, None)
        assert err_with_json, "people see it too"
    return code, document


def is_error(document: Any) -> bool:
    return isinstance(document, dict) and set(document) == {"error"}


def test_there_are_such_commands():
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_ends_alike_for_names_that_do_not_exist(types: Types, words: tuple[str, ...]):
    ends_alike(types, *words)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_ends_alike_if_it_is_mistyped(types: Types, words: tuple[str, ...]):
    code, document = ends_alike(types, *words, "--nonsense")

    assert (code, document["error"]["code"]) == (2, "USAGE")
    assert "nonsense" in document["error"]["message"]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_ends_alike_without_its_database(
    types: Types, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    monkeypatch.setenv("REPOSYNC_DATABASE_URL", "postgresql://127.0.0.1:9/reposync")

    code, document = ends_alike(types, *words)

    if is_error(document) and document["error"]["code"] == "STORE_UNAVAILABLE":
        assert code == 1


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_ends_alike_with_a_wrong_setting(
    types: Types, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    monkeypatch.setenv("REPOSYNC_DATABASE_URL", "mysql://there")

    code, document = ends_alike(types, *words)

    assert code != 0 or words[0] == "version"
    assert is_error(document) or words[0] == "version"


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["", "dry run"])
def test_an_apply_that_is_refused_ends_alike_and_shows_what_was_refused(
    types: Types, tmp_path: Path, more: tuple[str, ...]
):
    (tmp_path / "one.yaml").write_text(REGISTRY.format(name="app", path=tmp_path))
    assert types("repos", "add", "app", "--git", "https://git.example.com/app.git")[0] == 0

    code, document = ends_alike(types, "apply", "one.yaml", *more)

    assert (code, document["error"]["code"]) == (4, "REGISTRY_CONFLICT")
    assert document["error"]["details"]["applied"] is False
    assert "app" in document["error"]["details"]["conflicts"][0]["what"]


def test_a_wrong_registry_file_ends_alike(types: Types, tmp_path: Path):
    (tmp_path / "wrong.yaml").write_text("repositories: [{nam: x}]\n")

    code, document = ends_alike(types, "apply", "wrong.yaml")
    assert (code, document["error"]["code"]) == (2, "CONFIG_INVALID")
    assert document["error"]["details"]["problems"][0]["line"] == 1

    code, document = ends_alike(types, "config", "check", "wrong.yaml")
    assert (code, document["ok"]) == (2, False)
    assert ends_alike(types, "config", "check", "missing.yaml")[1]["error"]["code"] == "CONFIG_INVALID"


def test_a_sync_that_fails_ends_alike(types: Types, tmp_path: Path):
    repository = GitRepository.create(tmp_path / "app")
    repository.commit({"a.py": b"x = 1\n"})
    (tmp_path / "repositories.yaml").write_text(REGISTRY.format(name="app", path=tmp_path / "app"))
    assert types("apply")[0] == 0
    (tmp_path / "app").rename(tmp_path / "gone")

    code, document = ends_alike(types, "sync", "app")

    assert code == 1
    assert document["items"][0]["status"] == "failed"
    assert ends_alike(types, "runs", "watch", document["items"][0]["id"])[0] == 1
