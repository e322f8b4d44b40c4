"""What a group's listing means for the registered repositories, decided without any request or change.

The identity of a project is its number on its server: a repository keeps its index and history wherever its project
moves and whatever its name becomes. A name is a label, the project's full path; names may be swapped or reused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from reposync.catalog.targets import CONFIG, GROUP
from reposync.config.loading import checked_repository
from reposync.config.registry import GitLabInstance, Group, Registry
from reposync.config.registry import Repository as RepositoryEntry
from reposync.errors import ConfigError
from reposync.sources.gitlab_groups import ListedProject
from reposync.store.repository import Repository
from reposync.wildmatch import PathPatterns

MAX_NAME_CHARS = 200  # as the registry file has it
NAME_IS_TAKEN = "another repository has its name"

Locations = Mapping[int, ListedProject | None]
"""Where projects are that the listing lacks, by number; None for one that was deleted or is hidden."""


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
    """A registered repository, and its new name. `project`: None if it is not a listed project of the group. `left`:
    why it is not to be synced; None if it is, or if nothing is concluded."""

    row: Repository
    project: ListedProject | None
    name: str
    left: str | None


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """`new`: projects to register, by name. `skipped`: paths of projects that are not registered, by reason."""

    new: Mapping[str, ListedProject]
    known: Sequence[Known]
    skipped: Mapping[str, Sequence[str]]


class GroupView:
    """The registry and the registered repositories, as far as they matter to one group."""

    def __init__(self, registry: Registry, group: Group, rows: Sequence[Repository]) -> None:
        self.group = group
        self.key = group_key(registry, group)
        self.every = checked_repository(registry, group.definition("any", "any/any"))
        """The settings of every project of the group, with defaults."""
        self._server = server_of(registry, group)
        self._rows = rows
        self._urls = sorted({server.url for server in registry.gitlab}, key=len)
        self._listed_by_name = {row.name for row in rows if row.origin == CONFIG and not row.has_left}
        servers = {server.name for server in registry.gitlab if server.url == self._server.url}
        self._neighbours = {
            each.group.casefold(): each for each in registry.groups if each.gitlab in servers and each != group
        }
        self._fits = {each.group: _Fits(each) for each in (group, *self._neighbours.values())}
        here = [row for row in rows if self._is_here(row)]
        self._listed_by_path = {
            row.location.removeprefix(f"{self._server.url}/").casefold(): row.name
            for row in here
            if row.name in self._listed_by_name
        }
        self.registered = [row for row in here if row.origin == GROUP]
        self.mine = [row for row in self.registered if row.group_key == self.key]
        self._others = [row for row in self.registered if row.group_key != self.key]
        self._strangers = [row for row in here if row.origin != GROUP]

    def missing(self, listing: Collection[ListedProject]) -> list[Repository]:
        """Repositories of this group whose projects the listing lacks."""
        matched = {row.id for row in self._matched(listing).values()}
        return [row for row in self.mine if row.id not in matched]

    def to_look_up(self, listing: Collection[ListedProject], *, trusted: bool) -> list[Repository]:
        """Missing repositories whose projects have to be looked up: first those whose name is now the path of a
        different project, then, if the listing is `trusted`, those that seem to have left."""
        paths, missing = {project.path for project in listing}, self.missing(listing)
        pressing = [row for row in [*missing, *self._in_the_way(listing)] if row.name in paths]
        leaving = [row for row in missing if trusted and row.name not in paths and not is_known_to_be_gone(row)]
        return [row for row in [*pressing, *leaving] if row.project_id is not None]

    def _in_the_way(self, listing: Collection[ListedProject]) -> list[Repository]:
        """Repositories of other groups of this server whose name is the path of a listed project: it is outdated."""
        paths, matched = {project.path for project in listing}, {row.id for row in self._matched(listing).values()}
        return [row for row in self._others if row.name in paths and row.id not in matched]

    def plan(self, listing: Collection[ListedProject], locations: Locations, *, trusted: bool) -> GroupPlan:
        """`trusted`: a project that the listing lacks has left the group."""
        matched = self._matched(listing)
        skipped: dict[str, list[str]] = {}
        present: list[tuple[Repository, ListedProject, str | None]] = []
        new: list[ListedProject] = []
        displaced = self._in_the_way(listing)
        for project in sorted(listing, key=lambda each: each.id):
            row, left = matched.get(project.id), self._left_out(project)
            if self._owner(project.path) is not self.group:
                skipped.setdefault("listed by another group", []).append(project.path)
                displaced += [row] if row is not None else []
            elif row is not None and self._unusable(project) is None:
                present.append((row, project, left))
            elif why := left or ("has no commit yet" if project.is_empty else self._unusable(project)):
                skipped.setdefault(why, []).append(project.path)
                displaced += [row] if row is not None else []
            else:
                new.append(project)

        missing = self.missing(listing)
        movable = {row.name for row in [*missing, *displaced, *(row for row, _, _ in present)]}
        names = _Names({row.name for row in self._rows} - movable)
        for project in new:
            if not names.give(str(project.id), [project.path]):
                skipped.setdefault(NAME_IS_TAKEN, []).append(project.path)
        for row, project, _ in present:
            names.give(row.id, [project.path])
        for row, project, _ in present:
            names.give(row.id, [row.name, *_spare_names(project.path, row)])
        found_at = {project.id: project for project in listing} | dict(locations)
        for row in [*missing, *displaced]:
            found = found_at.get(row.project_id or 0)
            moved_to = [found.path] if found and len(found.path) <= MAX_NAME_CHARS else []
            names.give(row.id, [row.name, *moved_to, *_spare_names(row.name, row)])
        known = [Known(row, project, names.of[row.id], left) for row, project, left in present]
        known += [
            Known(row, None, names.of[row.id], _left_reason(row, locations) if trusted else None) for row in missing
        ]
        known += [Known(row, None, names.of[row.id], None) for row in displaced]
        return GroupPlan(
            new={names.of[str(project.id)]: project for project in new if str(project.id) in names.of},
            known=known,
            skipped=skipped,
        )

    def still_has(self, row: Repository, project: ListedProject) -> bool:
        """Whether the project, looked up by its number, is in the group although the listing lacks it."""
        return _is_below(project.path, self.group.group) or project.path == (row.definition or {}).get("project")

    def address(self, path: str) -> str:
        """The URL of the project with that path."""
        return f"{self._server.url}/{path}"

    def unsettled(self) -> list[Repository]:
        """Repositories whose points may still have a former name: `location` is changed last."""
        return [
            row
            for row in self.registered
            if row.definition is not None and row.location != self.address(str(row.definition.get("project")))
        ]

    def _is_here(self, row: Repository) -> bool:
        """Whether it is a project of this group's server. One server's URL may start with another's."""
        if row.source != "gitlab":
            return False
        fitting = [url for url in self._urls if row.location.startswith(f"{url}/")]
        return bool(fitting) and fitting[-1] == self._server.url

    def _matched(self, listing: Iterable[ListedProject]) -> dict[int, Repository]:
        """The repository of each project, by number, or by path if the number is unknown: one of this group first,
        then of a different group, then one that left the registry file."""
        left = [row for row in self._strangers if self._has_left(row)]
        ranked = [*self.mine, *self._others, *left]
        by_number = {row.project_id: row for row in reversed(ranked) if row.project_id is not None}
        by_location = {row.location: row for row in reversed(ranked) if row.project_id is None}
        found = {}
        for project in listing:
            row = by_number.get(project.id) or by_location.get(self.address(project.path))
            if row is not None:
                found[project.id] = row
        return found

    def _has_left(self, row: Repository) -> bool:
        return row.origin == CONFIG and row.has_left

    def _left_out(self, project: ListedProject) -> str | None:
        """Why the group does not include a listed project; None if it does."""
        if name := self._listed_as(project):
            return f"is listed under `repositories` as {name}"
        if not self._fits[self.group.group].takes(project.path):
            return "is left out by `include` or `exclude` of the group"
        if project.is_marked_for_deletion:
            return "is marked for deletion"
        if project.is_archived and not self.group.archived:
            return "is archived"
        return None if project.has_repository else "has its repository switched off"

    def _listed_as(self, project: ListedProject) -> str | None:
        """Its name if it is registered individually: in the registry file, by command or over HTTP."""
        if project.path in self._listed_by_name:
            return project.path
        if name := self._listed_by_path.get(project.path.casefold()):
            return name
        address = self.address(project.path)
        for row in self._strangers:
            is_it = row.location == address if row.project_id is None else row.project_id == project.id
            if is_it and not self._has_left(row):
                return row.name
        return None

    def _owner(self, path: str) -> Group:
        """The innermost configured group that includes the project."""
        groups = [self.group, *self._neighbours.values()]
        taking = [each for each in groups if _is_below(path, each.group) and self._fits[each.group].takes(path)]
        return max(taking, key=lambda each: each.group.count("/"), default=self.group)

    def _unusable(self, project: ListedProject) -> str | None:
        try:
            RepositoryEntry.model_validate(self.group.definition(project.path, project.path))
        except ValidationError:
            return "has a path that cannot be a name here"
        return None


