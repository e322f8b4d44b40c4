"""What GitLab announces by system hooks (doc/administration/system_hooks.md), as far as it outdates an answer.

They only make a removal effective sooner. GitLab does not announce shares with groups, blocked users, or the flag
`external`, and sends a failed delivery once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_NEW = frozenset({"group_create", "project_create", "user_create"})
"""Nobody has had an answer about what is new; imports make thousands of them."""
_Id = Annotated[int, Field(gt=0, lt=2**63, strict=True)]


@dataclass(frozen=True, slots=True)
class RightsChange:
    """Whose answers are outdated: those of a user, about a project, both, or all (neither is known)."""

    user_id: int | None = None
    project_id: int | None = None

    @property
    def text(self) -> str:
        return f"{self.user_id or ''}:{self.project_id or ''}"

    @classmethod
    def of_text(cls, text: str) -> Self:
        """What is not understood outdates all answers."""
        user, separator, project = text.partition(":")
        if not separator or not all(part == "" or (part.isascii() and part.isdigit()) for part in (user, project)):
            return cls()
        return cls(int(user) if user else None, int(project) if project else None)


EVERYTHING_CHANGED = RightsChange()


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    event_name: Annotated[str, Field(max_length=200)]


class _Member(_Event):
    user_id: _Id
    project_id: _Id | None = None


class _Project(_Event):
    project_id: _Id


def read_change(body: bytes | bytearray) -> RightsChange | None:
    """Read the body of an authenticated delivery; None for an event that changes no rights. A group's own event changes
    rights in all that is below it, which the event does not list. Raises ValidationError for what is no event."""
    name = _Event.model_validate_json(body).event_name
    if name in _NEW:
        return None
    kind = name.partition("_")[0]
    try:
        if kind == "user":
            member = _Member.model_validate_json(body)
            return RightsChange(member.user_id, member.project_id)
        if kind == "project":
            return RightsChange(project_id=_Project.model_validate_json(body).project_id)
    except ValidationError:
        return EVERYTHING_CHANGED
    return EVERYTHING_CHANGED if kind == "group" else None
