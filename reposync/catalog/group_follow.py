"""One discovery of a group: its listing, and the changes of the registered repositories.

Nothing is removed from the database or an index: a repository whose project left is paused, with the reason. A listing
that fails changes nothing; one that is suddenly empty, lacks more than half, or is damaged pauses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from reposync.catalog.group_plan import (
    NAME_IS_TAKEN,
    GroupPlan,
    GroupView,
    Known,
    is_paused_by_group,
    pause_reason,
    says_the_same,
)
from reposync.catalog.targets import GROUP, SyncTarget
from reposync.config.loading import checked_repository
from reposync.config.registry import Group, Registry
from reposync.sources.gitlab_groups import GitLabGroup, GroupListing, ListedProject
from reposync.store.project_groups import GroupRepositories, RepositoryChange
from reposync.store.repositories import Guard
from reposync.store.repository import Registration, Repository
from reposync.store.versions import Versions
from reposync.vectors.port import Index

GROUP_SHRANK = "GROUP_SHRANK"
GROUP_LISTING_FAULTY = "GROUP_LISTING_FAULTY"
NAME_TAKEN = "NAME_TAKEN"

# As the deletion brake of files: more than half, and more than this number.
BRAKE_PROJECTS = 20
# Missing projects that are looked up by number, to find out where they are.
MAX_LOOKUPS = 50
_NAMES_SHOWN = 5
_COMPARED = ("collection", "cron_expression", "timezone", "definition", "resolved", "group_key", "project_id")


@dataclass(frozen=True, slots=True)
class DiscoveryReport:
    """The result of a discovery, by names of repositories. `projects`: number in the group; `paused` has the reasons;
    `skipped`: paths of projects that are not registered, by reason; `unsettled`: get their new name in the index after
    their run. A `problem` needs a person; everything else was done."""

    group: str
    listed: int
    projects: int
    added: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    paused: tuple[tuple[str, str], ...] = ()
    resumed: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    unchanged: int = 0
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problem_code: str | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Examined:
    """A listing with missing projects looked up. `shrank` and `faults`: why missing projects are not paused."""

    plan: GroupPlan
    listed: int
    shrank: str | None
    faults: tuple[str, ...]

    def problem(self, group: str) -> tuple[str, str] | tuple[None, None]:
        if self.shrank:
            return GROUP_SHRANK, self.shrank
        if self.faults:
            return GROUP_LISTING_FAULTY, (
                f"GitLab's listing of group {group} contains invalid rows ({'; '.join(self.faults)}). They "
                "were ignored, and nothing was paused."
            )
        if taken := self.plan.skipped.get(NAME_IS_TAKEN):
            return NAME_TAKEN, (
                f"Projects of group {group} are not registered, because other repositories have their names: "
                f"{_some(taken)}. List them under `repositories` by another name, or rename the others."
            )
        return None, None


async def examine(view: GroupView, source: GitLabGroup, listing: GroupListing, *, approved: bool) -> Examined:
    """`approved`: a person confirms the listing, however much it lacks. Raises what the source raises."""
    present = {project.id: project for project in listing.projects}
    locations: dict[int, ListedProject | None] = {}
    for row in view.to_look_up(listing.projects, trusted=not listing.faults)[:MAX_LOOKUPS]:
        number = row.project_id or 0
        found = await source.project(number)
        if found is None or not view.still_has(row, found):
            locations[number] = found
            continue
        # The listing missed it, because a project before it was deleted between two pages. Or it is archived: without a
        # token GitLab does not say so, and does not list it.
        hidden = not source.has_token and not view.group.archived
        present[number] = replace(found, is_archived=True) if hidden else found
    missing = view.missing(present.values())
    # A project that is found elsewhere was moved; one that is not found may exist, hidden from the token.
    lost = [row.name for row in missing if row.is_active and not locations.get(row.project_id or 0)]
    shrank = None if approved else _shrank(view, len(listing.projects), lost)
    trusted = shrank is None and not listing.faults
    plan = await asyncio.to_thread(view.plan, list(present.values()), locations, trusted=trusted)
    return Examined(plan, len(present), shrank, listing.faults)


def _shrank(view: GroupView, listed: int, lost: Sequence[str]) -> str | None:
    active = sum(row.is_active for row in view.mine)
    if not lost or (listed and not (active > BRAKE_PROJECTS and 2 * len(lost) > active)):
        return None
    return (
        f"GitLab lists {listed} projects of group {view.group.group}, without {len(lost)} of the {active} that are "
        f"registered ({_some(lost)}): nothing was paused. Check that the token can see all of them; pause projects "
        "that have left the group: `reposync repos pause NAME`."
    )


class Follower:
    """Applies a plan to the registered repositories and to the names in their indexes. `index` opens a collection;
    `guard` is checked in each transaction."""

    def __init__(
        self,
        registry: Registry,
        repositories: GroupRepositories,
        versions: Versions,
        index: Callable[[str], Index],
        guard: Guard,
    ) -> None:
        self._registry = registry
        self._repositories = repositories
        self._versions = versions
        self._index = index
        self._guard = guard

    async def view(self, group: Group) -> GroupView:
        rows = await self._repositories.list()
        return await asyncio.to_thread(GroupView, self._registry, group, rows)

    async def follow(self, view: GroupView, examined: Examined) -> DiscoveryReport:
        """Safe to repeat, and to abandon at any await. Raises StoreUnavailable, RegistrationsChanged if the view is
        outdated (before any change), and what the guard raises."""
        plan = examined.plan
        when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        changes = [change for each in plan.known if (change := _change(view, each, when)).values]
        await self._repositories.apply_changes(changes, guard=self._guard)

        settled = {change.before.id: change.values for change in changes}
        present = [each for each in plan.known if each.project is not None]
        rows = {each.name: each.row.model_copy(update=settled.get(each.row.id, {})) for each in present}
        # Takes a second for a thousand projects.
        registrations = await asyncio.to_thread(self._registrations, view, plan, rows)
        await self._repositories.register_all(registrations, guard=self._guard)
        again = [rows[each.name] for each in registrations if each.name in rows]
        touched = {*settled, *(row.id for row in again)}
        code, problem = examined.problem(view.group.group)
        lefts = {each.row.id: each.left for each in plan.known}
        return DiscoveryReport(
            group=view.key,
            listed=examined.listed,
            projects=len(plan.new) + sum(each.left is None for each in present),
            added=tuple(plan.new),
            renamed=tuple((each.before.name, each.name) for each in changes if each.name != each.before.name),
            paused=tuple(
                (each.name, str(lefts[each.before.id]))
                for each in changes
                if each.values.get("is_active") is False and not is_paused_by_group(each.before)
            ),
            resumed=(
                *(each.name for each in changes if each.values.get("is_active")),
                *(row.name for row in again if _is_off(row)),
            ),
            unchanged=sum(each.row.id not in touched for each in present),
            skipped={reason: tuple(paths) for reason, paths in plan.skipped.items()},
            problem_code=code,
            problem=problem,
        )

    def _registrations(self, view: GroupView, plan: GroupPlan, rows: Mapping[str, Repository]) -> list[Registration]:
        """Of new projects, and of known ones whose settings changed. `rows`: known ones, by name."""
        new = [self._registration(view, name, project) for name, project in plan.new.items()]
        for each in plan.known:
            if each.project is None:
                continue
            row = rows[each.name]
            registration = self._registration(view, each.name, each.project).model_copy(
                update={"location": row.location}
            )
            if _is_off(row) or any(getattr(registration, key) != getattr(row, key) for key in _COMPARED):
                new.append(registration)
        return new

    def _registration(self, view: GroupView, name: str, project: ListedProject) -> Registration:
        definition = view.group.definition(name, project.path)
        resolved = checked_repository(self._registry, definition)
        registration = SyncTarget(resolved, GROUP, definition=definition, group_key=view.key).registration()
        return registration.model_copy(update={"project_id": project.id})

    async def settled(self, group: Group, report: DiscoveryReport) -> DiscoveryReport:
        """Update names and links in the index. A repository with an active run has to wait, because the run writes the
        former name.

        Raises StoreUnavailable, VectorIndexError, and what the guard raises.
        """
        view = await self.view(group)
        unsettled = view.unsettled()
        if not unsettled:
            return report
        # Read after the names were changed: a run that begins later has the new name.
        running = await self._repositories.running([row.id for row in unsettled])
        for row in unsettled:
            if row.id in running:
                continue
            address = view.address(str((row.definition or {})["project"]))
            if row.epoch > 0:
                for physical, version_id in await self._places(row):
                    index = self._index(physical)
                    if await index.spec() is not None:
                        await index.rename_repository(version_id, row.name, links=quote(address, safe=":/"))
            await self._repositories.relocate(row, address, guard=self._guard)
        return replace(report, unsettled=tuple(row.name for row in unsettled if row.id in running))

    async def _places(self, row: Repository) -> list[tuple[str, str]]:
        """(collection, version id) of all versions of its index."""
        versions = [(version.physical, version.id) for version in await self._versions.of(row.id)]
        return versions or [(row.indexed_collection or row.collection, row.id)]


def _change(view: GroupView, each: Known, when: str) -> RepositoryChange:
    row, project = each.row, each.project
    values = _renaming(view, row, each.name, project.path if project is not None else None)
    if project is not None and (row.origin, row.group_key, row.project_id) != (GROUP, view.key, project.id):
        values |= {"origin": GROUP, "group_key": view.key, "project_id": project.id, "branch": None}
    is_back = project is not None and each.left is None
    return RepositoryChange(row, values | _pause(row, each.left, each.name, when, is_back=is_back))


def _renaming(view: GroupView, row: Repository, name: str, project: str | None) -> dict[str, Any]:
    """For a new name, or a new path `project`. `location` gets a wrong value on purpose until `settled` has updated the
    index, so that an interruption in between is detected."""
    if name == row.name and (project is None or project == (row.definition or {}).get("project")):
        return {}
    if project is None:
        definition, project = {**(row.definition or {}), "name": name, "project": name}, name
    else:
        definition = view.group.definition(name, project)
    final = view.address(project)
    former = (row.location, view.address(row.name), view.address(name))
    return {"name": name, "definition": definition, "location": next((each for each in former if each != final), final)}


def _pause(row: Repository, left: str | None, name: str, when: str, *, is_back: bool) -> dict[str, Any]:
    """`left`: why it is to be paused; `is_back`: a pause by discovery ends. A person's pause is not changed."""
    ours = is_paused_by_group(row)
    if left is None:
        return {"is_active": True, "paused_reason": None} if is_back and ours else {}
    reason = pause_reason(left, name, when)
    if row.paused_reason is not None and (not ours or says_the_same(row.paused_reason, reason)):
        return {}
    return {"is_active": False, "paused_reason": reason}


def _is_off(row: Repository) -> bool:
    """Its group had left the registry file; registering it activates it again."""
    return not row.is_active and row.paused_reason is None


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = len(shown) - _NAMES_SHOWN
    return ", ".join(shown[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
