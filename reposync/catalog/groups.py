"""Periodic discovery of the projects of groups: claims, schedules and results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from reposync.catalog.group_follow import DiscoveryReport, Follower, examine
from reposync.catalog.group_plan import group_key, server_of
from reposync.catalog.targets import GROUP
from reposync.clock import elapsed_seconds
from reposync.config.registry import Group, Registry
from reposync.config.schedule import Schedule
from reposync.errors import LeaseLost, RepoSyncError, StoreUnavailable, first_error
from reposync.outgoing import RequestObserver, RetryPolicy
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.gitlab_groups import GitLabGroup
from reposync.store.database import Database
from reposync.store.project_groups import GroupClaim, GroupRepositories, ProjectGroups, RegistrationsChanged
from reposync.store.versions import Versions
from reposync.supervision import log_defect
from reposync.sync.lease import Lease
from reposync.telemetry.health import Trouble
from reposync.vectors.port import Index

# Not structlog: unconfigured, as in a command, it writes to standard output.
log = logging.getLogger(__name__)

# Renewed every third of it. After the death of its worker the group is claimed by a different one that much later.
LEASE_SECONDS = 60.0
# Retry interval after an error that may pass.
RETRY_SECONDS = 300.0
# Retry interval while a running sync blocks the rename in the index.
UNSETTLED_SECONDS = 60.0
# Timeout of the last write about a group during shutdown.
LAST_WRITE_SECONDS = 5.0
_LONGEST_RETRY_AFTER_SECONDS = 86_400.0
TRIES = 3


class Discovery:
    """For one event loop. `index` opens a collection, only after a change of names; `worker`: name of the claims;
    `on_result` is called with the result of each group; `redact` removes secrets from messages."""

    def __init__(
        self,
        database: Database,
        index: Callable[[str], Index],
        worker: str,
        *,
        observer: RequestObserver | None = None,
        on_result: Callable[[Literal["ok", "failed"]], None] = lambda _: None,
        retry: RetryPolicy | None = None,
        redact: Callable[[str], str] = str,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._groups = ProjectGroups(database)
        self._repositories = GroupRepositories(database)
        self._versions = Versions(database)
        self._index = index
        self._worker = worker
        self._observer = observer
        self._on_result = on_result
        self._retry = retry
        self._redact = redact
        self._lease_seconds = lease_seconds
        self._waits = Trouble("groups are discovered again")
        self._troubles: dict[str, Trouble] = {}

    async def declare(self, registry: Registry) -> None:
        """Set the groups, and make each due at once. Repositories of groups that left the registry are deactivated.
        Raises StoreUnavailable."""
        keys = {group_key(registry, group) for group in registry.groups}
        self._troubles = {key: each for key, each in self._troubles.items() if key in keys}
        await self._groups.declare(keys)
        await self._groups.forget(keys)
        for row in await self._repositories.list():
            if row.origin == GROUP and row.group_key not in keys and row.is_active:
                await self._repositories.deactivate(row.name)

    async def run_due(self, registry: Registry) -> int:
        """Discover the groups that are due and not claimed by a different pod, one by one; returns how many. Results
        are written to the group's row and the log. Raises only CancelledError."""
        groups = {group_key(registry, group): group for group in registry.groups}
        done = 0
        try:
            while groups:
                since = elapsed_seconds()
                claim = await self._groups.claim_due(self._worker, self._lease_seconds, among=groups)
                if claim is None:
                    break
                self._log_result(claim.key, await self._claimed(registry, groups[claim.key], claim, since))
                done += 1
        except StoreUnavailable as error:
            self._waits.met("groups cannot be discovered", str(error))
        else:
            self._waits.over()
        return done

    async def discover(self, registry: Registry, group: Group, *, approved: bool = False) -> DiscoveryReport:
        """Discover this group now for a person who waits, also if it is not due or a different pod has it; nothing is
        logged. `approved`: the person confirms the listing, however much it lacks.

        Raises what a source raises (before any change), StoreUnavailable, VectorIndexError (changed names are in the
        registry then, and in the index after the next discovery), and LeaseLost if a different person discovers it too.
        """
        key = group_key(registry, group)
        since = elapsed_seconds()
        claim = await self._groups.claim(key, self._worker, self._lease_seconds)
        ended = await self._claimed(registry, group, claim, since, approved=approved)
        if isinstance(ended, RepoSyncError):
            raise ended
        return ended

    async def _claimed(
        self, registry: Registry, group: Group, claim: GroupClaim, since: float, *, approved: bool = False
    ) -> DiscoveryReport | RepoSyncError:
        """`since`: when the claim was requested (`elapsed_seconds`). Raises StoreUnavailable."""
        schedule = Schedule.parse(group.discover, group.timezone or registry.defaults.timezone)
        try:
            async with self._renewed(claim, since):
                report = await self._discover(registry, group, claim, approved=approved)
        except asyncio.CancelledError:
            with contextlib.suppress(RepoSyncError, TimeoutError):
                await asyncio.wait_for(self._groups.release(claim), LAST_WRITE_SECONDS)
            raise
        except LeaseLost as error:
            return error
        except Exception as error:  # noqa: BLE001 - a defect ends this try, never the daemon
            known = _known(error, claim.key)
            self._on_result("failed")
            await self._groups.record(
                claim,
                lambda now: _due(schedule, now, RETRY_SECONDS if known.retryable else None, known.retry_after_seconds),
                error_code=known.code,
                error_message=self._redact(str(known)),
            )
            return known
        self._on_result("failed" if report.problem else "ok")
        await self._groups.record(
            claim,
            lambda now: _due(schedule, now, UNSETTLED_SECONDS if report.unsettled else None),
            projects=report.projects,
            error_code=report.problem_code,
            error_message=None if report.problem is None else self._redact(report.problem),
        )
        return report

    @contextlib.asynccontextmanager
    async def _renewed(self, claim: GroupClaim, since: float) -> AsyncGenerator[None, None]:
        """Renew the claim during the body. Raises LeaseLost within the body if that fails."""
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                heartbeat = tasks.create_task(self._renew(claim, since), name=f"heartbeat of group {claim.key}")
                yield
                heartbeat.cancel()
        except ExceptionGroup as errors:
            failure = first_error(errors)
        if failure is not None:
            raise failure

    async def _renew(self, claim: GroupClaim, since: float) -> None:
        lease = Lease(self._lease_seconds, since=since)
        while True:
            await asyncio.sleep(max(0.0, min(self._lease_seconds / 3, lease.remaining_seconds())))
            since = elapsed_seconds()
            try:
                async with asyncio.timeout(self._lease_seconds / 3):
                    await self._groups.renew(claim, self._lease_seconds)
                lease.extend(self._lease_seconds, since=since)
            except (StoreUnavailable, TimeoutError):
                lease.check()

    async def _discover(
        self, registry: Registry, group: Group, claim: GroupClaim, *, approved: bool
    ) -> DiscoveryReport:
        gitlab = GitLabClient.configured(server_of(registry, group), retry=self._retry, observer=self._observer)
        source = GitLabGroup(gitlab, group.group)
        guard = partial(self._groups.require_held, claim)
        follower = Follower(registry, self._repositories, self._versions, self._index, guard)
        try:
            listing = await source.projects(archived=group.archived)
            for tries_left in reversed(range(TRIES)):
                view = await follower.view(group)
                examined = await examine(view, source, listing, approved=approved)
                await self._groups.renew(claim, self._lease_seconds)
                try:
                    report = await follower.follow(view, examined)
                    break
                except RegistrationsChanged:
                    if not tries_left:
                        raise
        finally:
            await source.close()
        return await follower.settled(group, report)

    def _log_result(self, key: str, ended: DiscoveryReport | RepoSyncError) -> None:
        """Used if nobody waits for the report."""
        trouble = self._troubles.setdefault(key, Trouble("the group has no problem any more"))
        if isinstance(ended, LeaseLost):
            log.info("a different worker discovers the group", extra={"group": key})
        elif isinstance(ended, RepoSyncError):
            trouble.met("group could not be discovered", str(ended), group=key, code=ended.code)
        else:
            _log_report(key, ended)
            if ended.problem:
                trouble.met("a group needs a person", ended.problem, group=key, code=ended.problem_code)
            else:
                trouble.over(group=key)


