"""`reposync completion`, and what the shell offers beyond commands and options: the names of repositories.

It runs at every press of the Tab key: nothing here may import what a command needs to do its work.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE = "_REPOSYNC_COMPLETE"  # what click derives from the name of the program
MOST_NAMES = 500
_PATIENCE_SECONDS = 0.2
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and repository names in SHELL.

    \b
        bash:  echo 'eval "$(reposync completion bash)"' >> ~/.bashrc
        zsh:   echo 'eval "$(reposync completion zsh)"' >> ~/.zshrc        (after compinit)
        fish:  reposync completion fish > ~/.config/fish/completions/reposync.fish
    """
    found = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    assert found is not None  # noqa: S101 - click has all three
    # Not its `source()`: for bash that runs whatever bash is first in PATH, to ask for its version.
    complete = found(root, {}, "reposync", VARIABLE)
    click.echo(complete.source_template % complete.source_vars())


def repository_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """Names in the local state that start with `incomplete`. None where the state is kept by a PostgreSQL server, or
    cannot be read at once: a person who types is not kept waiting."""
    state = _sqlite_file()
    if state is None:
        return []
    pattern = "".join(f"\\{each}" if each in "%_\\" else each for each in incomplete) + "%"
    try:
        with closing(sqlite3.connect(f"{state.as_uri()}?mode=ro", uri=True, timeout=_PATIENCE_SECONDS)) as database:
            rows = database.execute(
                "SELECT name FROM repositories WHERE name LIKE ? ESCAPE '\\' ORDER BY name LIMIT ?",
                (pattern, MOST_NAMES),
            ).fetchall()
    except (sqlite3.Error, OSError):
        return []
    # LIKE knows no upper and lower case.
    return [CompletionItem(name) for (name,) in rows if name.startswith(incomplete)]


def repository_names_or_folders(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem[Any]]:
    """The same for `sync`, which takes a path as well."""
    folders: CompletionItem[Any] = CompletionItem(incomplete, type="dir")
    # First: in bash this word switches its own completion of folders on, and forgets what came before it.
    return [folders, *repository_names(context, parameter, incomplete)]


def _sqlite_file() -> Path | None:
    import platformdirs

    if os.environ.get("DATABASE_URL", "").strip():
        return None
    named = os.environ.get("REPOSYNC_STATE_DIR", "").strip()
    folder = Path(named or platformdirs.user_state_dir("reposync", appauthor=False)).expanduser().absolute()
    return folder / "reposync.db"
