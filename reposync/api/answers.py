"""The errors of a route as its description has them, made from the errors themselves."""

from __future__ import annotations

from typing import Any

from reposync.api.access import AccessDenied, RoleMissing, TooManyAttempts
from reposync.api.bounds import BodyTooLarge, BodyTooSlow, BodyUnreadable, QueryTooLong, RequestInvalid
from reposync.api.csrf import CsrfRefused
from reposync.api.envelope import ErrorAnswer
from reposync.api.gate import TooManyConnections
from reposync.api.media_type import MediaTypeUnsupported
from reposync.errors import RepoSyncError, Starting, StoreUnavailable

Responses = dict[int | str, dict[str, Any]]


class ShuttingDown(RepoSyncError):
    """This daemon is ending; another one, or the same one in a moment, answers."""

    code = "SHUTTING_DOWN"
    status = 503


class HostNotAllowed(RepoSyncError):
    """The Host header names another server: a page of another site may have pointed its name here."""

    code = "HOST_NOT_ALLOWED"
    status = 421


class CrossSiteRefused(RepoSyncError):
    """A page of another site made the browser send this."""

    code = "CROSS_SITE_REFUSED"
    status = 403


class Unforeseen(RepoSyncError):
    """Not foreseen; the log has it under the incident's id."""


EVERYWHERE = (
    AccessDenied,
    RoleMissing,
    TooManyAttempts,
    HostNotAllowed,
    RequestInvalid,
    QueryTooLong,
    BodyTooLarge,
    StoreUnavailable,
    TooManyConnections,
    Starting,
    ShuttingDown,
    Unforeseen,
)
CHANGING = (CsrfRefused, CrossSiteRefused)
"""Of routes that change something: browsers are made to send such requests by pages that nobody trusts."""
WITH_BODY = (BodyUnreadable, BodyTooSlow, MediaTypeUnsupported)


def errors(*kinds: type[RepoSyncError]) -> Responses:
    """For `responses` of a route: these errors, and those that every route has."""
    return errors_alone(*kinds, *EVERYWHERE)


def errors_alone(*kinds: type[RepoSyncError]) -> Responses:
    """For a route that nobody needs a token for: these errors and no others."""
    described: Responses = {}
    for kind in kinds:
        words = (kind.__doc__ or kind.code).strip().partition("\n\n")[0].replace("\n    ", " ")
        each = described.setdefault(kind.status, {"model": ErrorAnswer, "description": "", "content": {}})
        each["description"] += f"{' ' if each['description'] else ''}`{kind.code}`: {words}"
        examples = each["content"].setdefault("application/json", {"examples": {}})["examples"]
        examples[kind.code] = {"value": {"error": {"code": kind.code, "message": words, "details": {}}}}
    return described
