"""GitLab's refusals in words that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reposync.errors import SourceDenied, SourceError, SourceGone
from reposync.outgoing import parse_json
from reposync.sources.git_protocol import printable
from reposync.sources.rest import RestRefused


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a refusal's body says: `{"message": ...}`, or the OAuth form `{"error", "error_description", "scope"}`."""

    status: int
    error: str
    text: str
    scope: str

    @classmethod
    def of(cls, refused: RestRefused) -> Refusal:
        try:
            body = parse_json(refused.body)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            plain = refused.body.decode("utf-8", "replace")
            return cls(refused.status, "", "" if "<" in plain else printable(plain.encode()), "")
        text = body.get("error_description") or body.get("message") or body.get("error") or ""
        return cls(refused.status, _line(body.get("error")), _line(text), _line(body.get("scope")))

    def is_about(self, thing: str) -> bool:
        """Whether this is `404 <thing> Not Found`."""
        return self.status == 404 and f"{thing} Not Found".lower() in self.text.lower()


def explain(
    refused: RestRefused, *, project: str, instance: str, has_token: bool, kind: str = "project"
) -> SourceError:
    """The error for a refusal that the caller has no meaning of its own for. `project` is the path of a `kind`."""
    thing = f"{kind} {project}"
    refusal = Refusal.of(refused)
    said = f" GitLab says: {refusal.text.rstrip('.')}." if refusal.text else ""
    if refusal.status == 401:
        return _unauthorized(refusal, said, thing, instance, has_token=has_token)
    if refusal.status == 403:
        return _forbidden(refusal, said, thing, instance)
    if refusal.status == 404:
        hidden = "hidden from this token" if has_token else "private: no token was given"
        return SourceGone(
            f"{kind.capitalize()} {project} was not found on {instance}: it is missing, or {hidden}.{said}",
            remedy="Check the path, and that the token's user is a member. The index is kept as it is.",
        )
    return SourceError(
        f"{instance} answered {refusal.status} about {thing}.{said}",
        remedy="Check that the URL is that of a GitLab instance of version 15 or later.",
    )


def _unauthorized(refusal: Refusal, said: str, thing: str, instance: str, *, has_token: bool) -> SourceDenied:
    lowered = refusal.text.lower()
    if not has_token:
        return SourceDenied(f"{instance} wants a token for {thing}.{said}", remedy="Give one with the scope read_api.")
    if "expired" in lowered:
        why, remedy = "has expired", "Make a new one with the scopes read_api and read_repository."
    elif "revoked" in lowered:
        why, remedy = "was revoked", "Make a new one with the scopes read_api and read_repository."
    else:
        why = "is not known there"
        remedy = "Check that it was copied whole and belongs to this instance."
    return SourceDenied(f"The token for {instance} {why} ({thing}).{said}", remedy=remedy)


def _forbidden(refusal: Refusal, said: str, thing: str, instance: str) -> SourceDenied:
    if refusal.error == "insufficient_scope":
        wanted = " or ".join(refusal.scope.split()) or "read_api"
        return SourceDenied(
            f"The token for {instance} lacks a scope: reading {thing} wants {wanted}.",
            remedy="Make a token with the scopes read_api and read_repository.",
        )
    return SourceDenied(
        f"The token for {instance} may not read the repository of {thing}.{said}",
        remedy="Its user needs the role Reporter at least, and the project's repository must be switched on.",
    )


def _line(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("error") or next(iter(value.values()), "")
    return printable(str(value).encode("utf-8", "replace")) if value else ""
