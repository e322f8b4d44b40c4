"""Adding, changing, removing, pausing and resuming repositories outside the registry file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reposync.catalog.targets import COMMAND, CONFIG, Catalog, SyncTarget, is_bare_repository
from reposync.config.loading import checked_repository
from reposync.errors import (
    Remedy,
    RepositoryChanged,
    RepositoryExists,
    RepositoryInactive,
    RepositoryReadOnly,
    UsageError,
)
from reposync.store.repositories import Repositories
from reposync.store.repository import Repository, is_registered
from reposync.store.run import Run
from reposync.store.runs import Runs
from reposync.store.status import RunTrigger

# Retries of a change that conflicts with a concurrent one.
_TRIES = 10


async def add_repository(catalog: Catalog, definition: Mapping[str, Any], *, origin: str = COMMAND) -> Repository:
    """Register `definition`, which has the keys of the registry file. A repository that was synced by hand becomes
    scheduled. Raises ConfigError for an invalid definition, UsageError for a password, RepositoryReadOnly and
    RepositoryExists if the name is taken."""
    resolved = checked_repository(catalog.registry, definition)
    if resolved.password is not None:
        raise _password_not_kept()
    if resolved.path is not None:
        await asyncio.to_thread(_require_repository, resolved.path)
        definition = {**definition, "path": str(resolved.path)}
    target = SyncTarget(resolved, origin, definition=definition)
    for row in await catalog.repositories.list([resolved.name]):
        if row.origin == CONFIG and not row.has_left:
            raise _read_only(row.name, f"is in {row.origin_words}")
        if is_registered(row) or row.location != target.registration().location:
            raise RepositoryExists(
                f"There is a repository {row.name!r} already: {row.location}.",
                remedy=Remedy(
                    f"Choose another name, or `reposync repos remove {row.name}` first.",
                    f"Choose another name, or `DELETE /api/v1/repositories/{row.name}` first.",
                ),
            )
    return await catalog.repositories.register(target.registration())


async def change_repository(
    catalog: Catalog, name: str, changes: Mapping[str, Any], *, expected: Repository | None = None
) -> Repository:
    """Change keys of a registered definition; None resets a key to the default. Setting `schedule`, also to the
    default, makes a repository that was synced by hand a scheduled one. Concurrent changes are merged. `expected`: the
    row as the caller read it; if it was changed since, RepositoryChanged is raised.

    Raises RepositoryNotFound, RepositoryReadOnly if it was not registered by command or over HTTP, ConfigError,
    UsageError for a password, and RepositoryChanged.
    """
    if expected is not None:
        return await _change(catalog, expected, changes)
    for _ in range(_TRIES):
        with contextlib.suppress(RepositoryChanged):
            return await _change(catalog, await catalog.repositories.get(name), changes)
    return await _change(catalog, await catalog.repositories.get(name), changes)


async def _change(catalog: Catalog, row: Repository, changes: Mapping[str, Any]) -> Repository:
    if row.origin == CONFIG:
        raise _read_only(row.name, f"is in {row.origin_words}")
    if row.definition is None or row.group_key is not None:
        raise _read_only(row.name, "was registered by a group or by a different version of reposync")
    definition = {key: value for key, value in {**row.definition, **changes}.items() if value is not None}
    resolved = checked_repository(catalog.registry, definition)
    if resolved.password is not None:
        raise _password_not_kept()
    by_hand = not is_registered(row) and "schedule" not in changes
    target = SyncTarget(resolved, row.origin, by_hand, definition, origin_host=row.origin_host)
    return await catalog.repositories.register(target.registration(), expected=row)


async def request_removal(
    repositories: Repositories,
    runs: Runs,
    name: str,
    trigger: RunTrigger,
    *,
    asked_by: str = "",
    request_id: str | None = None,
) -> Run:
    """Queue the run that removes the repository, whose active run is requested to end. A repeated request returns the
    same run.

    Raises RepositoryNotFound, and RepositoryReadOnly if it would be registered again.
    """
    row = await repositories.get(name)
    _refuse_if_it_would_return(row)
    if row.is_active:
        # So that no tick comes in between.
        await repositories.pause(row.name, "It is being removed.", by=f"the removal by {asked_by or trigger}")
    run, _ = await runs.enqueue(row.name, trigger, asked_by=asked_by, request_id=request_id, removal=True)
    return run


async def syncable(repositories: Repositories, name: str) -> Repository:
    """The repository, if it can be synced. Raises RepositoryNotFound, RepositoryInactive."""
    row = await repositories.get(name)
    if row.has_left:
        raise RepositoryInactive(f"{name!r} has left {row.origin_words}.", remedy="Add it there again to sync it.")
    return row


def _password_not_kept() -> UsageError:
    return UsageError(
        "Passwords are not stored in the database.",
        remedy="Register this repository in the registry file, with ${VARIABLE} in its address.",
    )


def _read_only(name: str, why: str) -> RepositoryReadOnly:
    return RepositoryReadOnly(f"{name!r} {why}.", remedy="Change it there.")


def _require_repository(path: Path) -> None:
    if not (path / ".git").exists() and not is_bare_repository(path):
        raise UsageError(f"{path} is not a git repository on this machine.", remedy="Name the folder that has `.git`.")


def _refuse_if_it_would_return(row: Repository) -> None:
    if row.origin == CONFIG and not row.has_left:
        raise RepositoryReadOnly(
            f"{row.name!r} is in {row.origin_words}, and would be registered again.", remedy="Remove it there first."
        )
    if row.group_key is not None and row.is_active:
        raise RepositoryReadOnly(
            f"{row.name!r} belongs to the group {row.group_key}, and would be registered again.",
            remedy="Add its path to the group's `exclude` in the registry file first.",
        )
