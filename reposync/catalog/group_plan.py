"""What a group's listing means for the registered repositories, decided without any request or change.

The identity of a project is its number on its server: a repository keeps its index and history wherever its project
moves and whatever its name becomes. A name is a label: the project's full path, unless a different repository has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from reposync.catalog.targets import CONFIG, GROUP
from reposync.config.loading import checked_repository
from reposync.config.registry import GitLabInstance, Group, Registry
from reposync.config.registry import Repository as RepositoryEntry
from reposync.errors import ConfigError
from reposync.sources.gitlab_groups import GroupListing, ListedProject
from reposync.store.repository import Repository
from reposync.wildmatch import PathPatterns

GROUP_SHRANK = "GROUP_SHRANK"
GROUP_RENUMBERED = "GROUP_RENUMBERED"
GROUP_LISTING_FAULTY = "GROUP_LISTING_FAULTY"
MAX_NAME_CHARS = 200  # as the registry file has it
_NAMES_SHOWN = 5
# The brake: a listing that lacks more than half of more projects than this pauses none.
BRAKE_PROJECTS = 20


def group_key(registry: Registry, group: Group) -> str:
    """`<server's address>/<path of the group>`"""
    return f"{server_of(registry, group).url}/{group.group}"


def server_of(registry: Registry, group: Group) -> GitLabInstance:
    """Raises ConfigError; a checked registry has the server."""
    for server in registry.gitlab:
        if server.name == group.gitlab:
            return server
    raise ConfigError(f"Group {group.group} names the GitLab server {group.gitlab!r}, which does not exist.")


@dataclass(frozen=True, slots=True)
class Known:
    """A registered repository, and its name from now on."""

    row: Repository
    project: ListedProject | None
    """None if it is not a listed project of the group."""
    name: str
    left: str | None
    """Why it is not to be synced; None if it is, or if nothing is concluded."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    listed: int
    new: Mapping[str, ListedProject]
    """Projects to register, by name."""
    known: Sequence[Known]
    """In an order in which each name is free when its turn comes."""
    skipped: Mapping[str, Sequence[str]]
    """Paths of projects that are not registered, by reason."""
    problem: tuple[str, str] | None
    """A code and a message for a person."""


