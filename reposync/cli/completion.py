"""What the Tab key offers for names of repositories and ids of runs: those of the database in the state folder, or of
its daemon. Nothing is offered if neither answers at once."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from reposync.cli.commands import current_user
from reposync.cli.running_daemon import daemon_of_folder
from reposync.errors import RepoSyncError
from reposync.store import completion as stored

TIMEOUT_SECONDS = 0.5
SHORT_ID = 8

Items = list[CompletionItem[Any]]


def repository_names(ctx: click.Context, option: click.Parameter, incomplete: str) -> Items:
    return _items(_found(stored.repository_names, "/repositories", ("name",), incomplete), incomplete)


def run_ids(ctx: click.Context, option: click.Parameter, incomplete: str) -> Items:
    begin = incomplete[:SHORT_ID]
    return _items(_found(stored.run_ids, "/runs", ("id", "status", "repository"), begin), begin)


def targets(ctx: click.Context, option: click.Parameter, incomplete: str) -> Items:
    """Names; files and folders if none begins so."""
    return repository_names(ctx, option, incomplete) or [CompletionItem(incomplete, type="file")]


def pages(ctx: click.Context, option: click.Parameter, incomplete: str) -> Items:
    return [*repository_names(ctx, option, incomplete), *run_ids(ctx, option, incomplete)]


def _found(
    read: Callable[[Path, str], list[tuple[str, str]]], path: str, keys: tuple[str, ...], begin: str
) -> list[tuple[str, str]]:
    """A daemon is asked if its database is not in the state folder. Nothing if that fails: a message would end up in
    the line that somebody is typing."""
    # RuntimeError: the home of nobody.
    with contextlib.suppress(OSError, sqlite3.Error, ValueError, LookupError, TypeError, RuntimeError, RepoSyncError):
        folder = _state_dir()
        database = folder / "reposync.db"
        if database.is_file() and not os.environ.get("REPOSYNC_DATABASE_URL", "").strip():
            return read(database, begin)
        daemon = daemon_of_folder(folder)
        address = f"/api/v1{path}?limit={stored.MOST}"
        if daemon is not None and (
            answer := daemon.request("GET", address, user=current_user(), timeout_seconds=TIMEOUT_SECONDS)
        ):
            rows = json.loads(answer)["items"]
            return [(str(row[keys[0]]), " ".join(str(row[key]) for key in keys[1:])) for row in rows]
    return []


def _items(found: Sequence[tuple[str, str]], begin: str) -> Items:
    short = [(name[:SHORT_ID] if text else name, text) for name, text in found]
    return [CompletionItem(name, help=text) for name, text in short if name.startswith(begin) and name.isprintable()]


def _state_dir() -> Path:
    """As the settings have it, whose libraries take longer to import than a person waits for a completion."""
    named = os.environ.get("REPOSYNC_STATE_DIR", "").strip()
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_state_dir("reposync", appauthor=False))
