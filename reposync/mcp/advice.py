"""Next steps as tools."""

from __future__ import annotations

from typing import Any, NamedTuple

from reposync import next_steps as steps
from reposync.errors import RepoSyncError


class AdvisedCall(NamedTuple):
    tool: str
    arguments: dict[str, Any]


def call_of(step: steps.NextStep, *, may_operate: bool) -> AdvisedCall | None:
    """None if no tool takes the step."""
    match step:
        case steps.Sync(repository=str(name), allow_mass_delete=False) if may_operate:
            return AdvisedCall("request_sync", {"repository": name, **({"full": True} if step.full else {})})
        case steps.Sync() | steps.ListRepositories():
            return AdvisedCall("list_repositories", {})
    return None


def message(error: RepoSyncError, *, may_operate: bool) -> str:
    """What failed and what to do, for what calls the tools."""
    sentences = [error.message, *([error.remedy] if error.remedy else [])]
    for step in error.next_steps:
        call = call_of(step, may_operate=may_operate)
        if call is not None:
            given = " ".join(f"{key}={value!r}" for key, value in call.arguments.items())
            sentences.append(f"Next: `{call.tool}`{f' with {given}' if given else ''}.")
        elif isinstance(step, steps.UseFixed):
            sentences.append("With fixed=true the pattern is a text.")
    return " ".join(sentences)
