"""Which projects and groups get a webhook, and what it has to be like, for the repositories that are registered."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import SecretStr

from reposync.app.application import Application
from reposync.catalog.targets import Target
from reposync.config.registry import GitLabInstance
from reposync.errors import ConfigError, RepoSyncError, SourceError, UsageError
from reposync.sources.gitlab_hooks import ENDPOINT, GitLabHooks, Hook, HookPlace, HookWish, fingerprint
from reposync.sources.spec import Timeouts
from reposync.store.repositories import Repository
from reposync.store.repository import is_registered

T = TypeVar("T")

Done = Literal["created", "updated", "unchanged", "removed", "none", "failed"]


@dataclass(frozen=True, slots=True)
class HookSite:
    """A project or group of a server, the registered repositories that it is about, and the one branch of all of them;
    None where there are several, or where it is the default branch, which may become another one."""

    server: GitLabInstance
    place: HookPlace
    repositories: tuple[str, ...] = ()
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class HookReport:
    """What was done at a site, or would be, or what went wrong there."""

    site: HookSite
    done: Done
    hook: Hook | None = None
    error: RepoSyncError | None = None

    def as_json(self) -> dict[str, Any]:
        hook, error = self.hook, self.error
        return {
            "gitlab": self.site.server.name,
            self.site.place.kind: self.site.place.path,
            "repositories": list(self.site.repositories),
            "done": self.done,
            "hook_id": hook.id if hook else None,
            "url": hook.url if hook else None,
            "error_code": error.code if error else None,
            "error_message": str(error) if error else None,
        }


@dataclass(frozen=True, slots=True)
class FoundHook:
    """A hook that leads to a reposync. `secret`: whether it was made with the server's present secrets (`current`),
    with others (`other`), or nobody can say (`unknown`)."""

    site: HookSite
    hook: Hook
    secret: Literal["current", "other", "unknown"]

    def as_json(self) -> dict[str, Any]:
        return {
            "gitlab": self.site.server.name,
            self.site.place.kind: self.site.place.path,
            "repositories": list(self.site.repositories),
            "hook_id": self.hook.id,
            "url": self.hook.url,
            "branch": self.hook.branch,
            "push_events": self.hook.push_events,
            "status": self.hook.status,
            "disabled_until": self.hook.disabled_until,
            "secret": self.secret,
        }


def endpoint(url: str) -> str:
    """The hook's address behind reposync's own. Raises UsageError for what GitLab could not call."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no http:// or https:// address.", remedy="Give the one that GitLab reaches.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("The address must have no user, password, ? or #: everybody who sees the hook sees them.")
    base = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    return base if base.endswith(ENDPOINT) else base + ENDPOINT


def is_open(url: str) -> bool:
    """Whether the secret would go over a network in the clear."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True


async def project_sites(app: Application, names: Sequence[str]) -> list[HookSite]:
    """The projects of the repositories of these names, or of all. Raises RepositoryNotFound, UsageError."""
    rows = {row.name: row for row in await app.repositories.list()}
    known = {target.name: target for target in _targets(app, rows.values())}
    for name in names:
        if name not in known:
            await app.catalog.find(name)  # says that it is not registered, and which one is near
        if name not in known or known[name].repository.gitlab is None:
            raise UsageError(f"{name!r} is no project of a GitLab server of the registry, which could have a webhook.")
    together: dict[tuple[str, int | str], list[Target]] = {}
    for name in sorted(known):
        target = known[name]
        if target.repository.gitlab is not None and target.repository.project is not None:
            number = rows[name].project_id if name in rows else None
            key = (target.repository.gitlab.url, number or target.repository.project.lower())
            together.setdefault(key, []).append(target)
    sites = [_site(key[1], targets) for key, targets in together.items()]
    return [site for site in sites if not names or set(names) & set(site.repositories)]


def group_site(app: Application, group: str, server_name: str | None) -> HookSite:
    """Of the group with that path, which need not be in the registry. Raises UsageError."""
    registry = app.configuration.registry
    path = group.strip("/")
    names = [each.gitlab for each in registry.groups if each.group.lower() == path.lower()]
    names = [server_name] if server_name else names or [each.name for each in registry.gitlab]
    servers = [each for each in registry.gitlab if each.name in names]
    if not servers:
        raise UsageError(
            f"The registry has no GitLab server {server_name!r}."
            if server_name
            else "The registry has no GitLab server."
        )
    if len(servers) > 1:
        raise UsageError(f"Group {path} may be on {' or '.join(names)}.", remedy="Say which one with --gitlab.")
    return HookSite(servers[0], HookPlace("group", path))


def check_secrets(sites: Sequence[HookSite]) -> None:
    """Raises ConfigError where a server has no secret: its deliveries could not be told from a stranger's."""
    for site in sites:
        if site.server.webhook_secret is None and site.server.webhook_signing is None:
            raise ConfigError(
                f"The server {site.server.name!r} has no secret for webhooks.",
                remedy="Set `webhook_secret` under `gitlab` in the registry file; `openssl rand -hex 32` makes one.",
            )


