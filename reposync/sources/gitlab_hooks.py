"""Installing webhooks of GitLab projects and groups; repeating it changes nothing.

GitLab never shows a hook's secrets. A fingerprint of them in the hook's description (GitLab 17.1 and later) tells
whether they are current; an older GitLab receives the secrets again each time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal
from urllib.parse import urlsplit

import gitlab
from pydantic import SecretStr

from reposync.errors import SourceDenied, SourceError, SourceUnavailable
from reposync.http_client import HttpRefused
from reposync.outgoing import printable
from reposync.sources.gitlab_client import GitLabClient, Refusal

NAME = "reposync"
ENDPOINT = "/api/v1/webhooks/gitlab"
"""The path of reposync's webhook endpoint."""

MAX_HOOKS = 1_000
_FINGERPRINT = re.compile(r"\bsecret ([0-9a-f]{12})\b")

Action = Literal["created", "updated", "unchanged"]


@dataclass(frozen=True, slots=True)
class HookPlace:
    """A project or a group. `number` is the project's id if known; it is valid wherever the project is moved."""

    kind: Literal["project", "group"]
    path: str
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


@dataclass(frozen=True, slots=True)
class HookWish:
    """The wanted hook. `url` includes the endpoint; without `branch` it reports pushes to every branch. `fingerprint`
    is that of the secrets."""

    url: str
    secret: SecretStr | None
    signing: SecretStr | None
    fingerprint: str
    branch: str | None = None

    @property
    def only_signs(self) -> bool:
        return self.signing is not None and self.secret is None

    def attributes(self) -> dict[str, Any]:
        """As GitLab's API names them."""
        return {
            "url": self.url,
            "name": NAME,
            "description": f"Made by `reposync webhooks install`; secret {self.fingerprint}",
            "push_events": True,
            "push_events_branch_filter": self.branch or "",
            "branch_filter_strategy": "wildcard" if self.branch else "all_branches",
            "enable_ssl_verification": True,
            "token": self.secret.get_secret_value() if self.secret else "",
            "signing_token": self.signing.get_secret_value() if self.signing else "",
        }


@dataclass(frozen=True, slots=True)
class Hook:
    """A hook of GitLab."""

    id: int
    url: str

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Hook:
        return cls(int(attributes["id"]), printable(str(attributes.get("url") or "")))


class GitLabHooks:
    """The hooks of one GitLab instance. Closing it closes `server`."""

    def __init__(self, server: GitLabClient) -> None:
        self._server = server

    async def ensure(self, place: HookPlace, wish: HookWish, *, dry_run: bool = False) -> tuple[Action, Hook | None]:
        """Make `place` have exactly one such hook. An existing one is updated: the one with the same URL, or the one
        with the same secrets, whose reposync has moved. Returns what was done, or with `dry_run` what would be.

        Raises SourceDenied, SourceGone, SourceUnavailable, SourceError.
        """
        try:
            return await self._server.call(
                "api_hooks",
                partial(_ensure, place, wish, dry_run),
                doing=f"Installing the webhook of {place} on {self._server.url}",
            )
        except _NoSigning as error:
            raise SourceError(
                f"{self._server.url} does not sign: it accepted no signing token for the hook of {place}.",
                remedy="That needs GitLab 19.0. Set `webhook_secret` of the server instead of `webhook_signing`.",
            ) from error
        except HttpRefused as refused:
            raise await self._explained(refused, place) from refused

    async def close(self) -> None:
        await self._server.close()

    async def _explained(self, refused: HttpRefused, place: HookPlace) -> SourceError:
        refusal = Refusal.of(refused)
        if refused.status == 403 and refusal.error == "insufficient_scope":
            return SourceDenied(
                f"The token for {self._server.url} lacks the scope api, which the webhooks of {place} need.",
                remedy="The daemon does not need it: give a different token for this command only (--token-variable).",
            )
        if refused.status == 403:
            return SourceDenied(
                f"The token for {self._server.url} may not change the webhooks of {place}.{refusal.quoted}",
                remedy=f"Its user needs the role {'Owner' if place.kind == 'group' else 'Maintainer'} there.",
            )
        if refused.status == 404 and place.kind == "group" and await self._group_exists(place):
            return SourceDenied(
                f"{self._server.url} has no webhooks for {place}.",
                remedy="Those of groups need GitLab Premium, and the role Owner; use webhooks of its projects instead.",
            )
        if refused.status in (400, 422):
            return SourceError(
                f"{self._server.url} refuses the webhook of {place}.{refusal.quoted}",
                remedy="An address in GitLab's own network has to be allowed by its administrator "
                "(Admin > Settings > Network > Outbound requests).",
            )
        return self._server.explain(refused, path=place.path, kind=place.kind)

    async def _group_exists(self, place: HookPlace) -> bool:
        def look(client: gitlab.Gitlab) -> None:
            client.groups.get(place.path, lazy=True).projects.list(per_page=1, get_all=False)

        try:
            await self._server.call("api_group", look, doing=f"Looking for {place}")
        except (HttpRefused, SourceUnavailable):
            return False
        return True


