"""The audit: who searched and read what, and when."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from reposync.errors import UsageError
from reposync.operations.core import Actor, Rule, operation
from reposync.operations.fields import MAX_NAME_CHARS, Moment, Page, PageArguments, PlainText, cursor_after, key_before

if TYPE_CHECKING:
    from reposync.app.application import Application


class Audited(BaseModel):
    """An operation that showed code or names."""

    id: str
    at: datetime
    actor: str = Field(description="Who: a token by its position, a person, an agent's or a job's owner, a command.")
    via: str = Field(description="http, page, mcp or command.")
    address: str = Field(description="Of the client.")
    operation: str = Field(description="Such as search, grep or read.")
    repositories: list[str] = Field(description="Those in the answer, or that were asked for.")
    hits: int | None = Field(description="How many were shown; null if the answer is one document.")
    outcome: str = Field(description="ok, or the code of the error.")
    query: str | None = Field(description="Null unless `audit.queries` is set.")

    model_config = ConfigDict(from_attributes=True)


class AuditPage(Page[Audited]):
    """The newest first. `next_cursor` is null on the last page."""


class AuditFilters(PageArguments):
    actor: PlainText | None = Field(None, max_length=MAX_NAME_CHARS, description="Only what this one did.")
    repository: PlainText | None = Field(None, max_length=MAX_NAME_CHARS, description="Only what touched this one.")
    operation: PlainText | None = Field(None, max_length=50, description="Only this operation.", examples=["search"])
    since: Moment | None = Field(None, description="Then or later; RFC 3339 with a zone.")
    until: Moment | None = Field(None, description="Before then.")


@operation("GET", "/audit", AuditFilters, AuditPage, rule=Rule.OPERATE)
async def audit(app: Application, actor: Actor, asked: AuditFilters) -> AuditPage:
    """Who searched and read what. Entries are written within a second. Empty unless `audit.enabled` is set."""
    before = None if asked.cursor is None else _place(key_before(asked.cursor))
    filters = asked.model_dump(exclude={"limit", "cursor"})
    found = await app.audit_log.page(asked.limit + 1, before=before, **filters)
    page = found[: asked.limit]
    next_cursor = None
    if len(found) > len(page):
        next_cursor = cursor_after(json.dumps([page[-1].at.isoformat(), page[-1].id]))
    return AuditPage(items=[Audited.model_validate(each) for each in page], next_cursor=next_cursor)


def _place(key: str) -> tuple[datetime, str]:
    try:
        at, entry = json.loads(key)
        return datetime.fromisoformat(at), str(entry)
    except (ValueError, TypeError):
        raise UsageError("This cursor is not valid.", remedy="Use `next_cursor` of the previous page.") from None
