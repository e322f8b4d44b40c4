"""What a person or a program can do about an error, as values. Each front end says them in its own words: the command
line as commands, HTTP as requests, the server for agents as tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NextStep:
    """Base of all steps. The fields are what the step needs to be taken."""

    def document(self) -> dict[str, Any]:
        """For programs: `{"step": "Sync", "repository": "app", ...}`."""
        return {"step": type(self).__name__, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Sync(NextStep):
    """Request a sync of the repository; None: of any."""

    repository: str | None = None
    full: bool = False
    allow_mass_delete: bool = False


@dataclass(frozen=True, slots=True)
class Verify(NextStep):
    repository: str


@dataclass(frozen=True, slots=True)
class ListRepositories(NextStep):
    pass


@dataclass(frozen=True, slots=True)
class RemoveRepository(NextStep):
    repository: str


@dataclass(frozen=True, slots=True)
class CheckRegistry(NextStep):
    """List all mistakes in the registry file of this machine."""


@dataclass(frozen=True, slots=True)
class ApplyRegistry(NextStep):
    """Apply the registry file of this machine."""


@dataclass(frozen=True, slots=True)
class ShowHistory(NextStep):
    pass


@dataclass(frozen=True, slots=True)
class ShowRun(NextStep):
    """By a prefix of its id, which shows the whole id."""

    run: str


@dataclass(frozen=True, slots=True)
class CancelRun(NextStep):
    run: str


@dataclass(frozen=True, slots=True)
class ListLocks(NextStep):
    pass


@dataclass(frozen=True, slots=True)
class ReleaseLock(NextStep):
    """Whoever holds it."""

    repository: str


@dataclass(frozen=True, slots=True)
class UseFixed(NextStep):
    """Search for the text as it is, not as a regular expression."""


@dataclass(frozen=True, slots=True)
class UpgradeDatabase(NextStep):
    pass


STEPS: Mapping[str, type[NextStep]] = {step.__name__: step for step in NextStep.__subclasses__()}


def read_steps(documents: Any) -> tuple[NextStep, ...]:
    """The inverse of `NextStep.document`. Steps of a newer program, and whatever else cannot be read, are left out."""
    steps = []
    for document in documents if isinstance(documents, list) else ():
        fields = dict(document) if isinstance(document, dict) else {}
        try:
            steps.append(STEPS[fields.pop("step")](**fields))
        except (LookupError, TypeError):
            continue
    return tuple(steps)
