"""Repositories that a person adds, removes, pauses or resumes, beside those of the registry file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from reposync.config.loading import checked_repository
from reposync.errors import UsageError
from reposync.scheduling.application import FOLLOW_SECONDS, Application
from reposync.scheduling.catalog import COMMAND, Target
from reposync.scheduling.execution import Terms
from reposync.scheduling.removal import RemovalRun
from reposync.store.repositories import Repository
from reposync.store.run import Run
from reposync.store.status import FINAL, RunTrigger
from reposync.sync.lease import Lease


async def add_repository(app: Application, definition: Mapping[str, Any], *, origin: str = COMMAND) -> Repository:
    """Register what `definition` says, with the keys of the registry file. What was synced by hand before becomes
    scheduled. Raises ConfigError for what does not fit, UsageError where the name is taken."""
    resolved = checked_repository(app.configuration.registry, definition)
    if resolved.password is not None:
        raise UsageError(
            "A password is not kept in the database.",
            remedy="Register this repository in the registry file, with ${VARIABLE} in its address.",
        )
    if resolved.path is not None:
        definition = {**definition, "path": str(resolved.path)}
    target = Target(resolved, origin, True, definition)
    if resolved.name in {each.name for each in app.catalog.configured()}:
        raise UsageError(f"{resolved.name!r} is in the registry file.", remedy="Change it there.")
    for row in await app.repositories.list():
        if row.name == resolved.name and (row.cron_expression or row.location != target.registration().location):
            raise UsageError(
                f"There is a repository {row.name!r} already: {row.location}.",
                remedy=f"Choose another name, or `reposync repos remove {row.name}` first.",
            )
    return await app.repositories.register(target.registration())


async def pause_repository(app: Application, name: str, reason: str) -> Repository:
    """Raises RepositoryNotFound."""
    await _registered(app, name)
    return await app.repositories.pause(name, reason)


async def resume_repository(app: Application, name: str) -> Repository:
    """Raises RepositoryNotFound."""
    await _registered(app, name)
    return await app.repositories.resume(name)


async def remove_repository(app: Application, name: str) -> Run:
    """Remove it with its points, once nothing else works on it. Returns the run that did so, as it ended.

    Raises RepositoryNotFound, and UsageError for what would come back by itself.
    """
    row = await app.repositories.get(name)
    _refuse_what_comes_back(app, row)
    if row.is_active:
        # No tick in between.
        await app.repositories.pause(name, "It is being removed.")
    for run in await app.runs.active(row.id):
        await app.runs.request_cancel(run.id)
    collections = {row.collection, row.indexed_collection or row.collection}
    indexes = [index for index in map(app.index, sorted(collections)) if await index.spec() is not None]
    run, _ = await app.runs.enqueue(name, RunTrigger.COMMAND)
    while run.status not in FINAL:
        if claimed := await app.claim(row.id):
            execution = app.execution(claimed, Terms())

            async def make(lease: Lease, claimed: Run = claimed) -> RemovalRun:
                return RemovalRun(row, indexes, app.repositories, app.manifests, claimed, lease)

            return await execution.perform(make)
        await asyncio.sleep(FOLLOW_SECONDS)
        run = await app.runs.get(run.id)
    return run


def _refuse_what_comes_back(app: Application, row: Repository) -> None:
    if row.name in {each.name for each in app.catalog.configured()}:
        raise UsageError(f"{row.name!r} is in the registry file.", remedy="Remove it there first.")
    if row.group_key is not None and row.is_active:
        raise UsageError(
            f"{row.name!r} is there because of a group, {row.group_key}, and would come back.",
            remedy="Add its path to the group's `exclude` in the registry file first.",
        )


async def _registered(app: Application, name: str) -> None:
    """A repository of the registry file that no daemon has seen yet gets its row."""
    for target in app.catalog.configured():
        if target.name == name:
            rows = {row.name for row in await app.repositories.list()}
            if name not in rows:
                await app.repositories.register(target.registration())
            return
    await app.repositories.get(name)
