"""What a group's listing means for the registered repositories, decided without any request or change.

The identity of a project is its number on its server: a repository keeps its index and history wherever its project
moves and whatever its name becomes. A name is a label: the project's full path, unless a different repository has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reposync.catalog.group_entries import server_of
from reposync.catalog.targets import CONFIG, GROUP, registration_of, server_at
from reposync.config.loading import checked_repository
from reposync.config.registry import Group, Registry
from reposync.errors import ConfigError
from reposync.sources.gitlab_groups import GroupListing, ListedProject
from reposync.store.repository import Registration, Repository
from reposync.wildmatch import PathPatterns

GROUP_SHRANK = "GROUP_SHRANK"
GROUP_LISTING_FAULTY = "GROUP_LISTING_FAULTY"
_NAMES_SHOWN = 5
# The brake: a listing that lacks more than half of more projects than this is not believed.
BRAKE_PROJECTS = 20


@dataclass(frozen=True, slots=True)
class Member:
    """A project of the group, or a repository whose project was in it."""

    row: Repository | None
    """None: it is registered now."""
    name: str
    """From now on."""
    path: str | None
    """The path of the project; None if it is not listed."""
    registration: Registration | None
    """What is registered from now on; None if the project is not listed."""
    left: str | None
    """Why it is not to be synced; None if it is, or if nothing is concluded."""

    @property
    def lacks_name(self) -> bool:
        """The project is new or has moved, and its path is the name of a different repository."""
        if self.registration is None or self.path == self.name:
            return False
        return self.row is None or self.row.location != self.registration.location


@dataclass(frozen=True, slots=True)
class GroupPlan:
    listed: int
    members: Sequence[Member] = ()
    """In an order in which each name is free when its turn comes."""
    skipped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Paths of projects that are not registered, by reason."""
    problem: tuple[str, str] | None = None
    """A code and a message for a person."""


def plan_of(
    registry: Registry,
    key: str,
    group: Group,
    groups: Sequence[Group],
    rows: Sequence[Repository],
    listing: GroupListing,
    *,
    approved: bool,
) -> GroupPlan:
    """`key`: of the row of the group. `groups`: all groups. `approved`: a person confirms the listing, however much it
    lacks. Raises ConfigError."""
    checked_repository(registry, group.definition("any", "any/any"))  # the settings of all its projects
    rules = _Rules(registry, group, groups, rows)
    former = [row for row in rules.here if row.origin == GROUP or _has_left_file(row)]
    # Of two repositories of a project, that of this group counts, and then that of a different one.
    former.sort(key=lambda row: (row.group_key == key, row.origin == GROUP))
    known = {row.project_id: row for row in former}
    numbers = {project.id for project in listing.projects}
    mine = [row for row in former if row.group_key == key]
    missing = [row for row in mine if row.project_id not in numbers]
    if not approved and (shrank := _shrank(group, len(numbers), mine, missing)):
        return GroupPlan(len(numbers), problem=(GROUP_SHRANK, shrank))
    members: list[Member] = []
    skipped: dict[str, list[str]] = {}
    taken = {row.name for row in rows}
    # New projects come last: a known one may give up a name.
    for project in sorted(listing.projects, key=lambda project: (project.id not in known, project.id)):
        row, left = known.get(project.id), rules.left_out(project)
        own = set() if row is None else {row.name}
        options = (project.path, f"{project.path}-{project.id}" if row is None else row.name)
        name = next((option for option in options if option in own or option not in taken), None)
        if rules.owner(project.path) != group.group:
            why = "listed by another group"
        elif row is None and (left is not None or project.is_empty):
            why = left or "has no commit yet"
        elif name is None:
            why = "other repositories have its name"
        else:
            try:
                registration = _registration(registry, group, key, name, project)
            except ConfigError:
                why = "has a path that cannot be a name here"
            else:
                taken -= own
                taken.add(name)
                members.append(Member(row, name, project.path, registration, left))
                continue
        skipped.setdefault(why, []).append(project.path)
    members += [Member(row, row.name, None, None, None if listing.faults else _UNLISTED) for row in missing]
    return GroupPlan(len(numbers), members, skipped, _faulty(group, listing.faults))


