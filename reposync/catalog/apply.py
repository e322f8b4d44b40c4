"""Applying the registry file to the catalogue.

Decision 0011: a database has one registry document, which is identified by a digest and replaced as a whole. A document
that was replaced is applied again only on request, or if the file was seen to change to it from the current one. So a
pod that still has the older file reverts nothing, and a rollback of the file works.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from pydantic import ValidationError

from reposync.catalog.group_entries import GroupChanges, deactivate_left, group_changes
from reposync.catalog.targets import CONFIG, redefined, registration_of
from reposync.config.loading import LoadedRegistry, checked_repository, registry_of, sentences
from reposync.config.registry import Registry
from reposync.errors import ConfigError, RegistryConflict
from reposync.store.database import Connection, Database
from reposync.store.registry import ContentState, ProjectGroups, RegistryDocuments, RegistryReplaced
from reposync.store.repositories import Repositories, conflict_over
from reposync.store.repository import Registration, Repository, belongs_to_another
from reposync.store.tables import GroupEntry, RegistryDocument

Keys = Mapping[str, tuple[Any, Any]]
Kind = Literal["added", "changed", "gone"]

_LISTS = {"gitlab": "GitLab server {name}"}


@dataclass(frozen=True, slots=True)
class Change:
    """`what`: "repository payments-api", "section embedding". `keys`: (before, after) by key."""

    kind: Kind
    what: str
    keys: Keys = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying a file changes."""

    path: str
    digest: str
    before: RegistryDocument | None
    """The document that is current until then."""
    standing: ContentState
    changes: Sequence[Change]
    conflicts: Sequence[Repository | GroupEntry]
    """Repositories and groups that the file names, and that a command or a request over HTTP registered."""
    unchanged: int
    registrations: Sequence[Registration]
    gone: Sequence[str]
    groups: GroupChanges
    applied: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "digest": self.digest,
            "standing": self.standing,
            "changes": [asdict(change) for change in self.changes],
            "conflicts": [{"what": row.title, "theirs": row.origin_words} for row in self.conflicts],
            "unchanged": self.unchanged,
            "applied": self.applied,
        }

    def conflict(self) -> RegistryConflict | None:
        """Names all conflicts."""
        if not self.conflicts:
            return None
        rows = [row for row in self.conflicts if isinstance(row, Repository)]
        return conflict_over(rows, [row for row in self.conflicts if isinstance(row, GroupEntry)])


