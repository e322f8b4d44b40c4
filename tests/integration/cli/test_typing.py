"""What somebody is offered by the Tab key, and is told about what they typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.repositories import GitRepository
from tests.integration.cli.conftest import Types
from tests.unit.cli.test_completion import offered


@pytest.fixture
def registered(types: Types, tmp_path: Path) -> Types:
    """With a repository whose folder is missing, and its run, which failed."""
    (tmp_path / "repositories.yaml").write_text(
        "repositories:\n- {name: billing, path: gone, schedule: never}\n- {name: platform/app, path: gone}\n"
    )
    types("apply")
    assert types("sync", "billing")[0] == 1
    return types


def test_the_tab_key_offers_the_names_of_repositories_and_the_ids_of_runs(registered: Types) -> None:
    run = json.loads(registered("history", "--json")[1])["items"][0]["id"]

    assert offered("repos", "show", "") == offered("sync", "") == ["billing", "platform/app"]
    assert offered("verify", "pl") == offered("search", "--repository", "pl") == ["platform/app"]
    assert offered("runs", "show", run[:2]) == offered("runs", "retry", run) == [run[:8]]
    assert offered("open", "") == ["billing", "platform/app", run[:8]]
    assert offered("repos", "show", "x") == []
    assert offered("repos", "add", "") == [], "the name is a new one"


def test_the_tab_key_offers_nothing_without_a_database_or_with_a_damaged_one(types: Types, tmp_path: Path) -> None:
    assert offered("repos", "show", "") == []
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "reposync.db").write_bytes(b"not a database" * 1_000)
    assert offered("runs", "show", "") == []
    assert not list((tmp_path / "state").glob("*-wal"))


def test_the_history_is_of_what_was_asked_for(registered: Types) -> None:
    def runs(*words: str) -> int:
        code, out, _ = registered("history", "--json", *words)
        assert code == 0
        return len(json.loads(out)["items"])

    assert runs("--trigger", "command") == runs("--since", "24h") == runs("--since", "2026-01-01") == 1
    assert runs("--trigger", "schedule") == runs("--since", "2100-01-01T00:00:00+02:00") == 0
    assert "No run matches." in registered("history", "--trigger", "webhook")[1]
    code, _, err = registered("history", "--since", "yesterday")
    assert (code, err.splitlines()[1]) == (2, "  Help: reposync history --help")
    assert "'yesterday' is neither an age such as 30min" in err
    assert registered("history", "--watch")[0] == 2, "there is no terminal"


def test_a_verification_of_nothing_is_no_proof(types: Types) -> None:
    code, out, _ = types("verify")

    assert (code, out) == (3, "Nothing is registered, so nothing was verified.\n")


def test_all_errors_have_one_form_with_what_to_do_below(types: Types, registered: Types) -> None:
    unknown = "No such option '--limt'. Did you mean '--limit'?"
    for words, said in (
        (("history", "--limt", "3"), f"{unknown}\n  Help: reposync history --help\n"),
        (("runs", "approve"), "Missing argument 'ID'.\n  Help: reposync runs approve --help\n"),
        (
            ("repos", "remove", "billing"),
            "There is no terminal for the question.\n  --yes removes billing and its index.\n",
        ),
    ):
        code, out, err = types(*words)
        assert (code, out, err) == (2, "", f"error: {said}")


def test_a_mistyped_folder_names_the_one_beside_it(types: Types, tmp_path: Path) -> None:
    GitRepository.create(tmp_path / "billing.git").clone(tmp_path / "billing")

    code, _, err = types("sync", "./biling")

    assert (code, err) == (3, "error: There is no folder './biling'.\n  Did you mean 'billing'?\n")


def test_an_address_that_does_not_answer_is_not_registered_and_nobody_promises_a_next_run(types: Types) -> None:
    code, _, err = types("sync", "https://127.0.0.1:9/app.git")

    assert code == 1
    assert err.endswith("\n  Nothing was registered. Check the address.\n") and "next run" not in err
    assert json.loads(types("repos", "list", "--json")[1])["items"] == []


def test_there_is_no_page_without_a_daemon(types: Types) -> None:
    code, _, err = types("open")

    assert (code, err) == (2, "error: No daemon runs here, so there is no page.\n  Start one: `reposync serve`.\n")