class _Rules:
    """Which projects a group includes, beside the other groups and the repositories that are listed by name."""

    def __init__(self, registry: Registry, group: Group, groups: Sequence[Group], rows: Sequence[Repository]) -> None:
        self._group = group
        self._url = server_of(registry, group).url
        self.here = [row for row in rows if row.source == "gitlab" and server_at(registry, row.location) == self._url]
        here = {server.name for server in registry.gitlab if server.url == self._url}
        self._takes = {other.group: _filter(other) for other in (*groups, group) if other.gitlab in here}
        self._listed: dict[str | int | None, str] = {
            row.name: row.name for row in rows if row.origin == CONFIG and not row.has_left
        }
        for row in self.here:
            if row.origin != GROUP and not _has_left_file(row):
                self._listed |= {row.location.casefold(): row.name, row.project_id: row.name}

    def left_out(self, project: ListedProject) -> str | None:
        """Why the group does not include a listed project; None if it does."""
        for identity in (project.path, project.id, f"{self._url}/{project.path}".casefold()):
            if (name := self._listed.get(identity)) is not None:
                return f"is listed under `repositories` as {name}"
        if not self._takes[self._group.group](project.path):
            return "is left out by `include` or `exclude` of the group"
        if project.is_marked_for_deletion:
            return "is marked for deletion"
        if project.is_archived and not self._group.archived:
            return "is archived"
        return None if project.has_repository else "has its repository switched off"

    def owner(self, path: str) -> str:
        """The innermost configured group that includes the project."""
        taking = [group for group, takes in self._takes.items() if _is_below(path, group) and takes(path)]
        return max(taking, key=lambda group: group.count("/"), default=self._group.group)


def _registration(registry: Registry, group: Group, key: str, name: str, project: ListedProject) -> Registration:
    """Raises ConfigError."""
    definition = group.definition(name, project.path)
    resolved = checked_repository(registry, definition)
    return registration_of(resolved, GROUP, definition=definition, group_key=key, project_id=project.id)


def _shrank(group: Group, listed: int, mine: Sequence[Repository], missing: Sequence[Repository]) -> str | None:
    """Why the listing is not believed: it is empty, as for a token that lost a right, has new numbers only, as of a
    different instance or a restored backup, or lacks more than half."""
    lost = [row.name for row in missing if row.is_active]  # they may exist, hidden from the token
    active = sum(row.is_active for row in mine)
    is_other = listed > 0 and len(lost) == active > 1
    if not lost or (listed and not is_other and not (active > BRAKE_PROJECTS and 2 * len(lost) > active)):
        return None
    return (
        f"GitLab lists {listed} projects of group {group.group}, without {len(lost)} of the {active} that are "
        f"registered ({_some(lost)}): nothing was changed. Check the address of the server, and that the token can see "
        "all of them. If they have left the group: `reposync sync --allow-mass-delete`."
    )


def _faulty(group: Group, faults: Sequence[str]) -> tuple[str, str] | None:
    if not faults:
        return None
    return GROUP_LISTING_FAULTY, (
        f"GitLab's listing of group {group.group} is damaged ({'; '.join(faults)}). Such rows were ignored, and "
        "nothing was paused."
    )


def _has_left_file(row: Repository) -> bool:
    return row.origin == CONFIG and row.has_left


def _filter(group: Group) -> Callable[[str], bool]:
    """`include` and `exclude` of the group: gitignore patterns for full paths of projects."""
    include = PathPatterns(group.include) if group.include else None
    exclude = PathPatterns(group.exclude)
    return lambda path: (include is None or include.match(path) is not None) and exclude.match(path) is None


def _is_below(path: str, group: str) -> bool:
    return path.casefold().startswith(f"{group.casefold()}/")


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = len(shown) - _NAMES_SHOWN
    return ", ".join(shown[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


# Pauses ------------------------------------------------------------------------------------------------------------

PAUSED_BY_GROUP = "Left its group: the project "
"""Prefix of a pause by discovery, which ends when the project is back; a person's pause is not changed."""

_UNLISTED = "is not in the group's listing any more: it was moved or deleted, or is hidden from the token"


def is_paused_by_group(row: Repository) -> bool:
    return row.paused_reason is not None and row.paused_reason.startswith(PAUSED_BY_GROUP)


def pause_reason(member: Member) -> str:
    return (
        f"{PAUSED_BY_GROUP}{member.left}. Its index stays, and syncs continue if the project comes back; "
        f"`reposync repos remove {member.name}` removes it with its index."
    )