async def install(
    sites: Sequence[HookSite], url: str, *, token: SecretStr | None = None, dry_run: bool = False
) -> list[HookReport]:
    """Give each site its hook; `url` with the endpoint. What fails at one site is in its report, and stops no other.
    `token`: in place of the servers' own, which need not be allowed to do this. Raises ConfigError."""
    check_secrets(sites)
    prints = await asyncio.to_thread(_fingerprints, sites)

    async def do(hooks: GitLabHooks, site: HookSite) -> HookReport:
        server = site.server
        wish = HookWish(url, server.webhook_secret, server.webhook_signing, prints[server.name], site.branch)
        action, hook = await hooks.ensure(site.place, wish, dry_run=dry_run)
        return HookReport(site, action, hook)

    return await _everywhere(sites, token, do, _failed)


async def remove(
    sites: Sequence[HookSite], url: str, *, token: SecretStr | None = None, dry_run: bool = False
) -> list[HookReport]:
    """Take the hooks at `url` away, as `install` makes them."""

    async def do(hooks: GitLabHooks, site: HookSite) -> HookReport:
        gone = await hooks.remove(site.place, url, dry_run=dry_run)
        return HookReport(site, "removed" if gone else "none", gone[0] if gone else None)

    return await _everywhere(sites, token, do, _failed)


async def found_hooks(
    sites: Sequence[HookSite], *, token: SecretStr | None = None
) -> tuple[list[FoundHook], list[HookReport]]:
    """The hooks that lead to a reposync, and the sites that could not be asked."""
    prints = await asyncio.to_thread(_fingerprints, sites)

    async def do(hooks: GitLabHooks, site: HookSite) -> list[FoundHook] | HookReport:
        found = await hooks.found(site.place)
        return [FoundHook(site, each, _secret(each, prints[site.server.name])) for each in found]

    answers = await _everywhere(sites, token, do, _failed)
    found = [each for answer in answers if isinstance(answer, list) for each in answer]
    return found, [answer for answer in answers if isinstance(answer, HookReport)]


def _failed(site: HookSite, error: RepoSyncError) -> HookReport:
    return HookReport(site, "failed", error=error)


def _secret(hook: Hook, present: str) -> Literal["current", "other", "unknown"]:
    if hook.fingerprint is None:
        return "unknown"
    return "current" if hook.fingerprint == present else "other"


def _fingerprints(sites: Sequence[HookSite]) -> dict[str, str]:
    servers = {site.server.name: site.server for site in sites}
    return {name: fingerprint(each.webhook_secret, each.webhook_signing) for name, each in servers.items()}


def _targets(app: Application, rows: Iterable[Repository]) -> list[Target]:
    """Of what is registered and may be synced."""
    found = []
    for row in rows:
        if is_registered(row) and not row.has_left:
            with suppress(RepoSyncError):  # its server left the registry
                found.append(app.catalog.of_row(row))
    return found


def _site(key: int | str, targets: Sequence[Target]) -> HookSite:
    first = targets[0].repository
    assert first.gitlab is not None and first.project is not None  # noqa: S101 - asked for by the caller
    branches = {target.repository.branch for target in targets}
    return HookSite(
        first.gitlab,
        HookPlace("project", first.project, key if isinstance(key, int) else None),
        tuple(target.name for target in targets),
        branches.pop() if len(branches) == 1 else None,
    )


async def _everywhere(
    sites: Sequence[HookSite],
    token: SecretStr | None,
    do: Callable[[GitLabHooks, HookSite], Awaitable[T]],
    failed: Callable[[HookSite, RepoSyncError], T],
) -> list[T]:
    """At each site, in their order; as many at a time as a client of GitLab allows itself."""
    async with AsyncExitStack() as stack:
        clients: dict[str, GitLabHooks] = {}
        for site in sites:
            if site.server.name not in clients:
                clients[site.server.name] = _client(site.server, token)
                stack.push_async_callback(clients[site.server.name].close)

        async def at(site: HookSite) -> T:
            try:
                return await do(clients[site.server.name], site)
            except SourceError as error:
                return failed(site, error)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(at(site)) for site in sites]
        return [task.result() for task in tasks]


def _client(server: GitLabInstance, token: SecretStr | None) -> GitLabHooks:
    timeouts = Timeouts(server.connect_timeout_seconds, server.read_timeout_seconds)
    return GitLabHooks(server.url, token=token or server.token, ca_file=server.ca_file, timeouts=timeouts)
