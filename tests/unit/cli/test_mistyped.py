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
        ("repos rm x", "reposync repos remove"),
        ("list", "reposync repos list"),
        ("db curent", "reposync db current"),
    ],
)
def test_a_mistyped_command_names_the_one_that_was_meant(words: str, meant: str) -> None:
    answer = CliRunner().invoke(cli, words.split(), prog_name="reposync")

    assert answer.exit_code == 2
    assert f"Did you mean `{meant}`?" in answer.stderr


def test_an_unknown_command_lists_the_commands() -> None:
    answer = CliRunner().invoke(cli, ["runs", "frobnicate"], prog_name="reposync")

    assert (
        "No such command: `reposync runs frobnicate`. Commands: approve, cancel, retry, show, watch." in answer.stderr
    )


def test_the_help_lists_the_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(cli, ["--help"], prog_name="reposync").stdout.split())

    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in text
