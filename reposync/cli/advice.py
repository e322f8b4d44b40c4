"""Next steps as commands."""

from __future__ import annotations

import shlex

from reposync import next_steps as steps
from reposync.errors import RepoSyncError


def command_of(step: steps.NextStep) -> list[str] | None:
    """The words after `reposync`; None if no command takes the step."""
    match step:
        case steps.Sync():
            flags = {"--full": step.full, "--allow-mass-delete": step.allow_mass_delete}
            return ["sync", step.repository or ".", *(flag for flag, is_set in flags.items() if is_set)]
        case steps.Verify():
            return ["verify", step.repository]
        case steps.ListRepositories():
            return ["repos", "list"]
        case steps.RemoveRepository():
            return ["repos", "remove", step.repository]
        case steps.ApplyRegistry():
            return ["apply"]
        case steps.ShowHistory():
            return ["history"]
        case steps.ShowRun():
            return ["runs", "show", step.run]
        case steps.CancelRun():
            return ["runs", "cancel", step.run]
        case steps.ListLocks():
            return ["locks", "list"]
        case steps.ReleaseLock():
            return ["locks", "release", step.repository, "--force"]
        case steps.UpgradeDatabase():
            return ["db", "upgrade"]
    return None


def advice(error: RepoSyncError) -> str:
    """What to do, in sentences for a person at a terminal; empty if there is nothing to say."""
    commands = [command_of(step) for step in error.next_steps]
    sentences = [f"Next: `reposync {shlex.join(words)}`." for words in commands if words is not None]
    if any(isinstance(step, steps.UseFixed) for step in error.next_steps):
        sentences.append("With -F the pattern is a text.")
    return " ".join([*([error.remedy] if error.remedy else []), *sentences])
