"""The errors of a route as its description has them, made from the errors themselves."""

from __future__ import annotations

from typing import Any

from reposync.api.access import AccessDenied, RoleMissing
from reposync.api.bounds import BodyTooLarge, BodyTooSlow, QueryTooLong, RequestInvalid
from reposync.api.envelope import ErrorAnswer
from reposync.errors import RepoSyncError, StoreUnavailable

Responses = dict[int | str, dict[str, Any]]


class BodyUnreadable(RepoSyncError):
    """The body is not what its Content-Type says."""

    code = "BAD_REQUEST"
    status = 400


class ShuttingDown(RepoSyncError):
    """This daemon is ending; another one, or the same one in a moment, answers."""

    code = "SHUTTING_DOWN"
    status = 503


EVERYWHERE = (AccessDenied, RoleMissing, RequestInvalid, QueryTooLong, BodyTooLarge, StoreUnavailable, ShuttingDown)
WITH_BODY = (BodyUnreadable, BodyTooSlow)


def errors(*kinds: type[RepoSyncError]) -> Responses:
    """For `responses` of a route: these errors, and those that every route has."""
    described: Responses = {}
    everything: tuple[type[RepoSyncError], ...] = (*kinds, *EVERYWHERE)
    for kind in everything:
        words = (kind.__doc__ or kind.code).strip().partition("\n\n")[0].replace("\n    ", " ")
        each = described.setdefault(kind.status, {"model": ErrorAnswer, "description": "", "content": {}})
        each["description"] += f"{' ' if each['description'] else ''}`{kind.code}`: {words}"
        examples = each["content"].setdefault("application/json", {"examples": {}})["examples"]
        examples[kind.code] = {"value": {"error": {"code": kind.code, "message": words, "details": {}}}}
    return described