class GroupView:
    """The registry and the registered repositories, as far as they matter to one group."""

    def __init__(self, registry: Registry, group: Group, rows: Sequence[Repository]) -> None:
        self.group = group
        self.key = group_key(registry, group)
        checked_repository(registry, group.definition("any", "any/any"))  # the settings of all its projects
        self._server = server_of(registry, group)
        self._names = {row.name for row in rows}
        self._urls = sorted({server.url for server in registry.gitlab}, key=len)
        servers = {server.name for server in registry.gitlab if server.url == self._server.url}
        self._takes = {each.group: _filter(each) for each in (*registry.groups, group) if each.gitlab in servers}
        here = [row for row in rows if self._is_here(row)]
        self._mine = [row for row in here if row.origin == GROUP and row.group_key == self.key]
        others = [row for row in here if row.origin == GROUP and row.group_key != self.key]
        left = [row for row in here if row.origin == CONFIG and row.has_left]
        # The later one counts.
        self._known = [*left, *others, *self._mine]
        single = [row for row in here if row.origin != GROUP and not (row.origin == CONFIG and row.has_left)]
        self._single = {row.location.casefold(): row.name for row in single}
        self._single_by_number = {row.project_id: row.name for row in single if row.project_id is not None}
        self._listed_names = {row.name for row in rows if row.origin == CONFIG and not row.has_left}

    def lacks(self, projects: Collection[ListedProject]) -> bool:
        """Whether projects of active repositories are not among these."""
        return any(row.is_active for row in self._missing(projects))

    def plan(self, listing: GroupListing, *, approved: bool, confirmed: bool = False) -> GroupPlan:
        """`approved`: a person confirms the listing, however much it lacks. `confirmed`: the listing before this one
        had new numbers only, too."""
        projects = listing.projects
        matched, missing = self._matched(projects), self._missing(projects)
        shrank = None if approved else self._shrank(len(projects), missing)
        trusted = shrank is None and not listing.faults
        if not approved and (not confirmed or shrank) and (renumbered := self._renumbered(projects, missing)):
            kept = [Known(row, None, row.name, None) for row in missing]
            return GroupPlan(len(projects), {}, kept, {}, (GROUP_RENUMBERED, renumbered))
        skipped: dict[str, list[str]] = {}
        known: list[Known] = []
        new: list[ListedProject] = []
        taken = set(self._names)
        for project in sorted(projects, key=lambda each: each.id):
            row, left = matched.get(project.id), self._left_out(project)
            if self._owner(project.path) != self.group.group:
                why: str | None = "listed by another group"
            elif row is not None and self._unusable(project) is None:
                known.append(Known(row, project, _follow(row.name, project, taken), left))
                continue
            else:
                why = left or ("has no commit yet" if project.is_empty else self._unusable(project))
            if why is None:
                new.append(project)
            else:
                skipped.setdefault(why, []).append(project.path)
        names: dict[str, ListedProject] = {}
        for project in new:
            if (name := _first_name(project, taken)) is not None:
                names[name] = project
                taken.add(name)
            else:
                skipped.setdefault("other repositories have its name", []).append(project.path)
        known += [Known(row, None, row.name, _UNLISTED if trusted else None) for row in missing]
        return GroupPlan(len(projects), names, known, skipped, self._problem(shrank, listing.faults))

    def address(self, path: str) -> str:
        """The URL of the project with that path."""
        return f"{self._server.url}/{path}"

    def _shrank(self, listed: int, missing: Sequence[Repository]) -> str | None:
        lost = [row.name for row in missing if row.is_active]  # they may exist, hidden from the token
        active = sum(row.is_active for row in self._mine)
        if not lost or (listed and not (active > BRAKE_PROJECTS and 2 * len(lost) > active)):
            return None
        return (
            f"GitLab lists {listed} projects of group {self.group.group}, without {len(lost)} of the {active} that are "
            f"registered ({_some(lost)}): nothing was paused. Check that the token can see all of them; pause projects "
            "that have left the group: `reposync repos pause NAME`."
        )

    def _renumbered(self, projects: Collection[ListedProject], missing: Sequence[Repository]) -> str | None:
        """Whether the listing has new numbers only, as from a different instance or a restored backup."""
        lost, active = {row.id for row in missing if row.is_active}, [row for row in self._mine if row.is_active]
        if not projects or len(active) < 2 or len(lost) < len(active):
            return None
        return (
            f"GitLab lists {len(projects)} projects of group {self.group.group}, none with the number of one of the "
            f"{len(active)} that are registered: nothing was registered or paused. Check the address of the server. If "
            "the projects were created again: the next listing confirms it, or, for more than "
            f"{BRAKE_PROJECTS} projects, `reposync sync --allow-mass-delete`."
        )

    def _problem(self, shrank: str | None, faults: Sequence[str]) -> tuple[str, str] | None:
        if shrank:
            return GROUP_SHRANK, shrank
        if faults:
            return GROUP_LISTING_FAULTY, (
                f"GitLab's listing of group {self.group.group} is damaged ({'; '.join(faults)}). Such rows were "
                "ignored, and nothing was paused."
            )
        return None

    def _missing(self, projects: Collection[ListedProject]) -> list[Repository]:
        """Repositories of this group whose projects are not among these."""
        matched = {row.id for row in self._matched(projects).values()}
        return [row for row in self._mine if row.id not in matched]

    def _is_here(self, row: Repository) -> bool:
        """Whether it is a project of this group's server. One server's URL may start with another's."""
        if row.source != "gitlab":
            return False
        fitting = [url for url in self._urls if row.location.startswith(f"{url}/")]
        return bool(fitting) and fitting[-1] == self._server.url

    def _matched(self, projects: Iterable[ListedProject]) -> dict[int, Repository]:
        """The repository of each project, by number, or by path if the number is unknown: one of this group first,
        then of a different group, then one that left the registry file."""
        by_number = {row.project_id: row for row in self._known if row.project_id is not None}
        by_location = {row.location: row for row in self._known if row.project_id is None}
        rows = {each.id: by_number.get(each.id) or by_location.get(self.address(each.path)) for each in projects}
        return {number: row for number, row in rows.items() if row is not None}

    def _left_out(self, project: ListedProject) -> str | None:
        """Why the group does not include a listed project; None if it does."""
        name = project.path if project.path in self._listed_names else self._single_by_number.get(project.id)
        if name := name or self._single.get(self.address(project.path).casefold()):
            return f"is listed under `repositories` as {name}"
        if not self._takes[self.group.group](project.path):
            return "is left out by `include` or `exclude` of the group"
        if project.is_marked_for_deletion:
            return "is marked for deletion"
        if project.is_archived and not self.group.archived:
            return "is archived"
        return None if project.has_repository else "has its repository switched off"

    def _owner(self, path: str) -> str:
        """The innermost configured group that includes the project."""
        taking = [group for group, takes in self._takes.items() if _is_below(path, group) and takes(path)]
        return max(taking, key=lambda group: group.count("/"), default=self.group.group)

    def _unusable(self, project: ListedProject) -> str | None:
        try:
            RepositoryEntry.model_validate(self.group.definition(project.path, project.path))
        except ValidationError:
            return "has a path that cannot be a name here"
        return None


def _follow(name: str, project: ListedProject, taken: set[str]) -> str:
    """The path of its project, if no repository has that name; else it stays. Updates the names that are `taken`."""
    if project.path in taken:
        return name
    taken.remove(name)
    taken.add(project.path)
    return project.path


def _first_name(project: ListedProject, taken: Collection[str]) -> str | None:
    """Of a new repository: its path, with the number of the project if a different repository has that name."""
    ending = f"-{project.id}"
    numbered = project.path[: MAX_NAME_CHARS - len(ending)] + ending
    return next((name for name in (project.path, numbered) if name not in taken), None)


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


def pause_of(each: Known) -> dict[str, Any]:
    """Columns of the repository that pause it, with what a person can do, or end a pause by discovery."""
    row, ours = each.row, is_paused_by_group(each.row)
    if each.left is None:
        return {"is_active": True, "paused_reason": None} if each.project is not None and ours else {}
    reason = (
        f"{PAUSED_BY_GROUP}{each.left}. Its index stays, and syncs continue if the project comes back; "
        f"`reposync repos remove {each.name}` removes it with its index."
    )
    if row.paused_reason == reason or (row.paused_reason is not None and not ours):
        return {}
    return {"is_active": False, "paused_reason": reason}
