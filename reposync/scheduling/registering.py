"""Repositories that a person adds, removes, pauses or resumes, beside those of the registry file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from reposync.config.loading import checked_repository
from reposync.errors import (
    RepositoryChanged,
    RepositoryExists,
    RepositoryInactive,
    RepositoryNotFound,
    RepositoryReadOnly,
    UsageError,
)
from reposync.scheduling.application import FOLLOW_SECONDS, Application
from reposync.scheduling.catalog import COMMAND, Target
from reposync.scheduling.execution import Terms
from reposync.store.repositories import Repository
from reposync.store.run import Run
from reposync.store.status import FINAL, RunTrigger

# How often a change is tried again that met another one.
_TRIES = 10


async def add_repository(app: Application, definition: Mapping[str, Any], *, origin: str = COMMAND) -> Repository:
    """Register what `definition` says, with the keys of the registry file. What was synced by hand before becomes
    scheduled. Raises ConfigError for what does not fit, UsageError for a password, RepositoryReadOnly and
    RepositoryExists where the name is taken."""
    resolved = checked_repository(app.configuration.registry, definition)
    if resolved.password is not None:
        raise _password_not_kept()
    if resolved.path is not None:
        definition = {**definition, "path": str(resolved.path)}
    target = Target(resolved, origin, True, definition)
    if resolved.name in {each.name for each in app.catalog.configured()}:
        raise RepositoryReadOnly(f"{resolved.name!r} is in the registry file.", remedy="Change it there.")
    for row in await app.repositories.list():
        if row.name == resolved.name and (row.cron_expression or row.location != target.registration().location):
            raise RepositoryExists(
                f"There is a repository {row.name!r} already: {row.location}.",
                remedy=f"Choose another name, or `reposync repos remove {row.name}` first.",
            )
    return await app.repositories.register(target.registration())


async def change_repository(
    app: Application, name: str, changes: Mapping[str, Any], *, expected: Repository | None = None
) -> Repository:
    """Give the keys of `changes` new values in what was registered; None stands for the default again. A schedule, be
    it the default one, makes what was synced by hand a scheduled one. Of two who change it at the same time none undoes
    what the other did. `expected`: as the caller read it, where what others did since then must not stand beside it.

    Raises RepositoryNotFound, RepositoryReadOnly for what is not registered by command or over HTTP, ConfigError,
    UsageError for a password, and RepositoryChanged.
    """
    refuse_read_only(app, name)
    if expected is not None:
        return await _change(app, expected, changes)
    for _ in range(_TRIES):
        with contextlib.suppress(RepositoryChanged):
            return await _change(app, await app.repositories.get(name), changes)
    return await _change(app, await app.repositories.get(name), changes)


async def _change(app: Application, row: Repository, changes: Mapping[str, Any]) -> Repository:
    if row.definition is None or row.group_key is not None:
        raise _read_only(row.name, "does not stand alone: a group or another version of reposync registered it")
    definition = {key: value for key, value in {**row.definition, **changes}.items() if value is not None}
    resolved = checked_repository(app.configuration.registry, definition)
    if resolved.password is not None:
        raise _password_not_kept()
    is_scheduled = row.cron_expression is not None or "schedule" in changes
    target = Target(resolved, row.origin, is_scheduled, definition)
    return await app.repositories.register(target.registration(), expected=row)


def refuse_read_only(app: Application, name: str) -> None:
    """Raises RepositoryReadOnly for what stands in the registry file."""
    if name in {each.name for each in app.catalog.configured()}:
        raise _read_only(name, "is in the registry file")


async def request_removal(app: Application, name: str, trigger: RunTrigger) -> Run:
    """The run that removes the repository, once a worker gets to it. Asked again, it is the same run.

    Raises RepositoryNotFound, and RepositoryReadOnly for what would come back by itself.
    """
    refuse_read_only(app, name)
    row = await app.repositories.get(name)
    _refuse_what_comes_back(app, row)
    return await ask_for_removal(app, row, trigger)


async def syncable(app: Application, name: str) -> Repository:
    """The repository of that name, if a run of it makes sense; one of the registry file that no daemon has seen yet
    gets its row. Raises RepositoryNotFound, RepositoryInactive."""
    try:
        row = await app.repositories.get(name)
    except RepositoryNotFound:
        await _registered(app, name)
        row = await app.repositories.get(name)
    if not row.is_active and row.paused_reason is None:
        raise RepositoryInactive(f"{name!r} has left the registry file.", remedy="Add it there again to sync it.")
    return row


async def pause_repository(
    app: Application, name: str, reason: str, *, expected: Repository | None = None
) -> Repository:
    """`expected`: see `change_repository`. Raises RepositoryNotFound, RepositoryChanged."""
    await _registered(app, name)
    return await app.repositories.pause(name, reason, expected=expected)


async def resume_repository(app: Application, name: str, *, expected: Repository | None = None) -> Repository:
    """As `pause_repository`."""
    await _registered(app, name)
    return await app.repositories.resume(name, expected=expected)


async def remove_repository(app: Application, name: str) -> Run:
    """Remove it with its points, once nothing else works on it. Returns the run that did so, as it ended.

    Raises RepositoryNotFound, and RepositoryReadOnly for what would come back by itself.
    """
    row = await app.repositories.get(name)
    _refuse_what_comes_back(app, row)
    run = await ask_for_removal(app, row, RunTrigger.COMMAND)
    while run.status not in FINAL:
        if claimed := await app.claim(row.id):
            ended = await app.execute(app.execution(claimed, Terms()), None, lambda _: None)
            if ended.id == run.id:
                return ended
        await asyncio.sleep(FOLLOW_SECONDS)
        run = await app.runs.get(run.id)
    return run


async def ask_for_removal(app: Application, row: Repository, trigger: RunTrigger) -> Run:
    """Queue the run that removes the repository; whoever claims it does so. What is under way is asked to end."""
    if row.is_active:
        # No tick in between.
        await app.repositories.pause(row.name, "It is being removed.")
    run, _ = await app.runs.enqueue(row.name, trigger, removal=True)
    for other in await app.runs.active(row.id):
        if other.id != run.id:
            await app.runs.request_cancel(other.id)
    return run


def _password_not_kept() -> UsageError:
    return UsageError(
        "A password is not kept in the database.",
        remedy="Register this repository in the registry file, with ${VARIABLE} in its address.",
    )


def _read_only(name: str, why: str) -> RepositoryReadOnly:
    return RepositoryReadOnly(f"{name!r} {why}.", remedy="Change it there.")


def _refuse_what_comes_back(app: Application, row: Repository) -> None:
    if row.name in {each.name for each in app.catalog.configured()}:
        raise RepositoryReadOnly(f"{row.name!r} is in the registry file.", remedy="Remove it there first.")
    if row.group_key is not None and row.is_active:
        raise RepositoryReadOnly(
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
