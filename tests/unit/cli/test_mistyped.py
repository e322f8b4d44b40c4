"""What a person gets who mistypes a command."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from reposync.cli.main import cli
from reposync.errors import EXIT_CODES


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("serach x", "reposync search"),
        ("runs list", "reposync history"),
        ("runs shwo x", "reposync runs show"),
        ("repos rm x", "reposync repos remove"),
        ("list", "reposync repos list"),
        ("db curent", "reposync db current"),
        ("index stauts", "reposync index status"),
        ("locks relese x", "reposync locks release"),
        ("config chek", "reposync config check"),
    ],
)
def test_a_mistyped_command_names_the_one_that_was_meant(words: str, meant: str) -> None:
    answer = CliRunner().invoke(cli, words.split(), prog_name="reposync")

    assert answer.exit_code == 2
    assert f"Did you mean `{meant}`?" in answer.stderr


def test_what_is_near_nothing_gets_the_list() -> None:
    answer = CliRunner().invoke(cli, ["runs", "frobnicate"], prog_name="reposync")

    assert (
        "No such command: `reposync runs frobnicate`. Commands: approve, cancel, retry, show, watch." in answer.stderr
    )


def test_the_help_lists_the_exit_codes() -> None:
    said = " ".join(CliRunner().invoke(cli, ["--help"], prog_name="reposync").stdout.split())

    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in said