def _due(schedule: Schedule, now: datetime, within_seconds: float | None, retry_after: float | None = None) -> datetime:
    """`retry_after`: requested by the server, at most a day."""
    earliest = now + timedelta(seconds=min(retry_after or 0.0, _LONGEST_RETRY_AFTER_SECONDS))
    tick = schedule.next_after(now)
    due = tick if within_seconds is None else min(tick, now + timedelta(seconds=within_seconds))
    return max(due, earliest)


def _known(error: Exception, key: str) -> RepoSyncError:
    """The error, or for a defect a sentence with an id that is in the log too."""
    if isinstance(error, RepoSyncError):
        return error
    return RepoSyncError(log_defect(f"a defect ended the discovery of group {key}", error))


def _log_report(key: str, report: DiscoveryReport) -> None:
    def say(level: int, event: str, **fields: object) -> None:
        log.log(level, event, extra={"group": key, **fields})

    for name in report.added:
        say(logging.DEBUG, "repository registered", repository=name)
    for former, name in report.renamed:
        say(logging.INFO, "repository renamed", repository=name, former=former)
    for name, reason in report.paused:
        say(logging.WARNING, "repository paused", repository=name, reason=reason)
    for name in report.resumed:
        say(logging.INFO, "repository resumed", repository=name)
    figures: dict[str, object] = {
        "listed": report.listed,
        "projects": report.projects,
        "added": len(report.added),
        "renamed": len(report.renamed),
        "paused": len(report.paused),
        "resumed": len(report.resumed),
        "skipped": {reason: len(paths) for reason, paths in report.skipped.items()},
    }
    say(logging.INFO, "group discovered", **figures)
