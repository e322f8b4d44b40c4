"""Periodic discovery of the projects of groups: claims, listings, the changes of the registered repositories, results.

Nothing is removed from the database or an index: a repository whose project left is paused, with the reason. A listing
that fails changes nothing; one that is suddenly empty, lacks more than half, or is damaged pauses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from reposync.catalog.group_plan import (
    GROUP_RENUMBERED,
    GroupPlan,
    GroupView,
    Known,
    group_key,
    is_paused_by_group,
    pause_of,
    server_of,
)
from reposync.catalog.targets import GROUP, SyncTarget
from reposync.config.loading import checked_repository
from reposync.config.registry import Group, Registry
from reposync.config.schedule import Schedule
from reposync.errors import LeaseLost, RepoSyncError, StoreUnavailable
from reposync.outgoing import RequestObserver, RetryPolicy
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.gitlab_groups import GitLabGroup
from reposync.store.database import Database, Guard
from reposync.store.registry import (
    GroupRepositories,
    ProjectGroups,
    RegistrationsChanged,
    RepositoryChange,
)
from reposync.store.repository import Registration, Repository
from reposync.store.tables import ProjectGroup
from reposync.supervision import end, log_defect
from reposync.telemetry.health import Trouble

# Not structlog: unconfigured, as in a command, it writes to standard output.
log = logging.getLogger(__name__)

# Renewed every third of it. After the death of its worker the group is claimed by a different one that much later.
LEASE_SECONDS = 60.0
# Retry interval after an error that may pass.
RETRY_SECONDS = 300.0
# Timeout of the last write about a group during shutdown.
LAST_WRITE_SECONDS = 5.0
_LONGEST_RETRY_AFTER_SECONDS = 86_400.0
TRIES = 3


@dataclass(frozen=True, slots=True)
class DiscoveryReport:
    """The result of a discovery, by names of repositories. A `problem` needs a person; everything else was done."""

    listed: int
    projects: int
    """How many are registered and in the group."""
    added: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    """Former and new name."""
    kept_names: tuple[tuple[str, str], ...] = ()
    """Name and path of projects that are new or have moved, and whose path is the name of a different repository."""
    paused: tuple[tuple[str, str], ...] = ()
    """With the reason."""
    resumed: tuple[str, ...] = ()
    unchanged: int = 0
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Paths of projects that are not registered, by reason."""
    problem_code: str | None = None
    problem: str | None = None


