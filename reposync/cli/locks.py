"""`reposync locks`: the locks of running syncs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import Group, current_user, settings, with_database
from reposync.cli.output import Result, table
from reposync.words import duration, escape_unprintable

if TYPE_CHECKING:
    from reposync.runs.locks import Lock, Release
    from reposync.runs.redis_locks import RedisLocks
    from reposync.store.database import Database
    from reposync.store.history import RunHistory
    from reposync.store.repositories import Repositories


locks = Group("locks")


@locks.command("list")
@with_database
async def list_(database: Database) -> Result:
    """The locks in Redis, and the running syncs without one.

    \b
    held      by the worker that executes the run
    stale     its holder has lost the run; the next run replaces it
    foreign   not written by this installation; the next run waits for it
    database  only the run's row guards it: there is no Redis, or it is unreachable
    """
    from reposync.runs.locks import lock_overviews

    async with _opened(database) as stores:
        found = await lock_overviews(*stores)
    rows = table(list(map(_row, found)), fold=("repository", "pod", "holder", "run")) if found else None
    return Result([each.model_dump() for each in found], [rows or "No repository is locked."])


@locks.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Release it whoever holds it, and request its run to stop.")
@with_database
async def release(database: Database, name: str, force: bool) -> Result:
    """Remove the stale lock of the repository NAME.

    This is seldom needed: a run replaces the lock of a dead one. A lock of a different installation on a shared Redis
    is removed with --force only.
    """
    from reposync.runs.locks import release_lock
    from reposync.store.runs import Runs

    async with _opened(database) as stores:
        done = await release_lock(name, *stores, Runs(database), force=force, by=current_user())
    return Result(done.model_dump(), [_sentence(done)])


def _sentence(done: Release) -> str:
    result = f"the lock of {escape_unprintable(done.holder)} was removed" if done.released else "no lock in Redis"
    text = f"{escape_unprintable(done.repository)}: {result}"
    if done.cancel_requested:
        return f"{text}; run {done.run_id} was requested to stop."
    return f"{text}."


def _row(each: Lock) -> dict[str, Any]:
    return {
        "repository": each.repository,
        "state": each.state,
        **{"pod": each.pod, "holder": each.holder, "run": each.run_id, "attempt": each.attempt},
        "lock ends in": duration(each.ttl_seconds and round(each.ttl_seconds)),
    }


@contextlib.asynccontextmanager
async def _opened(database: Database) -> AsyncGenerator[tuple[RedisLocks | None, Repositories, RunHistory], None]:
    from reposync.store.history import RunHistory
    from reposync.store.repositories import Repositories

    history, url = RunHistory(database), settings().redis_url
    if url is None:
        yield None, Repositories(database), history
        return
    from reposync.runs.redis_locks import RedisLocks

    locks = RedisLocks(url, history)
    try:
        yield locks, Repositories(database), history
    finally:
        await locks.close()
