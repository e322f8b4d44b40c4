"""Next steps as requests."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import quote

from reposync import next_steps as steps
from reposync.errors import RepoSyncError
from reposync.operations.paths import PREFIX, path_of


class Advised(NamedTuple):
    """`path`: with its query string."""

    method: str
    path: str
    body: dict[str, Any] | None = None


def request_of(step: steps.NextStep) -> Advised | None:
    """None if no request takes the step: the operator of the server has to."""
    match step:
        case steps.Sync(repository=str(name)):
            flags = {"full": step.full, "allow_mass_delete": step.allow_mass_delete}
            given = {key: True for key, is_set in flags.items() if is_set}
            return Advised("POST", f"{PREFIX}/repositories/{path_of(name)}/sync", given or None)
        case steps.Sync() | steps.ListRepositories():
            return Advised("GET", f"{PREFIX}/repositories")
        case steps.Verify():
            return Advised("GET", f"{PREFIX}/repositories/{path_of(step.repository)}/verify")
        case steps.RemoveRepository():
            return Advised("DELETE", f"{PREFIX}/repositories/{path_of(step.repository)}")
        case steps.ShowHistory():
            return Advised("GET", f"{PREFIX}/runs")
        case steps.ShowRun():
            return Advised("GET", f"{PREFIX}/runs/{quote(step.run)}")
        case steps.CancelRun():
            return Advised("POST", f"{PREFIX}/runs/{quote(step.run)}/cancel")
        case steps.ListLocks():
            return Advised("GET", f"{PREFIX}/locks")
        case steps.ReleaseLock():
            return Advised("DELETE", f"{PREFIX}/locks/{quote(step.repository)}?force=true")
    return None


def message(error: RepoSyncError) -> str:
    """What failed and what to do, for clients of the API."""
    sentences = [error.message, *([error.remedy] if error.remedy else [])]
    for step in error.next_steps:
        request = request_of(step)
        if request is not None:
            body = f" with `{json.dumps(request.body)}`" if request.body else ""
            sentences.append(f"Next: `{request.method} {request.path}`{body}.")
        elif isinstance(step, steps.UseFixed):
            sentences.append("With `fixed=true` the pattern is a text.")
        else:
            sentences.append("The operator of this server can change that.")
    return " ".join(sentences)
