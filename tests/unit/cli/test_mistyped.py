"""What a person gets who mistypes a command."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from reposync.cli.main import cli
from reposync.errors import EXIT_CODES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("serach x", "Did you mean `reposync search`?"),
        ("db curent", "Did you mean `reposync db current`?"),
        (
            "runs frobnicate",
            "`reposync runs frobnicate`. Commands: approve, cancel, retry, show, watch.",
        ),
    ],
)
def test_a_mistyped_command_names_the_one_that_was_meant_or_all(words: str, said: str) -> None:
    answer = CliRunner().invoke(cli, words.split(), prog_name="reposync")

    assert answer.exit_code == 2
    assert said in answer.stderr


def test_the_help_lists_the_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(cli, ["--help"], prog_name="reposync").stdout.split())

    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in text