@dataclass(slots=True)
class _Names:
    """Assigns unique names. `taken`: names of repositories that keep them."""

    taken: set[str]
    of: dict[str, str] = field(default_factory=dict)

    def give(self, who: str, wanted: Sequence[str]) -> bool:
        for name in wanted if who not in self.of else ():
            if name not in self.taken:
                self.taken.add(name)
                self.of[who] = name
                return True
        return who in self.of


class _Fits:
    """`include` and `exclude` of a group: gitignore patterns for full paths of projects."""

    def __init__(self, group: Group) -> None:
        self._include = PathPatterns(group.include) if group.include else None
        self._exclude = PathPatterns(group.exclude)

    def takes(self, path: str) -> bool:
        included = self._include is None or self._include.match(path) is not None
        return included and self._exclude.match(path) is None


def _spare_names(wanted: str, row: Repository) -> list[str]:
    """Used if the wanted name is taken."""
    endings = [f"-{row.project_id}"] if row.project_id is not None else []
    return [wanted[: MAX_NAME_CHARS - len(ending)] + ending for ending in (*endings, f"-{row.id}")]


def _is_below(path: str, group: str) -> bool:
    return path.casefold().startswith(f"{group.casefold()}/")


def _left_reason(row: Repository, locations: Locations) -> str | None:
    if row.project_id is None or row.project_id not in locations:
        return None if is_known_to_be_gone(row) else _UNLISTED
    found = locations[row.project_id]
    return _GONE if found is None else f"{_MOVED} {found.path}"


