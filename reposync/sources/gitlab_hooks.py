"""Installing webhooks of GitLab projects and groups; repeating it changes nothing.

GitLab never shows a hook's secrets. What tells whether they are still the right ones is a fingerprint in the hook's
description (GitLab 17.1 and later); an older GitLab is told the secrets again each time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import gitlab
from pydantic import SecretStr

from reposync.errors import SourceDenied, SourceError, SourceUnavailable
from reposync.http_client import HttpRefused
from reposync.outgoing import printable
from reposync.sources.gitlab_client import GitLabClient, Refusal

T = TypeVar("T")

NAME = "reposync"
ENDPOINT = "/api/v1/webhooks/gitlab"
"""Where reposync listens, behind whatever address it has."""

MAX_HOOKS = 1_000
_FINGERPRINT = re.compile(r"\bsecret ([0-9a-f]{12})\b")

Action = Literal["created", "updated", "unchanged"]


@dataclass(frozen=True, slots=True)
class HookPlace:
    """A project or a group. `number` of a project, where it is known, holds wherever the project is."""

    kind: Literal["project", "group"]
    path: str
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


@dataclass(frozen=True, slots=True)
class HookWish:
    """What a hook has to be like. `url` with the endpoint; without `branch` it tells of pushes to every branch.
    `fingerprint`: of the secrets, as `fingerprint` makes it."""

    url: str
    secret: SecretStr | None
    signing: SecretStr | None
    fingerprint: str
    branch: str | None = None

    def attributes(self) -> dict[str, Any]:
        """As GitLab's interface has them."""
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
    """A hook as GitLab shows it. `status`: executable, temporarily_disabled, disabled, or None where it is not said.
    `fingerprint`: of the secrets that it was made with, None where it was not made by reposync."""

    id: int
    url: str
    branch: str | None
    push_events: bool
    status: str | None
    disabled_until: str | None
    fingerprint: str | None

    @property
    def is_ours(self) -> bool:
        """Whether it leads to a reposync, this one or another."""
        return urlsplit(self.url).path.endswith(ENDPOINT)


class GitLabHooks:
    """The hooks of one GitLab instance. Close it after use, which closes `server`. Every method raises SourceDenied,
    SourceGone, SourceUnavailable, SourceError."""

    def __init__(self, server: GitLabClient) -> None:
        self._server = server

    async def ensure(self, place: HookPlace, wish: HookWish, *, dry_run: bool = False) -> tuple[Action, Hook | None]:
        """Make `place` have the hook, and no second one. The one at the same address is changed, or one that was made
        with the same secrets, whose reposync has moved. Says what was done, or with `dry_run` what would be."""
        done = await self._call(place, partial(_ensure, place, wish, dry_run))
        if isinstance(done, _Unsigned):
            raise SourceError(
                f"{self._server.url} does not sign: it took no signing token for the hook of {place}.",
                remedy="That needs GitLab 19.0. Set `webhook_secret` of the server in place of `webhook_signing`.",
            )
        return done

    async def close(self) -> None:
        await self._server.close()

    async def _call(self, place: HookPlace, work: Callable[[gitlab.Gitlab], T]) -> T:
        try:
            return await self._server.call(
                "api_hooks", work, doing=f"Installing the webhook of {place} on {self._server.url}"
            )
        except HttpRefused as refused:
            raise await self._explained(refused, place) from refused

    async def _explained(self, refused: HttpRefused, place: HookPlace) -> SourceError:
        refusal = Refusal.of(refused)
        role = "Owner" if place.kind == "group" else "Maintainer"
        if refused.status == 403 and refusal.error == "insufficient_scope":
            return SourceDenied(
                f"The token for {self._server.url} lacks the scope api, which the webhooks of {place} want.",
                remedy="The daemon does not need it: give another token for this command alone (--token-variable).",
            )
        if refused.status == 403:
            return SourceDenied(
                f"The token for {self._server.url} may not change the webhooks of {place}.{refusal.quoted}",
                remedy=f"Its user needs the role {role} there.",
            )
        if refused.status == 404 and place.kind == "group" and await self._is_there(place):
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

    async def _is_there(self, place: HookPlace) -> bool:
        try:
            await self._server.call("api_group", partial(_look_at_group, place), doing=f"Looking for {place}")
        except (HttpRefused, SourceUnavailable):
            return False
        return True