@dataclass
class Discovery:
    """For one event loop. `worker`: name of the claims; `on_result` is called with the result of each group; `redact`
    removes secrets from messages."""

    database: Database
    worker: str
    observer: RequestObserver | None = None
    on_result: Callable[[Literal["ok", "failed"]], None] = lambda _: None
    retry: RetryPolicy | None = None
    redact: Callable[[str], str] = str
    lease_seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        self._groups = ProjectGroups(self.database)
        self._repositories = GroupRepositories(self.database)
        self._waits = Trouble("groups are discovered again")

    async def declare(self, registry: Registry) -> None:
        """Set the groups, and make each due at once. Repositories of groups that left the registry are deactivated.
        Raises StoreUnavailable."""
        keys = {group_key(registry, group) for group in registry.groups}
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
                claim = await self._groups.claim_due(self.worker, self.lease_seconds, among=groups)
                if claim is None:
                    break
                self._log_result(claim.key, await self._claimed(registry, groups[claim.key], claim))
                done += 1
        except StoreUnavailable as error:
            self._waits.met("groups cannot be discovered", str(error))
        else:
            self._waits.over()
        return done

    async def discover(self, registry: Registry, group: Group, *, approved: bool = False) -> DiscoveryReport:
        """Discover this group now for a person who waits, also if it is not due or a different pod has it; nothing is
        logged. `approved`: the person confirms the listing, however much it lacks.

        Raises what a source raises (before any change), StoreUnavailable, and LeaseLost if a different person discovers
        it too.
        """
        claim = await self._groups.claim(group_key(registry, group), self.worker, self.lease_seconds)
        ended = await self._claimed(registry, group, claim, approved=approved)
        if isinstance(ended, RepoSyncError):
            raise ended
        return ended

    async def _claimed(
        self, registry: Registry, group: Group, claim: ProjectGroup, *, approved: bool = False
    ) -> DiscoveryReport | RepoSyncError:
        """Raises StoreUnavailable."""
        schedule = Schedule.parse(group.discover, group.timezone or registry.defaults.timezone)
        problem: str | None
        code: str | None
        heartbeat = asyncio.create_task(self._renew(claim), name=f"heartbeat of group {claim.key}")
        try:
            report = await self._discover(registry, group, claim, approved=approved)
        except asyncio.CancelledError:
            with contextlib.suppress(RepoSyncError, TimeoutError):
                await asyncio.wait_for(self._groups.release(claim), LAST_WRITE_SECONDS)
            raise
        except LeaseLost as error:
            return error.without_traceback()
        except Exception as error:  # noqa: BLE001 - a defect ends this try, never the daemon
            if not isinstance(error, RepoSyncError):
                error = RepoSyncError(log_defect(f"a defect ended the discovery of group {claim.key}", error))
            ended: DiscoveryReport | RepoSyncError = error.without_traceback()
            within, after = RETRY_SECONDS if error.retryable else None, error.retry_after_seconds
            projects, code, problem = None, error.code, str(error)
        else:
            ended, within, after = report, None, None
            projects, code, problem = report.projects, report.problem_code, report.problem
        finally:
            await end(heartbeat)
        self.on_result("failed" if problem else "ok")
        message = self.redact(problem) if problem else None
        due = partial(_due, schedule, within, after)
        await self._groups.record(claim, due, projects=projects, error_code=code, error_message=message)
        return ended

    async def _renew(self, claim: ProjectGroup) -> None:
        """Until cancelled. A claim that is lost is noticed by the next write, each of which requires it."""
        while True:
            await asyncio.sleep(self.lease_seconds / 3)
            with contextlib.suppress(RepoSyncError):
                await self._groups.renew(claim, self.lease_seconds)

    async def _discover(
        self, registry: Registry, group: Group, claim: ProjectGroup, *, approved: bool
    ) -> DiscoveryReport:
        gitlab = GitLabClient(server_of(registry, group), retry=self.retry, observer=self.observer)
        source = GitLabGroup(gitlab, group.group)
        guard = partial(self._groups.require_held, claim)
        is_second = claim.error_code == GROUP_RENUMBERED
        try:
            listing = await source.projects(archived=group.archived)
            if not listing.faults and (await self._view(registry, group)).lacks(listing.projects):
                # A project that is deleted between two pages hides the next one: a second listing has it.
                listing = listing.joined(await source.projects(archived=group.archived))
            tries = 0
            while True:
                view = await self._view(registry, group)
                plan = await asyncio.to_thread(view.plan, listing, approved=approved, confirmed=is_second)
                await self._groups.renew(claim, self.lease_seconds)
                try:
                    return await self._follow(registry, view, plan, guard)
                except RegistrationsChanged:
                    tries += 1
                    if tries == TRIES:
                        raise
        finally:
            await source.close()

    async def _view(self, registry: Registry, group: Group) -> GroupView:
        return await asyncio.to_thread(GroupView, registry, group, await self._repositories.list())

    async def _follow(self, registry: Registry, view: GroupView, plan: GroupPlan, guard: Guard) -> DiscoveryReport:
        """Safe to repeat, and to abandon at any await. Raises RegistrationsChanged if the view is outdated (before any
        change), and what the guard raises."""
        lefts = {each.row.id: each.left for each in plan.known}
        changes = [change for each in plan.known if (change := _change(each)).values]
        await self._repositories.apply_changes(changes, guard=guard)

        changed = {change.before.id: change.values for change in changes}
        present = [each for each in plan.known if each.project is not None]
        rows = {each.name: each.row.model_copy(update=changed.get(each.row.id, {})) for each in present}
        # Takes a second for a thousand projects.
        registrations = await asyncio.to_thread(_registrations, registry, view, plan, rows)
        await self._repositories.register_all(registrations, guard=guard)
        again = [rows[each.name] for each in registrations if each.name in rows]
        touched = {*changed, *(row.id for row in again)}
        code, problem = plan.problem or (None, None)
        paused = [each for each in changes if each.values.get("is_active") is False]
        resumed = [each.name for each in changes if each.values.get("is_active")]
        return DiscoveryReport(
            listed=plan.listed,
            projects=len(plan.new) + sum(each.left is None for each in present),
            added=tuple(plan.new),
            renamed=tuple((each.before.name, each.name) for each in changes if each.name != each.before.name),
            kept_names=tuple(_kept_names(view, plan)),
            paused=tuple(
                (each.name, str(lefts[each.before.id])) for each in paused if not is_paused_by_group(each.before)
            ),
            resumed=(*resumed, *(row.name for row in again if row.has_left)),
            unchanged=sum(each.row.id not in touched for each in present),
            skipped={reason: tuple(paths) for reason, paths in plan.skipped.items()},
            problem_code=code,
            problem=problem,
        )

    def _log_result(self, key: str, ended: DiscoveryReport | RepoSyncError) -> None:
        """Used if nobody waits for the report."""
        if isinstance(ended, LeaseLost):
            log.info("a different worker discovers the group", extra={"group": key})
        elif isinstance(ended, RepoSyncError):
            fields = {"group": key, "reason": str(ended), "code": ended.code}
            log.warning("group could not be discovered", extra=fields)
        else:
            _log_report(key, ended)
            if ended.problem:
                fields = {"group": key, "reason": ended.problem, "code": str(ended.problem_code)}
                log.warning("a group needs a person", extra=fields)