class Applying:
    """Applies one loaded registry file. Every method raises StoreUnavailable."""

    def __init__(self, database: Database, loaded: LoadedRegistry, *, by: str) -> None:
        if loaded.path is None:
            raise ConfigError("There is no registry file to apply.", remedy="Name one: `reposync apply FILE`.")
        self._database = database
        self._documents = RegistryDocuments(database)
        self._repositories = Repositories(database)
        self._groups = ProjectGroups(database)
        self._loaded = loaded
        self._path = str(loaded.path.absolute())
        self._by = by

    async def plan(self) -> Plan:
        """Writes nothing."""
        before, rows = await self._documents.current(), {row.name: row for row in await self._repositories.list()}
        groups = group_changes(self._loaded.registry, await self._groups.all())
        # Thousands of entries take a second.
        return await asyncio.to_thread(self._planned, before, rows, groups)

    async def apply(self, *, instead_of: str | None = None, on_request: bool = False) -> Plan:
        """Carry out the plan in one transaction, and return it; `applied`: whether the document is current now. A
        superseded one is applied only `on_request`, or if `instead_of` is current: the digest from which the file was
        seen to change. With conflicts, a request changes nothing, and otherwise everything else is applied."""
        while True:
            plan = await self.plan()
            current = None if plan.before is None else plan.before.digest
            if plan.conflicts if on_request else plan.standing == "superseded" and current != instead_of:
                return plan
            guard = partial(self._write_document, plan=plan, instead_of=current)
            # Otherwise a different process wrote after the plan was made, which is made again.
            with contextlib.suppress(RegistryReplaced, RegistryConflict):
                await self._repositories.register_all(plan.registrations, leaving=plan.gone, guard=guard)
                if plan.groups.gone:
                    await deactivate_left(self._database)
                return replace(plan, applied=True)

    async def _write_document(self, connection: Connection, plan: Plan, instead_of: str | None) -> None:
        """With the groups of the file."""
        document = self._loaded.document
        await self._documents.replace(connection, plan.path, plan.digest, document, by=self._by, instead_of=instead_of)
        await self._groups.write(connection, plan.groups.written, plan.groups.gone)

    def _planned(self, before: RegistryDocument | None, rows: Mapping[str, Repository], groups: GroupChanges) -> Plan:
        standing = _standing(before, self._loaded.digest)
        # Pods may mount the same file at different paths.
        file = before.path if before is not None and standing == "current" else self._path
        entries = [registration_of(each, CONFIG, origin_file=file) for each in self._loaded.registry.resolved()]
        registrations, conflicts = [], []
        for registration in entries:
            row = rows.get(registration.name)
            if row is not None and belongs_to_another(row, registration):
                conflicts.append(row)
            else:
                registrations.append(registration)
        claimed = {registration.name for registration in entries}
        gone = [
            row.name for row in rows.values() if row.origin == CONFIG and row.name not in claimed and not row.has_left
        ]
        changes = [change for each in registrations if (change := _change(each, rows.get(each.name))) is not None]
        with_defaults = self._with_defaults(row for row in rows.values() if row.name not in claimed)
        return Plan(
            self._path,
            self._loaded.digest,
            before,
            standing,
            changes=(
                *_section_changes(
                    _entries(before.document if before else {}, groups.entries[0]),
                    _entries(self._loaded.document, groups.entries[1]),
                ),
                *changes,
                *(Change("gone", f"repository {name}") for name in gone),
            ),
            conflicts=[*conflicts, *groups.conflicts],
            unchanged=len(registrations) - len(changes),
            registrations=[each for each in (*registrations, *with_defaults) if each.differs_from(rows.get(each.name))],
            gone=gone,
            groups=groups,
        )

    def _with_defaults(self, rows: Iterator[Repository]) -> Iterator[Registration]:
        """Yield the repositories registered by command or over HTTP, with the defaults of the file."""
        for row in rows:
            if row.definition is not None and row.group_key is None and not row.has_left:
                with contextlib.suppress(ConfigError):  # its server left the file; its next run says so
                    yield redefined(row, checked_repository(self._loaded.registry, row.definition))


def _standing(before: RegistryDocument | None, digest: str) -> ContentState:
    """A document that an upgrade merged from several files is replaced on request only."""
    if before is None:
        return "new"
    if before.digest == digest:
        return "current"
    return "superseded" if digest in before.superseded or not before.digest else "new"


async def registry_in_force(database: Database) -> Registry:
    """The sections of the applied document, with secrets from this process's environment. Raises ConfigError if this
    version cannot read what a newer one wrote."""
    current = await RegistryDocuments(database).current()
    try:
        return registry_of({} if current is None else current.document, os.environ)
    except ValidationError as error:
        raise ConfigError(f"The applied registry cannot be used here: {'; '.join(sentences(error))}.") from None


def _entries(document: Mapping[str, Any], groups: Iterable[GroupEntry]) -> dict[str, Mapping[str, Any]]:
    """The parts of a file by name: "section embedding", "GitLab server main", "group main/platform"."""
    found: dict[str, Mapping[str, Any]] = {group.title: group.definition or {} for group in groups}
    for section, value in document.items():
        if section in _LISTS:
            found |= {_LISTS[section].format_map(entry): entry for entry in value}
        else:
            found[f"section {section}"] = value
    return found


def _section_changes(former: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> list[Change]:
    changes = []
    for what in sorted(former.keys() | now.keys(), key=lambda each: (not each.startswith("section "), each)):
        one, other = former.get(what, {}), now.get(what, {})
        if keys := _keys(one, other):
            changes.append(Change("changed" if one and other else "added" if other else "gone", what, keys))
    return changes


def _keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = sorted(before.keys() | after.keys())
    return {key: (before.get(key), after.get(key)) for key in names if before.get(key) != after.get(key)}


def _change(registration: Registration, row: Repository | None) -> Change | None:
    what = f"repository {registration.name}"
    after = dict(registration.resolved or {})
    if row is None or row.has_left:
        return Change("added", what, _keys({}, after))
    before = dict(row.resolved or {})
    if row.origin_file not in (None, registration.origin_file) or row.origin != registration.origin:
        before["origin"], after["origin"] = row.origin_words, f"the registry file {registration.origin_file}"
    keys = _keys(before, after)
    return Change("changed", what, keys) if keys else None
