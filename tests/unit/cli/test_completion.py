"""What the Tab key offers, and what a person gets who mistypes a command."""

from __future__ import annotations

import click
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from reposync.cli.commands import COMPLETION_VARIABLE
from reposync.cli.main import COMMANDS, SECTIONS, cli
from reposync.errors import EXIT_CODES


def offered(*words: str) -> list[str]:
    """What is offered to complete the last of `words`."""
    bash = get_completion_class("bash")
    assert bash is not None
    found = bash(cli, {}, "reposync", COMPLETION_VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [each.value for each in found]


def test_commands_and_options_are_offered() -> None:
    assert offered("") == list(COMMANDS)
    assert offered("se") == ["search", "secrets", "serve"]
    assert offered("repos", "re") == ["remove", "resume"]
    assert "--allow-mass-delete" in offered("sync", "--")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])

    assert done.exit_code == 0
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("serach x", "Did you mean `reposync search`?"),
        ("db curent", "Did you mean `reposync db current`?"),
        ("runs frobnicate", "`reposync runs frobnicate`. Commands: approve, cancel, retry, show, watch."),
    ],
)
def test_a_mistyped_command_names_the_one_that_was_meant_or_all(words: str, said: str) -> None:
    answer = CliRunner().invoke(cli, words.split(), prog_name="reposync")

    assert answer.exit_code == 2
    assert said in answer.stderr


def test_the_help_lists_every_command_once() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names if name in COMMANDS) == sorted(COMMANDS)


def test_the_help_lists_the_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(cli, ["--help"], prog_name="reposync").stdout.split())

    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in text


def test_every_command_and_group_has_a_help() -> None:
    context = click.Context(cli)

    for name, (*_, line) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None and command.help
        if isinstance(command, click.Group) and name != "mcp":  # also a command
            assert command.help == line
