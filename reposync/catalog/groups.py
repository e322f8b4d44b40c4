"""Periodic discovery of the projects of groups: what is due, listings, the changes of the registered repositories.

Nothing is removed from the database or an index: a repository whose project left is paused, with the reason. A listing
that fails, is suddenly empty or lacks more than half changes nothing; one that is damaged pauses nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from reposync.catalog.group_entries import deactivate_left, definition_of, server_of
from reposync.catalog.group_plan import GroupPlan, is_paused_by_group, pause_reason, plan_of
from reposync.config.registry import Registry
from reposync.config.schedule import Schedule
from reposync.errors import ConfigError, RepositoryChanged, RepoSyncError, StoreUnavailable
from reposync.outgoing import RequestObserver, RetryPolicy
from reposync.sources.gitlab_client import GitLabClient
from reposync.sources.gitlab_groups import GitLabGroup
from reposync.store.database import Database, Guard
from reposync.store.registry import ProjectGroups
from reposync.store.repositories import Repositories
from reposync.store.tables import ProjectGroup
from reposync.supervision import log_defect
from reposync.telemetry.health import Trouble

# Not structlog: unconfigured, as in a command, it writes to standard output.
log = logging.getLogger(__name__)

# When a group is due again after an error that may pass, and after the death of the process that took it.
RETRY_SECONDS = 300.0
_LONGEST_RETRY_AFTER_SECONDS = 86_400.0
# Registrations of a transaction, during which nothing else is written to SQLite: they take half a second.
_BATCH = 200


@dataclass(frozen=True, slots=True)
class DiscoveryReport:
    """The result of a discovery, by names of repositories. A `problem` needs a person; everything else was done."""

    listed: int
    projects: int = 0
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
    """For one event loop. `on_result` is called with the result of each group that was due."""

    database: Database
    observer: RequestObserver | None = None
    on_result: Callable[[Literal["ok", "failed"]], None] = lambda _: None
    retry: RetryPolicy | None = None

    def __post_init__(self) -> None:
        self._groups = ProjectGroups(self.database)
        self._repositories = Repositories(self.database)
        self._waits = Trouble("groups are discovered again")

    async def list_again(self) -> None:
        """Make each group due at once: servers, defaults and secrets may be different. Raises StoreUnavailable."""
        await self._groups.make_due()
        await deactivate_left(self.database)

    async def run_due(self, registry: Registry) -> int:
        """Discover the groups that are due, one by one; returns how many. Results are logged. Raises only
        CancelledError."""
        done = 0
        try:
            while (due := await self._groups.take(RETRY_SECONDS)) is not None:
                await self._discover_due(registry, due)
                done += 1
        except StoreUnavailable as error:
            self._waits.met("groups cannot be discovered", str(error))
        else:
            self._waits.over()
        return done

    async def _discover_due(self, registry: Registry, due: ProjectGroup) -> None:
        """Raises StoreUnavailable."""
        key = due.key
        within: float | None = None
        retry_after: float | None = None
        problem: str | None
        try:
            report = await self.discover(registry, due, guard=self._groups.guard(key))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a defect ends this try, never the daemon
            if not isinstance(error, RepoSyncError):
                error = RepoSyncError(log_defect(f"a defect ended the discovery of group {key}", error))
            again = error.retryable or isinstance(error, RepositoryChanged)
            within, retry_after = RETRY_SECONDS if again else None, error.retry_after_seconds
            problem = str(error)
            fields = {"group": key, "reason": problem, "code": error.code}
            log.warning("group could not be discovered", extra=fields)
        else:
            problem = report.problem
            _log_report(key, report)
        self.on_result("failed" if problem else "ok")
        try:
            group = definition_of(due)
        except ConfigError:  # which was logged; it is due again in RETRY_SECONDS, maybe for a newer version
            return
        schedule = Schedule.parse(group.discover, group.timezone or registry.defaults.timezone, key)
        await self._groups.schedule(due, _due(schedule, within, retry_after, self._groups.now()))

    async def discover(
        self, registry: Registry, row: ProjectGroup, *, approved: bool = False, guard: Guard | None = None
    ) -> DiscoveryReport:
        """Discover the group of this row now; nothing is logged. `approved`: a person confirms the listing, however
        much it lacks. `guard`: of each transaction that registers projects.

        Safe to repeat, to abandon at any await, and to do twice at a time. Raises what a source raises (before any
        change), StoreUnavailable, and RepositoryChanged for a repository that was changed meanwhile.
        """
        group = definition_of(row)
        gitlab = GitLabClient(server_of(registry, group), retry=self.retry, observer=self.observer)
        source = GitLabGroup(gitlab, group.group)
        try:
            listing = await source.projects(archived=group.archived)
            rows = await self._repositories.list()
            listed = {project.id for project in listing.projects}
            if not listing.faults and any(
                member.is_active and member.group_key == row.key and member.project_id not in listed for member in rows
            ):
                # A project that is deleted between two pages hides the next one: a second listing has it.
                listing = listing.joined(await source.projects(archived=group.archived))
        finally:
            await source.close()
        groups = [definition_of(other) for other in await self._groups.all() if other.definition is not None]
        # Takes a second for a thousand projects.
        plan = await asyncio.to_thread(plan_of, registry, row.key, group, groups, rows, listing, approved=approved)
        return await self._follow(plan, guard)

    async def _follow(self, plan: GroupPlan, guard: Guard | None) -> DiscoveryReport:
        listed = [member for member in plan.members if member.registration is not None]
        renamed = [(member.row, member.name) for member in listed if member.row and member.row.name != member.name]
        for former, name in renamed:
            await self._repositories.rename(former, name)
        changed = {
            member.name: member.registration
            for member in listed
            if member.registration is not None and member.registration.differs_from(member.row)
        }
        registrations = list(changed.values())
        for start in range(0, len(registrations), _BATCH):
            await self._repositories.register_all(registrations[start : start + _BATCH], guard=guard)
        rows = {row.name: row for row in await self._repositories.list()}
        paused, resumed = [], []
        for member in plan.members:
            if (row := rows.get(member.name)) is None:  # it was removed a moment ago
                continue
            if member.left is not None:
                is_ours, reason = is_paused_by_group(row), pause_reason(member)
                if row.is_active or (is_ours and row.paused_reason != reason):
                    await self._repositories.pause(row.name, reason, expected=row, by="its group")
                    paused += [] if is_ours else [(row.name, member.left)]
            elif member.path is not None and is_paused_by_group(row):
                await self._repositories.resume(row.name, expected=row)
                resumed.append(row.name)
            elif member.row is not None and member.row.has_left and row.is_active:
                resumed.append(row.name)
        touched = {*changed, *resumed, *(name for name, _ in paused)}
        code, problem = plan.problem or (None, None)
        return DiscoveryReport(
            listed=plan.listed,
            projects=sum(member.left is None for member in listed),
            added=tuple(member.name for member in listed if member.row is None),
            renamed=tuple((former.name, name) for former, name in renamed),
            kept_names=tuple((member.name, str(member.path)) for member in listed if member.lacks_name),
            paused=tuple(paused),
            resumed=tuple(resumed),
            unchanged=sum(member.name not in touched for member in listed),
            skipped={reason: tuple(paths) for reason, paths in plan.skipped.items()},
            problem_code=code,
            problem=problem,
        )


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
    if report.problem:
        fields = {"group": key, "reason": report.problem, "code": str(report.problem_code)}
        log.warning("a group needs a person", extra=fields)
