"""Next steps as commands."""

from __future__ import annotations

import shlex
from dataclasses import asdict

from reposync import next_steps as steps
from reposync.errors import RepoSyncError

_COMMANDS = {
    steps.Sync: ("sync",),
    steps.Verify: ("verify",),
    steps.ListRepositories: ("repos", "list"),
    steps.RemoveRepository: ("repos", "remove"),
    steps.CheckRegistry: ("config", "check"),
    steps.ApplyRegistry: ("apply",),
    steps.ShowHistory: ("history",),
    steps.ShowRun: ("runs", "show"),
    steps.CancelRun: ("runs", "cancel"),
    steps.ListLocks: ("locks", "list"),
    steps.ReleaseLock: ("locks", "release", "--force"),
    steps.UpgradeDatabase: ("db", "upgrade"),
}


def command_of(step: steps.NextStep) -> list[str] | None:
    """The words after `reposync`; None if no command takes the step. A text of the step is an argument, a flag that is
    set an option; without a repository, a sync is that of this folder."""
    words = _COMMANDS.get(type(step))
    if words is None:
        return None
    given = asdict(step)
    names = ["." if value is None else value for value in given.values() if not isinstance(value, bool)]
    return [*words, *names, *(f"--{key.replace('_', '-')}" for key, value in given.items() if value is True)]


def advice(error: RepoSyncError) -> list[str]:
    """What to do, in lines for a person at a terminal; each command has a line of its own."""
    lines = [error.remedy] if error.remedy else []
    if any(isinstance(step, steps.UseFixed) for step in error.next_steps):
        lines.append("With -F the pattern is a text.")
    commands = [command_of(step) for step in error.next_steps]
    return [*lines, *(f"Next: reposync {shlex.join(words)}" for words in commands if words is not None)]
