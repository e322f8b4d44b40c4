"""Installing GitLab webhooks for registered repositories or for a group."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from reposync.app.application import Application
from reposync.catalog.targets import SyncTarget
from reposync.config.registry import GitLabInstance
from reposync.errors import ConfigError, RepoSyncError, SourceError, UsageError
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.gitlab_hooks import ENDPOINT, GitLabHooks, Hook, HookPlace, HookWish, fingerprint
from reposync.store.repository import Repository, is_registered

Done = Literal["created", "updated", "unchanged", "failed"]


@dataclass(frozen=True, slots=True)
class HookSite:
    """A project or group of a server, and its registered repositories. `branch` is the one that all of them index; None
    if there are several, or if it is the default branch, which may change."""

    server: GitLabInstance
    place: HookPlace
    repositories: tuple[str, ...] = ()
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class HookReport:
    """The result at one site; with `dry_run`, what the result would be."""

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


def endpoint(url: str) -> str:
    """The hook's URL, from the URL of reposync. Raises UsageError for a URL that GitLab cannot call."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{url!r} is no http:// or https:// address.", remedy="Give the address at which GitLab reaches reposync."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError("The address must not contain a user, password, ? or #: they are visible in GitLab.")
    base = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    return base if base.endswith(ENDPOINT) else base + ENDPOINT


def is_open(url: str) -> bool:
    """Whether the secret would be sent over a network unencrypted."""
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
            await app.catalog.find(name)  # raises RepositoryNotFound with the nearest name
        if name not in known or known[name].repository.gitlab is None:
            raise UsageError(f"{name!r} is not a project of a configured GitLab server.")
    together: dict[tuple[str, int | str], list[SyncTarget]] = {}
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
    """Raises ConfigError if a server has no secret: its deliveries could not be authenticated."""
    for site in sites:
        if site.server.webhook_secret is None and site.server.webhook_signing is None:
            raise ConfigError(
                f"The server {site.server.name!r} has no secret for webhooks.",
                remedy="Set `webhook_secret` under `gitlab` in the registry file; `openssl rand -hex 32` makes one.",
            )


async def install(
    sites: Sequence[HookSite], url: str, *, token: SecretStr | None = None, dry_run: bool = False
) -> list[HookReport]:
    """Create or update the hook of each site, in order; `url` includes the endpoint. A failure at one site is in its
    report and does not stop the others. `token` replaces the servers' own tokens. Raises ConfigError."""
    check_secrets(sites)
    servers = {site.server.name: site.server for site in sites}
    async with AsyncExitStack() as stack:
        clients: dict[str, GitLabHooks] = {}
        fingerprints: dict[str, str] = {}
        for name, server in servers.items():
            clients[name] = GitLabHooks(GitLabClient.configured(server, token=token))
            stack.push_async_callback(clients[name].close)
            secrets = server.webhook_secret, server.webhook_signing
            fingerprints[name] = await asyncio.to_thread(fingerprint, *secrets)

        async def install_at(site: HookSite) -> HookReport:
            server = site.server
            wish = HookWish(url, server.webhook_secret, server.webhook_signing, fingerprints[server.name], site.branch)
            try:
                action, hook = await clients[server.name].ensure(site.place, wish, dry_run=dry_run)
            except SourceError as error:
                return HookReport(site, "failed", error=error)
            return HookReport(site, action, hook)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(install_at(site)) for site in sites]
        return [task.result() for task in tasks]


def _targets(app: Application, rows: Iterable[Repository]) -> list[SyncTarget]:
    """Targets of the registered repositories that are still in the configuration."""
    found = []
    for row in rows:
        if is_registered(row) and not row.has_left:
            with suppress(RepoSyncError):  # its server left the registry
                found.append(app.catalog.of_row(row))
    return found


def _site(key: int | str, targets: Sequence[SyncTarget]) -> HookSite:
    first = targets[0].repository
    assert first.gitlab is not None and first.project is not None  # noqa: S101 - asked for by the caller
    branches = {target.repository.branch for target in targets}
    return HookSite(
        first.gitlab,
        HookPlace("project", first.project, key if isinstance(key, int) else None),
        tuple(target.name for target in targets),
        branches.pop() if len(branches) == 1 else None,
    )