def _due(schedule: Schedule, within_seconds: float | None, retry_after: float | None, now: datetime) -> datetime:
    """`retry_after`: requested by the server, at most a day."""
    earliest = now + timedelta(seconds=min(retry_after or 0.0, _LONGEST_RETRY_AFTER_SECONDS))
    tick = schedule.next_after(now)
    due = tick if within_seconds is None else min(tick, now + timedelta(seconds=within_seconds))
    return max(due, earliest)


def _log_report(key: str, report: DiscoveryReport) -> None:
    for former, name in report.renamed:
        log.info("repository renamed", extra={"group": key, "repository": name, "former": former})
    for name, path in report.kept_names:
        log.warning("a different repository has the name", extra={"group": key, "repository": name, "project": path})
    for name, reason in report.paused:
        log.warning("repository paused", extra={"group": key, "repository": name, "reason": reason})
    figures: dict[str, object] = {"listed": report.listed, "projects": report.projects}
    figures |= {each: len(getattr(report, each)) for each in ("added", "renamed", "kept_names", "paused", "resumed")}
    figures["skipped"] = {reason: len(paths) for reason, paths in report.skipped.items()}
    log.info("group discovered", extra={"group": key, **figures})


def _registrations(
    registry: Registry, view: GroupView, plan: GroupPlan, rows: Mapping[str, Repository]
) -> list[Registration]:
    """Of new projects, and of known ones whose settings changed. `rows`: known ones, by name."""
    found = []
    known = {each.name: each.project for each in plan.known if each.project is not None}
    for name, project in {**plan.new, **known}.items():
        definition = view.group.definition(name, project.path)
        resolved = checked_repository(registry, definition)
        target = SyncTarget(resolved, GROUP, definition=definition, group_key=view.key)
        registration = target.registration().model_copy(update={"project_id": project.id})
        # If its group had left the registry file, registering it activates it again.
        if registration.differs_from(rows.get(name)):
            found.append(registration)
    return found


def _change(known: Known) -> RepositoryChange:
    renamed = {} if known.name == known.row.name else {"name": known.name}
    return RepositoryChange(known.row, renamed | pause_of(known))


def _kept_names(view: GroupView, plan: GroupPlan) -> Iterator[tuple[str, str]]:
    for name, new in plan.new.items():
        if name != new.path:
            yield name, new.path
    for known in plan.known:
        project = known.project
        if project is not None and known.name != project.path and known.row.location != view.address(project.path):
            yield known.name, project.path
