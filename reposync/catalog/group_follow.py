"""One group, once: its listing, the questions that it leaves open, and what becomes of the registered repositories.

Nothing is removed here, from the database or from an index: what left is paused, with the reason. A listing that fails
changes nothing; one that is suddenly empty, or lacks more than half, or is damaged, pauses nothing.
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
    Followed,
    GroupPlan,
    GroupView,
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

# The brake, as for files: more than half, of more than so many.
BRAKE_PROJECTS = 20
# Those that vanished are asked for by number, to say what became of them; so many at most.
MAX_QUESTIONS = 50
_NAMES_SHOWN = 5
_COMPARED = ("collection", "cron_expression", "timezone", "definition", "resolved", "group_key", "project_id")


@dataclass(frozen=True, slots=True)
class DiscoveryReport:
    """What a group's listing led to, by names of repositories. `projects` are those that belong to it; `paused` has the
    reasons; `skipped` are the paths of projects that are not registered, by reason; `unsettled` get their new name in
    the index when a run has ended. A `problem` is for a person to look at; what it does not speak of was done."""

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
    """A listing with its questions answered. `shrank` and `faults`: why nothing is concluded from what it lacks."""

    plan: GroupPlan
    listed: int
    shrank: str | None
    faults: tuple[str, ...]

    def problem(self, group: str) -> tuple[str, str] | tuple[None, None]:
        if self.shrank:
            return GROUP_SHRANK, self.shrank
        if self.faults:
            return GROUP_LISTING_FAULTY, (
                f"GitLab's listing of group {group} has rows that are no projects ({'; '.join(self.faults)}). They "
                "were left out, and nothing was paused."
            )
        if taken := self.plan.skipped.get(NAME_IS_TAKEN):
            return NAME_TAKEN, (
                f"Projects of group {group} are not registered, because other repositories have their names: "
                f"{_some(taken)}. List them under `repositories` by another name, or rename the others."
            )
        return None, None


async def examine(view: GroupView, source: GitLabGroup, listing: GroupListing, *, approved: bool) -> Examined:
    """`approved`: a person says that the listing is right, however much it lacks. Raises what the source raises."""
    present = {project.id: project for project in listing.projects}
    whereabouts: dict[int, ListedProject | None] = {}
    for row in view.to_ask_for(listing.projects, trusted=not listing.faults)[:MAX_QUESTIONS]:
        number = row.project_id or 0
        found = await source.project(number)
        if found is None or not view.still_has(row, found):
            whereabouts[number] = found
            continue
        # The listing missed it: a project before it was deleted between two pages. Or it was not to be listed: who has
        # no token is told of archived projects that they exist, and not that they are archived.
        hidden = not source.has_token and not view.group.archived
        present[number] = replace(found, is_archived=True) if hidden else found
    missing = view.missing(present.values())
    # One that is seen elsewhere was moved; one that is not seen at all may be there, and the token at fault.
    lost = [row.name for row in missing if row.is_active and not whereabouts.get(row.project_id or 0)]
    shrank = None if approved else _shrank(view, len(listing.projects), lost)
    trusted = shrank is None and not listing.faults
    plan = await asyncio.to_thread(view.plan, list(present.values()), whereabouts, trusted=trusted)
    return Examined(plan, len(present), shrank, listing.faults)


def _shrank(view: GroupView, listed: int, lost: Sequence[str]) -> str | None:
    active = sum(row.is_active for row in view.mine)
    if not lost or (listed and not (active > BRAKE_PROJECTS and 2 * len(lost) > active)):
        return None
    return (
        f"GitLab lists {listed} projects of group {view.group.group}, and lacks {len(lost)} of the {active} that are "
        f"registered ({_some(lost)}): nothing was paused. Check that the token still sees them all; pause those that "
        "are gone (`reposync repos pause NAME`)."
    )


class Follower:
    """Makes the registered repositories, and the names in their indexes, follow a plan. `index` opens a collection;
    `guard` is of each transaction."""

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
        """As things stand now."""
        rows = await self._repositories.list()
        return await asyncio.to_thread(GroupView, self._registry, group, rows)

    async def follow(self, view: GroupView, examined: Examined) -> DiscoveryReport:
        """Safe to repeat, and to abandon at any await. Raises StoreUnavailable, RegistrationsChanged where the view is
        out of date (nothing is done then), and what the guard raises."""
        plan = examined.plan
        when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        changes = [_followed(view, each, when) for each in plan.followed]
        changes += [
            RepositoryChange(each.row, _moved(view, each.row, each.name) | _pause(each.row, each.left, each.name, when))
            for each in plan.vanished
        ]
        changes += [RepositoryChange(row, _moved(view, row, name)) for row, name in plan.displaced]
        changes = [change for change in changes if change.values]
        await self._repositories.apply_changes(changes, guard=self._guard)

        settled = {change.before.id: change.values for change in changes}
        rows = {each.name: each.row.model_copy(update=settled.get(each.row.id, {})) for each in plan.followed}
        # A second a thousand projects.
        news = await asyncio.to_thread(self._registrations, view, plan, rows)
        await self._repositories.register_all(news, guard=self._guard)
        again = [rows[each.name] for each in news if each.name in rows]
        touched = {*settled, *(row.id for row in again)}
        switched_on = [row.name for row in again if _is_off(row)]
        code, problem = examined.problem(view.group.group)
        lefts = {each.row.id: each.left for each in plan.followed}
        lefts |= {each.row.id: each.left for each in plan.vanished}
        return DiscoveryReport(
            group=view.key,
            listed=examined.listed,
            projects=len(plan.new) + sum(each.left is None for each in plan.followed),
            added=tuple(plan.new),
            renamed=tuple((each.before.name, each.name) for each in changes if each.name != each.before.name),
            paused=tuple(
                (each.name, str(lefts[each.before.id]))
                for each in changes
                if each.values.get("is_active") is False and not is_paused_by_group(each.before)
            ),
            resumed=(*(each.name for each in changes if each.values.get("is_active")), *switched_on),
            unchanged=sum(each.row.id not in touched for each in plan.followed),
            skipped={reason: tuple(paths) for reason, paths in plan.skipped.items()},
            problem_code=code,
            problem=problem,
        )

    def _registrations(self, view: GroupView, plan: GroupPlan, rows: Mapping[str, Repository]) -> list[Registration]:
        """Of those that are new, or known as something else. `rows`: those that are known, by name."""
        new = [self._registration(view, name, project) for name, project in plan.new.items()]
        for each in plan.followed:
            row = rows[each.name]
            registration = self._registration(view, each.name, each.project).model_copy(
                update={"location": row.location}
            )
            if _is_off(row) or any(getattr(registration, key) != getattr(row, key) for key in _COMPARED):
                new.append(registration)
        return new

    def _registration(self, view: GroupView, name: str, project: ListedProject) -> Registration:
        """What the registry file says about every project of the group, for one."""
        definition = view.group.definition(name, project.path)
        resolved = checked_repository(self._registry, definition)
        said = SyncTarget(resolved, GROUP, definition=definition, group_key=view.key).registration()
        return said.model_copy(update={"project_id": project.id})

    async def settled(self, group: Group, report: DiscoveryReport) -> DiscoveryReport:
        """Give the points of repositories their names and links, where these changed. One that a run is under way for
        has to wait: it began with the former name and writes that.

        Raises StoreUnavailable, VectorIndexError, and what the guard raises; what is done stays done.
        """
        view = await self.view(group)
        unsettled = view.unsettled()
        if not unsettled:
            return report
        # Asked after the names were changed: a run that begins from now on has the new one.
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


def _followed(view: GroupView, each: Followed, when: str) -> RepositoryChange:
    row = each.row
    values = _moved(view, row, each.name, each.project.path)
    if (row.origin, row.group_key, row.project_id) != (GROUP, view.key, each.project.id):
        values |= {"origin": GROUP, "group_key": view.key, "project_id": each.project.id, "branch": None}
    return RepositoryChange(row, values | _pause(row, each.left, each.name, when, back=each.left is None))


def _moved(view: GroupView, row: Repository, name: str, project: str | None = None) -> dict[str, Any]:
    """Of a repository whose name, or whose project's path, is another one now. Its `location` is wrong on purpose until
    `settled` has been there, so that a process that dies in between is noticed."""
    if project is None:
        if name == row.name:
            return {}
        definition, project = {**(row.definition or {}), "name": name, "project": name}, name
    else:
        if name == row.name and project == (row.definition or {}).get("project"):
            return {}
        definition = view.group.definition(name, project)
    final = view.address(project)
    former = (row.location, view.address(row.name), view.address(name))
    return {"name": name, "definition": definition, "location": next((each for each in former if each != final), final)}


def _pause(row: Repository, left: str | None, name: str, when: str, *, back: bool = False) -> dict[str, Any]:
    """`left`: why it is to be paused; `back`: a pause of ours ends. What a person paused is left to her."""
    ours = is_paused_by_group(row)
    if left is None:
        return {"is_active": True, "paused_reason": None} if back and ours else {}
    reason = pause_reason(left, name, when)
    if row.paused_reason is not None and (not ours or says_the_same(row.paused_reason, reason)):
        return {}
    return {"is_active": False, "paused_reason": reason}


def _is_off(row: Repository) -> bool:
    """Its group had left the registry file; to register it switches it on."""
    return not row.is_active and row.paused_reason is None


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = len(shown) - _NAMES_SHOWN
    return ", ".join(shown[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
