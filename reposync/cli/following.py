"""Following a run that a command has requested to its end, whoever executes it."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from reposync import operations
from reposync.cli.output import open_display
from reposync.errors import CANNOT_HERE, RepoSyncError, StoreUnavailable
from reposync.store.status import RunStatus
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.cli.performing import Performer
    from reposync.operations.following import Watch
    from reposync.operations.runs import Run, RunDetail

FOLLOW_SECONDS = 0.3
OUTAGE_SECONDS = 60.0
"""How long `follow` waits for an unreachable database."""


def follow(perform: Performer, run: Run, *, only_watch: bool = False) -> RunDetail:
    """The run when it has ended, or has failed here and continues because somebody else asked for it too. Its progress
    is displayed. Without workers, or if they cannot execute it, it is executed here. Ctrl-C takes it with the command,
    unless somebody else asked for it too. Raises LeaseLost, StoreUnavailable.

    `only_watch`: it is not executed here, and neither Ctrl-C nor a minute without the database ends it."""
    latest, failures, read_at = run, None, time.monotonic()
    try:
        with open_display(run.repository) as display:
            while True:
                has_ended = not only_watch and _execute(perform, latest, display)
                try:
                    latest, read_at = perform(operations.runs.get_run, run_id=run.id), time.monotonic()
                except StoreUnavailable:
                    if not only_watch or time.monotonic() - read_at > OUTAGE_SECONDS:
                        raise
                    time.sleep(FOLLOW_SECONDS)
                    continue
                if has_ended or latest.is_final:
                    return latest
                if latest.status == RunStatus.RETRYING and failures is not None and latest.failures > failures:
                    what = f"attempt {latest.attempt} failed and will be retried: {latest.error_message}"
                    warn(run.repository, what)
                failures = latest.failures
                display(operations.following.displayed_progress(latest))
                time.sleep(FOLLOW_SECONDS)
    except KeyboardInterrupt:
        if not only_watch:
            withdraw(perform, run)
        raise


def _execute(perform: Performer, run: Run, display: Watch) -> bool:
    """Whether the run was executed here, or has ended."""
    daemon = perform.daemon
    if daemon is not None and daemon.has_workers and not (run.is_waiting and run.error_code in CANNOT_HERE):
        return run.is_final
    from reposync.app.command_runs import execute_for_command

    return perform.here(lambda app: execute_for_command(app, run.id, display), with_engine=True)


def withdraw(perform: Performer, run: Run) -> None:
    """The command ends: its run does, too, unless somebody else asked for it."""
    with contextlib.suppress(RepoSyncError):
        perform(operations.runs.cancel, {"if_unshared": True}, run_id=run.id)


def warn(about: str, text: str) -> None:
    click.echo(f"{escape_unprintable(about)}: {escape_unprintable(text)}", err=True)
