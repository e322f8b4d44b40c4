"""Applying a registry file to the catalogue.

Decision 0011: a file is identified by its path, its content by a digest. A superseded content is applied again only on
request, or if the file was seen to change to it from the content in force. So a pod that still has the older file
reverts nothing, and a rollback of the file works.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from reposync.catalog.targets import CONFIG, Catalog, SyncTarget
from reposync.config.loading import LISTS, Clear, LoadedRegistry, entry_key, registry_of, sentences
from reposync.config.registry import Registry
from reposync.errors import ConfigError, RegistryConflict
from reposync.store.database import Database
from reposync.store.registry import ContentState, RegistryFiles
from reposync.store.repositories import Repositories
from reposync.store.repository import Registration, Repository, belongs_to_another
from reposync.store.tables import RegistryFile

Keys = Mapping[str, tuple[Any, Any]]
Kind = Literal["added", "changed", "gone"]

_KINDS = {"gitlab": "GitLab server", "groups": "group"}
# Files may differ in these: defaults apply to the file's own repositories, `http` to the pod that reads the file.
_OF_EACH_FILE = frozenset({"section defaults", "section http"})


@dataclass(frozen=True, slots=True)
class Change:
    """`what`: "repository payments-api", "section embedding". `keys`: (before, after) by key."""

    kind: Kind
    what: str
    keys: Keys = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Conflict:
    """An entry of the file that a different file, or a person, has registered."""

    what: str
    theirs: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying a file changes."""

    path: str
    digest: str
    standing: ContentState
    changes: tuple[Change, ...]
    conflicts: tuple[Conflict, ...]
    unchanged: int
    document: Mapping[str, Any]
    registrations: Sequence[Registration]
    gone: Sequence[str]
    takes: tuple[str, ...] | None

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "digest": self.digest,
            "standing": self.standing,
            "changes": [asdict(each) for each in self.changes],
            "conflicts": [asdict(each) for each in self.conflicts],
            "unchanged": self.unchanged,
        }

    def conflict(self) -> RegistryConflict | None:
        """Names all conflicts."""
        if not self.conflicts:
            return None
        named = "; ".join(f"{each.what} belongs to {each.theirs}" for each in self.conflicts)
        return RegistryConflict(
            f"{self.path} contains entries that belong to others, which were not written: {named}.",
            remedy="Remove it from one of the two, or run `reposync apply --take-over`.",
        )


class Applying:
    """Applies one loaded registry file. Every method raises StoreUnavailable."""

    def __init__(self, database: Database, loaded: LoadedRegistry, *, by: str) -> None:
        if loaded.path is None:
            raise ConfigError("There is no registry file to apply.", remedy="Name one: `reposync apply FILE`.")
        self._database = database
        self._files = RegistryFiles(database)
        self._repositories = Repositories(database)
        self._loaded = loaded
        self._path = str(loaded.path.absolute())
        self._digest = loaded.digest
        self._by = by
        self._host = socket.gethostname()

    async def plan(self, *, take_over: bool = False) -> Plan:
        """Writes nothing."""
        files, rows = await self._files.all(), {row.name: row for row in await self._repositories.list()}
        standing = await self._files.content_state(self._path, self._digest)
        # Thousands of entries take a second.
        return await asyncio.to_thread(self._planned, files, rows, standing, take_over=take_over)

    def _planned(
        self, files: Sequence[RegistryFile], rows: Mapping[str, Repository], standing: ContentState, *, take_over: bool
    ) -> Plan:
        before = next((each for each in files if each.path == self._path), None)
        others = [each for each in files if each.path != self._path]
        # A file that was moved or removed on this machine owns nothing any more.
        lost = [each for each in others if each.host == self._host and not Path(each.path).exists()]
        takes = None if take_over else tuple(each.path for each in lost)
        rivals = [] if take_over else [each for each in others if each not in lost]
        document, conflicts = _without_conflicts(self._loaded.document, {each.path: each.document for each in rivals})
        registrations = []
        servers = {each.what for each in conflicts}
        for each in self._loaded.registry.resolved():
            if f"GitLab server {each.gitlab}" in servers:
                continue
            target = SyncTarget(each, CONFIG, origin_file=self._path)
            registration = target.registration()
            row = rows.get(each.name)
            if row is not None and belongs_to_another(row, registration, takes):
                conflicts.append(Conflict(f"repository {each.name}", row.origin_words))
            else:
                registrations.append(registration)
        claimed = {each.name for each in self._loaded.registry.repositories}
        mine = {None, self._path, *(each.path for each in lost)}
        gone = [
            row.name
            for row in rows.values()
            if row.origin == CONFIG and row.name not in claimed and row.origin_file in mine and not row.has_left
        ]
        changes = [change for each in registrations if (change := _change(each, rows.get(each.name))) is not None]
        # In the order in which they were first applied: the first file decides the defaults.
        documents = [document if each is before else each.document for each in files if each not in lost]
        followers = self._followers(rows, claimed, documents if before is not None else [*documents, document])
        return Plan(
            self._path,
            self._digest,
            standing,
            (
                *_section_changes(before.document if before else {}, document),
                *changes,
                *(Change("gone", f"repository {name}") for name in gone),
            ),
            tuple(conflicts),
            len(registrations) - len(changes),
            document,
            [*(each for each in registrations if _differs(each, rows.get(each.name))), *followers],
            gone,
            takes,
        )

    async def write(self, plan: Plan, *, instead_of: str | None = None, on_request: bool = False) -> bool:
        """Returns whether the content is in force; False if a newer one superseded it. Safe to repeat and to abandon at
        any await: the next process that applies the same content does the rest. Raises RegistrySuperseded."""
        who = {"host": self._host, "by": self._by}
        standing = await self._files.put(
            self._path, self._digest, plan.document, **who, instead_of=instead_of, on_request=on_request
        )
        if standing == "superseded":
            return False
        await self._take_over(plan)
        guard = partial(self._files.require_current, self._path, self._digest)
        await self._repositories.register_all(plan.registrations, takes=plan.takes, guard=guard)
        for name in plan.gone:
            await self._repositories.deactivate(name, guard=guard)
        return True

    async def _take_over(self, plan: Plan) -> None:
        """Remove this file's entries from the other files."""
        for other in await self._files.all():
            if other.path == self._path:
                continue
            if plan.takes is not None and other.path in plan.takes:
                await self._files.forget(other.path, other.digest)
            elif plan.takes is None and _left_by(plan, other.document) is not None:
                await self._files.rewrite(other.path, partial(_left_by, plan), taker=plan.path, digest=plan.digest)

    def _followers(
        self, rows: Mapping[str, Repository], claimed: set[str], documents: Sequence[Mapping[str, Any]]
    ) -> list[Registration]:
        """Repositories registered by command or over HTTP, if the defaults of the files change them."""
        try:
            registry = _usable(documents, self._loaded.clear)
        except ConfigError:  # of a different file; reported by whoever uses that registry
            return []
        catalog = Catalog(registry, self._repositories)
        found = []
        for row in rows.values():
            if row.definition is None or row.group_key is not None or row.name in claimed or row.has_left:
                continue
            with contextlib.suppress(ConfigError):  # its server left the files; its next run says so
                registration = catalog.of_definition(row).registration()
                if _differs(registration, row):
                    found.append(registration)
        return found


