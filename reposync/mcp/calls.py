"""A call of a tool: for whom, and with what outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

# A client waits for these modules when it starts the server: what works is imported with the first call.
if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.app.commit_wait import SearchableCommits

T = TypeVar("T")


class Limit(Protocol):
    """Of calls at a time."""

    async def search(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`."""


@dataclass(frozen=True, slots=True)
class Caller:
    """`searches`, `greps`: how many there may be at a time. `is_wanted`: whether somebody still waits."""

    application: Callable[[], Awaitable[Application]]
    commits: SearchableCommits
    searches: Limit
    greps: Limit
    is_wanted: Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The same as a text and as JSON."""

    text: str
    structure: Mapping[str, Any]


def without_nothing(**values: object) -> dict[str, Any]:
    """Those that are not None, as the results leave out what is not known."""
    return {key: value for key, value in values.items() if value is not None}


def time_text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")
