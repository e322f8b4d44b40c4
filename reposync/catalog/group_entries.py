"""GitLab groups as rows: entries of the registry file, and those that a command or a request over HTTP has put."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from reposync.catalog.targets import CONFIG, GROUP
from reposync.config.gitlab_instance import GitLabInstance
from reposync.config.loading import checked_group, group_of
from reposync.config.registry import Group, Registry
from reposync.errors import ConfigError, GroupExists, GroupNotFound, GroupReadOnly, RegistryConflict
from reposync.store.database import Database
from reposync.store.registry import ProjectGroups
from reposync.store.repositories import Repositories
from reposync.store.tables import GroupEntry, ProjectGroup


def group_key(registry: Registry, group: Group) -> str:
    """`<server's address>/<path of the group>`. Raises ConfigError."""
    return f"{server_of(registry, group).url}/{group.group}"


def server_of(registry: Registry, group: Group) -> GitLabInstance:
    """Raises ConfigError; of a group of the registry file the registry has the server."""
    for server in registry.gitlab:
        if server.name == group.gitlab:
            return server
    raise ConfigError(f"Group {group.group} names the GitLab server {group.gitlab!r}, which does not exist.")


def definition_of(row: GroupEntry) -> Group:
    """Raises ConfigError."""
    try:
        return group_of(row.definition or {})
    except ValidationError as error:  # a newer version of the program may have written more into it
        raise ConfigError(f"The definition of the group {row.key} cannot be read by this version.") from error


def entry_of(registry: Registry, group: Group, origin: str) -> GroupEntry:
    """Raises ConfigError if the registry lacks its server."""
    definition = group.model_dump(mode="json", exclude_unset=True)
    return GroupEntry(key=group_key(registry, group), definition=definition, origin=origin)


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """What applying a registry file writes. `gone`: keys. `conflicts`: groups that the file names, and that a command
    or a request over HTTP has put. `entries`: those of the file before, and from now on."""

    written: Sequence[GroupEntry]
    gone: Sequence[str]
    conflicts: Sequence[GroupEntry]
    entries: tuple[Sequence[GroupEntry], Sequence[GroupEntry]]


def group_changes(registry: Registry, rows: Sequence[ProjectGroup]) -> GroupChanges:
    """`registry`: of the file. A group whose server has a different address now is a different group, as its projects
    are."""
    # Paths in GitLab ignore case.
    stored = {row.key.casefold(): row for row in rows}
    entries: dict[str, GroupEntry] = {}
    conflicts: list[GroupEntry] = []
    for group in registry.groups:
        entry = entry_of(registry, group, CONFIG)
        row = stored.get(entry.key.casefold())
        if row is None or row.origin == CONFIG:
            entries[entry.key] = entry
        else:
            conflicts.append(row)
    before = [row for row in rows if row.origin == CONFIG]
    kept = dict(entries)
    for row in rows:
        if row.origin == CONFIG:
            continue
        kept[row.key] = row
        with suppress(ConfigError):  # its server left the file; its next listing says so
            moved = entry_of(registry, definition_of(row), row.origin)
            if moved.key.casefold() not in {*stored, *map(str.casefold, kept)}:
                kept[moved.key] = moved
                del kept[row.key]
    known = {row.key: row for row in rows}
    written = [entry for key, entry in kept.items() if key not in known or known[key].definition != entry.definition]
    gone = [row.key for row in rows if row.key not in kept]
    return GroupChanges(written, gone, conflicts, (before, list(entries.values())))


async def put_group(database: Database, registry: Registry, values: Mapping[str, Any], origin: str) -> ProjectGroup:
    """Register the group of these keys of the registry file, or give one that was registered over HTTP or by command
    exactly this definition. Raises ConfigError, GroupReadOnly, and GroupExists for a path in different case."""
    entry = entry_of(registry, checked_group(registry, values), origin)
    groups = ProjectGroups(database)
    for row in await groups.all():
        if row.key.casefold() != entry.key.casefold():
            continue
        if row.origin == CONFIG:
            raise _read_only(row)
        if row.key != entry.key:
            raise GroupExists(f"There is the group {row.path!r} already.", remedy="Write its path as it is there.")
        if row.definition == entry.definition:
            return row
    try:
        async with database.write() as connection:
            await groups.write(connection, [entry])
    except RegistryConflict:  # a file with it was applied at this moment
        raise _read_only(entry) from None
    return next(row for row in await groups.all() if row.key == entry.key)


async def remove_group(database: Database, path: str, server: str | None) -> tuple[ProjectGroup, list[str]]:
    """The group that was removed, and the names of its repositories, which are deactivated. `server`: its name, if
    several have a group of that path. Raises GroupNotFound, GroupReadOnly, GroupExists."""
    groups = ProjectGroups(database)
    found = [
        row
        for row in await groups.all()
        if row.path.casefold() == path.casefold() and server in (None, (row.definition or {}).get("gitlab"))
    ]
    if not found:
        raise GroupNotFound(f"There is no group {path!r}{f' of the server {server!r}' if server else ''}.")
    if len(found) > 1:
        raise GroupExists(f"Several servers have a group {path!r}.", remedy="Name one of them as `gitlab`.")
    if found[0].origin == CONFIG:
        raise _read_only(found[0])
    async with database.write() as connection:
        await groups.write(connection, [], gone=[found[0].key])
    return found[0], await deactivate_left(database)


async def deactivate_left(database: Database) -> list[str]:
    """Deactivate repositories whose group is gone, and name them."""
    keys = {row.key for row in await ProjectGroups(database).all()}
    repositories = Repositories(database)
    rows = await repositories.list()
    left = [row.name for row in rows if row.origin == GROUP and row.group_key not in keys and row.is_active]
    await repositories.deactivate(*left)
    return left


def _read_only(row: GroupEntry) -> GroupReadOnly:
    return GroupReadOnly(f"The group {row.path!r} is in the registry file.", remedy="Change it there.")