async def registry_in_force(database: Database, clear: Clear) -> Registry:
    """The sections of all applied files, with secrets from this process's environment. Raises ConfigError if this
    version cannot read what a newer one wrote."""
    return _usable([each.document for each in await RegistryFiles(database).all()], clear)


def _usable(documents: Sequence[Mapping[str, Any]], clear: Clear) -> Registry:
    try:
        return registry_of(documents, os.environ, clear)
    except ValidationError as error:
        raise ConfigError(f"The applied registry cannot be used here: {'; '.join(sentences(error))}.") from None


def _entries(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The parts of a document that belong to one file, by name: "section embedding", "GitLab server main"."""
    found: dict[str, Mapping[str, Any]] = {}
    for section, value in document.items():
        if section in LISTS:
            found |= {_entry(section, each): each for each in value}
        else:
            found[f"section {section}"] = value
    return found


def _entry(section: str, entry: Mapping[str, Any]) -> str:
    return f"{_KINDS[section]} {entry_key(section, entry)}"


def _without_conflicts(
    document: Mapping[str, Any], rivals: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Conflict]]:
    """The document without entries that a rival file defines differently, and these conflicts. `rivals`: documents by
    path."""
    theirs = {path: _entries(other) for path, other in rivals.items()}
    conflicts = []
    for what, value in _entries(document).items():
        rival = next((path for path, entries in theirs.items() if entries.get(what, value) != value), None)
        if rival is not None and what not in _OF_EACH_FILE:
            conflicts.append(Conflict(what, f"the registry file {rival}"))
    lost = {each.what for each in conflicts}
    left: dict[str, Any] = {}
    for section, value in document.items():
        if section in LISTS:
            kept = [each for each in value if _entry(section, each) not in lost]
            left[section] = [each for each in kept if f"GitLab server {each.get('gitlab')}" not in lost]
        elif f"section {section}" not in lost:
            left[section] = value
    return left, conflicts


def _left_by(plan: Plan, theirs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A different file's document without what this plan takes over; None if it takes nothing."""
    left, taken = _without_conflicts(theirs, {plan.path: plan.document})
    return left if taken else None


def _section_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    former, now = _entries(before), _entries(after)
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


def _differs(registration: Registration, row: Repository | None) -> bool:
    if row is None or row.has_left:
        return True
    said = {key: value for key, value in registration.model_dump().items() if key not in ("project_id", "origin_host")}
    return any(getattr(row, key) != value for key, value in said.items())