def fingerprint(secret: SecretStr | None, signing: SecretStr | None) -> str:
    """Twelve letters that tell secrets apart. Every Maintainer sees them, so they are slow to make (some 50 ms):
    nobody is to find a secret by trying."""
    both = "\n".join(each.get_secret_value() if each else "" for each in (secret, signing))
    return hashlib.scrypt(both.encode(), salt=b"reposync webhook", n=2**14, r=8, p=1, dklen=6).hex()


# In a thread: calls of python-gitlab ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unsigned:
    """The hook would sign nothing, and has no other secret: it was taken away again."""


def _hooks(place: HookPlace, client: gitlab.Gitlab) -> Any:
    if place.kind == "group":
        return client.groups.get(place.path, lazy=True).hooks
    # By number: at the former path of a project that moved only GET is answered.
    number = place.number if place.number is not None else client.projects.get(place.path).id
    return client.projects.get(number, lazy=True).hooks


def _all(hooks: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in hooks.list(iterator=True, per_page=100):
        found.append(each.attributes)
        if len(found) >= MAX_HOOKS:
            break
    return found


def _ensure(
    place: HookPlace, wish: HookWish, dry_run: bool, client: gitlab.Gitlab
) -> tuple[Action, Hook | None] | _Unsigned:
    """One piece, so that repeating it after an answer was lost makes no second hook."""
    hooks = _hooks(place, client)
    found = _match(_all(hooks), wish)
    if found is None:
        if dry_run:
            return "created", None
        made = hooks.create(wish.attributes()).attributes
        if wish.signing and not wish.secret and not made.get("signing_token_present"):
            hooks.delete(made["id"])
            return _Unsigned()
        return "created", _hook(made)
    changes = _changes(found, wish)
    if not changes or dry_run:
        return "updated" if changes else "unchanged", _hook(found)
    if wish.signing and not wish.secret and "signing_token_present" not in found:
        return _Unsigned()
    changed = hooks.update(found["id"], changes)
    return "updated", _hook(changed)


def _look_at_group(place: HookPlace, client: gitlab.Gitlab) -> None:
    client.groups.get(place.path, lazy=True).projects.list(per_page=1, get_all=False)


def _match(found: list[dict[str, Any]], wish: HookWish) -> dict[str, Any] | None:
    for each in found:
        if each.get("url") == wish.url:
            return each
    for each in found:
        hook = _hook(each)
        # Not by name: another installation may have its hook here too, with secrets of its own.
        if hook.is_ours and hook.fingerprint == wish.fingerprint:
            return each
    return None


def _changes(found: Mapping[str, Any], wish: HookWish) -> dict[str, Any]:
    """All that is wished for where anything differs, the secrets included; nothing where all is well."""
    wanted = wish.attributes()
    different = [
        key
        for key in ("url", "push_events", "push_events_branch_filter", "enable_ssl_verification")
        if (found.get(key) or "") != wanted[key]
    ]
    others = {key: False for key, on in found.items() if key.endswith("_events") and key != "push_events" and on}
    template = {"custom_webhook_template": ""} if found.get("custom_webhook_template") else {}
    present = {"token_present": wish.secret, "signing_token_present": wish.signing}
    lost = any(key in found and bool(found[key]) != bool(secret) for key, secret in present.items())
    same_secrets = _hook(found).fingerprint == wish.fingerprint and not lost
    if same_secrets and not different and not others and not template:
        return {}
    return wanted | others | template


def _hook(shown: Mapping[str, Any]) -> Hook:
    made_with = _FINGERPRINT.search(str(shown.get("description") or ""))
    return Hook(
        id=int(shown["id"]),
        url=printable(str(shown.get("url") or "")),
        branch=shown.get("push_events_branch_filter") or None,
        push_events=bool(shown.get("push_events")),
        status=shown.get("alert_status"),
        disabled_until=shown.get("disabled_until"),
        fingerprint=made_with[1] if made_with else None,
    )
