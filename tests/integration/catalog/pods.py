"""Processes that read registry files, as far as the catalogue sees them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from reposync.catalog.apply import Applying, Plan, registry_in_force
from reposync.catalog.targets import Catalog
from reposync.config.loading import LoadedRegistry, load_registry
from reposync.store.database import Database
from reposync.store.repositories import Repositories


@dataclass
class Pod:
    """Sees a registry file at `path`, with a content of its own: the mount of one pod is not that of another."""

    database: Database
    path: Path
    name: str = "pod"
    loaded: LoadedRegistry | None = None

    def read(self, text: str) -> LoadedRegistry:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text)
        return load_registry(self.path, os.environ)

    async def starts(self, text: str) -> bool:
        """Whether what it read is in force."""
        self.loaded = self.read(text)
        return await self._writes(self.loaded)

    async def sees_change(self, text: str) -> bool:
        former, self.loaded = self.loaded, self.read(text)
        return await self._writes(self.loaded, instead_of=None if former is None else former.digest)

    async def requests(self, text: str, *, take_over: bool = False) -> Plan:
        """`reposync apply`."""
        applying = Applying(self.database, self.read(text), by="person")
        plan = await applying.plan(take_over=take_over)
        plan.refuse_conflicts()
        await applying.write(plan, on_request=True)
        return plan

    async def plans(self, text: str) -> Plan:
        return await Applying(self.database, self.read(text), by="person").plan()

    async def _writes(self, loaded: LoadedRegistry, instead_of: str | None = None) -> bool:
        applying = Applying(self.database, loaded, by=self.name)
        return await applying.write(await applying.plan(), instead_of=instead_of)


async def active(database: Database) -> dict[str, str]:
    """Name -> location of what is kept in sync."""
    return {row.name: row.location for row in await Repositories(database).list() if row.is_active}


async def catalog_of(database: Database) -> Catalog:
    return Catalog(await registry_in_force(database, {}), Repositories(database))