def fingerprint(secret: SecretStr | None, signing: SecretStr | None) -> str:
    """Twelve hex digits that distinguish secrets. Every Maintainer sees them, so they are slow to compute (50 ms) and
    useless for guessing."""
    both = "\n".join(each.get_secret_value() if each else "" for each in (secret, signing))
    return hashlib.scrypt(both.encode(), salt=b"reposync webhook", n=2**14, r=8, p=1, dklen=6).hex()


# In a thread: calls of python-gitlab ---------------------------------------------------------------------------------


class _NoSigning(Exception):
    """The hook would not sign, and has no other secret."""


def _ensure(place: HookPlace, wish: HookWish, dry_run: bool, client: gitlab.Gitlab) -> tuple[Action, Hook | None]:
    """One call, so that repeating it after a lost answer makes no second hook."""
    if place.kind == "group":
        hooks: Any = client.groups.get(place.path, lazy=True).hooks
    else:
        # By number: at the former path of a moved project only GET works.
        number = place.number if place.number is not None else client.projects.get(place.path).id
        hooks = client.projects.get(number, lazy=True).hooks
    existing = [each.attributes for each in islice(hooks.list(iterator=True, per_page=100), MAX_HOOKS)]
    found = _match(existing, wish)
    if found is None:
        if dry_run:
            return "created", None
        made = hooks.create(wish.attributes()).attributes
        if wish.only_signs and not made.get("signing_token_present"):
            hooks.delete(made["id"])
            raise _NoSigning
        return "created", Hook.of(made)
    changes = _changes(found, wish)
    if not changes or dry_run:
        return "updated" if changes else "unchanged", Hook.of(found)
    if wish.only_signs and "signing_token_present" not in found:
        raise _NoSigning
    return "updated", Hook.of(hooks.update(found["id"], changes))


def _match(existing: list[dict[str, Any]], wish: HookWish) -> dict[str, Any] | None:
    for each in existing:
        if each.get("url") == wish.url:
            return each
    for each in existing:
        # Not by name: a different installation may have its hook here too, with its own secrets.
        is_reposync = urlsplit(str(each.get("url") or "")).path.endswith(ENDPOINT)
        if is_reposync and _fingerprint_of(each) == wish.fingerprint:
            return each
    return None


def _changes(found: Mapping[str, Any], wish: HookWish) -> dict[str, Any]:
    """All wanted attributes, the secrets included, if any of them differs; else nothing."""
    wanted = wish.attributes()
    compared = ("url", "push_events", "push_events_branch_filter", "enable_ssl_verification")
    is_different = any((found.get(key) or "") != wanted[key] for key in compared)
    others = {key: False for key, on in found.items() if key.endswith("_events") and key != "push_events" and on}
    template = {"custom_webhook_template": ""} if found.get("custom_webhook_template") else {}
    present = {"token_present": wish.secret, "signing_token_present": wish.signing}
    is_lost = any(key in found and bool(found[key]) != bool(secret) for key, secret in present.items())
    if _fingerprint_of(found) == wish.fingerprint and not (is_lost or is_different or others or template):
        return {}
    return wanted | others | template


def _fingerprint_of(hook: Mapping[str, Any]) -> str | None:
    found = _FINGERPRINT.search(str(hook.get("description") or ""))
    return found[1] if found else None
