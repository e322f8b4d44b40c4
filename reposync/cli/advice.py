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


def advice(error: RepoSyncError) -> str:
    """What to do, in sentences for a person at a terminal; empty if there is nothing to say."""
    commands = [command_of(step) for step in error.next_steps]
    sentences = [f"Next: `reposync {shlex.join(words)}`." for words in commands if words is not None]
    if any(isinstance(step, steps.UseFixed) for step in error.next_steps):
        sentences.append("With -F the pattern is a text.")
    return " ".join([*([error.remedy] if error.remedy else []), *sentences])