# Reasons of a pause ------------------------------------------------------------------------------------------------

PAUSED_BY_GROUP = "Left its group: the project "
"""Prefix of a pause by discovery, which ends when the project is back; a person's pause is not changed."""

_MOVED = "was moved to"
_GONE = "is not there any more: it was deleted, or is hidden from the token"
_UNLISTED = "is not in the group's listing any more"
_NOTICED = re.compile(r" \(noticed [^)]*\)")


def is_paused_by_group(row: Repository) -> bool:
    return row.paused_reason is not None and row.paused_reason.startswith(PAUSED_BY_GROUP)


def is_known_to_be_gone(row: Repository) -> bool:
    """Whether its pause says that it left the group; an archived project had not left it."""
    reason = (row.paused_reason or "").removeprefix(PAUSED_BY_GROUP)
    return is_paused_by_group(row) and reason.startswith((_MOVED, _GONE, _UNLISTED))


def pause_reason(left: str, name: str, when: str) -> str:
    """With the time, and what a person can do."""
    return (
        f"{PAUSED_BY_GROUP}{left} (noticed {when}). Its index stays, and syncs continue if the project comes back; "
        f"`reposync repos remove {name}` removes it with its index."
    )


def says_the_same(reason: str, other: str) -> bool:
    """Ignoring the time."""
    return _NOTICED.sub("", reason) == _NOTICED.sub("", other)
