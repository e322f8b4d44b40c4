"""Building blocks of all commands: groups with suggestions, the option --json, completion of repository names.

It is imported whenever the Tab key is pressed: nothing here may import what a command needs to do its work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_VARIABLE = "_REPOSYNC_COMPLETE"  # click derives it from the name of the program
MAX_NAMES = 500
DATABASE_TIMEOUT_SECONDS = 0.2

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")


class Group(click.Group):
    """A group that suggests a command for an unknown one.

    `aliases`: names that people try, and the whole command that they mean.
    """

    def __init__(self, *args: Any, aliases: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._aliases = aliases or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        unknown = self.get_command(ctx, word) is None and not word.startswith("-")
        if unknown and not ctx.resilient_parsing:
            ctx.fail(f"No such command: `{ctx.command_path} {word}`.{self._suggestion(ctx, word)}")
        return super().resolve_command(ctx, args)

    def _suggestion(self, ctx: click.Context, word: str) -> str:
        from reposync.config.problems import nearest

        commands = self.list_commands(ctx)
        if meant := self._aliases.get(word):
            return f" Did you mean `reposync {meant}`?"
        if near := nearest(word, commands):
            return f" Did you mean `{ctx.command_path} {near}`?"
        return f" Commands: {', '.join(commands)}."


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and repository names in SHELL.

    \b
        bash:  echo 'eval "$(reposync completion bash)"' >> ~/.bashrc
        zsh:   echo 'eval "$(reposync completion zsh)"' >> ~/.zshrc        (after compinit)
        fish:  reposync completion fish > ~/.config/fish/completions/reposync.fish
    """
    script = get_completion_class(shell)
    assert script is not None  # noqa: S101 - click supports all three
    click.echo(script(click.get_current_context().find_root().command, {}, "reposync", COMPLETION_VARIABLE).source())


def repository_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """Names in a local SQLite database that start with `incomplete`. Empty if the database is on a server, or cannot be
    read at once: the Tab key must not wait."""
    import sqlite3

    import platformdirs

    if os.environ.get("DATABASE_URL", "").strip():
        return []
    named = os.environ.get("REPOSYNC_STATE_DIR", "").strip()
    folder = Path(named or platformdirs.user_state_dir("reposync", appauthor=False)).expanduser().absolute()
    uri = f"{(folder / 'reposync.db').as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=DATABASE_TIMEOUT_SECONDS)) as database:
            query = "SELECT name FROM repositories WHERE substr(name, 1, ?) = ? ORDER BY name LIMIT ?"
            rows = database.execute(query, (len(incomplete), incomplete, MAX_NAMES)).fetchall()
    except (sqlite3.Error, OSError):
        return []
    return [CompletionItem(name) for (name,) in rows]


def repository_names_or_folders(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """The same for `sync`, which also accepts a path."""
    folders: CompletionItem[Any] = CompletionItem(incomplete, type="dir")
    # First: in bash this item enables the shell's completion of folders, which drops the items before it.
    return [folders, *repository_names(context, parameter, incomplete)]
