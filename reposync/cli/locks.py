"""`reposync locks`: what guards the syncs that are at work."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import click

from reposync.cli.completion import repository_names
from reposync.cli.group import Group
from reposync.cli.output import duration, json_option, print_json, table_console, visible
from reposync.cli.startup import run_async

if TYPE_CHECKING:
    from reposync.runs.lock_overview import LockOverview, LockRelease
    from reposync.runs.locks import RunLocks
    from reposync.store.repositories import Repositories
    from reposync.store.runs import Runs

STYLES = {"held": "green", "database": "cyan", "stale": "yellow", "foreign": "red"}


@click.group(cls=Group)
def locks() -> None:
    """What guards the syncs that are at work: list the locks, or take one away."""


@locks.command("list")
@json_option
def list_(as_json: bool) -> None:
    """The locks in Redis, and the runs at work that have none.

    \b
    held      by the worker that executes the run
    stale     its holder does not count any more; the next run replaces it
    foreign   not written by this installation; the next run waits for it
    database  the run's row guards it alone: there is no Redis, or it is away
    """
    found = run_async(_list())
    if as_json:
        print_json([each.as_json() for each in found])
    elif not found:
        click.echo("No repository is locked.")
    else:
        _print_table(found)


@locks.command()
@click.argument("name", shell_complete=repository_names)
@click.option("--force", is_flag=True, help="Whoever holds it; its run is asked to end.")
@json_option
def release(name: str, force: bool, as_json: bool) -> None:
    """Remove the lock of the repository NAME, whose holder does not count any more.

    This is seldom needed: a run replaces the lock of one that died. What another installation left on a shared Redis
    is removed with --force alone.
    """
    done = run_async(_release(name, force=force))
    if as_json:
        print_json(done.as_json())
    else:
        click.echo(_sentence(done))


def _sentence(done: LockRelease) -> str:
    name = visible(done.lock.shown_name)
    told = (
        f"{name}: the lock of {visible(done.lock.holder)} was removed" if done.released else f"{name}: no lock in Redis"
    )
    if done.cancel_requested:
        return f"{told}; run {done.lock.run_id} was asked to end."
    if not done.released:
        return f"{told}; the lease of run {done.lock.run_id} is over, and another worker takes it over by itself."
    return f"{told}."


def _print_table(found: list[LockOverview]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("repository", "state", "pod", "holder", "run"):
        table.add_column(title, overflow="fold")
    for title in ("attempt", "lock ends in", "lease ends in"):
        table.add_column(title, justify="right")
    for each in found:
        table.add_row(
            Text(visible(each.shown_name)),
            Text(each.state, STYLES[each.state]),
            Text(visible(each.pod or "-")),
            Text(visible(each.holder)),
            each.run_id or "-",
            "-" if each.attempt is None else str(each.attempt),
            _lock_ends(each),
            _lease_ends(each),
        )
    table_console().print(table)


def _lock_ends(each: LockOverview) -> str:
    if each.value is None:
        return "-"
    return "never" if each.ttl_seconds is None else duration(round(each.ttl_seconds))


def _lease_ends(each: LockOverview) -> str:
    if each.lease_seconds is None:
        return "-"
    return "over" if each.lease_is_over else f"{each.lease_seconds:.0f} s"


async def _list() -> list[LockOverview]:
    from reposync.runs.lock_overview import lock_overviews

    async with _opened() as (found, repositories, runs):
        return await lock_overviews(found, repositories, runs)


async def _release(name: str, *, force: bool) -> LockRelease:
    from reposync.cli.person import person
    from reposync.runs.lock_overview import release_lock

    async with _opened() as (found, repositories, runs):
        return await release_lock(name, found, repositories, runs, force=force, by=person())


@contextlib.asynccontextmanager
async def _opened() -> AsyncGenerator[tuple[RunLocks, Repositories, Runs], None]:
    from reposync.cli.state import open_state
    from reposync.config.settings import Settings
    from reposync.runs.locks import NoLocks, stale_by
    from reposync.store.repositories import Repositories
    from reposync.store.runs import Runs

    async with open_state() as database:
        runs = Runs(database)
        url = Settings.from_environment().redis_url
        found: RunLocks = NoLocks()
        if url is not None:
            from reposync.runs.redis_locks import RedisLocks

            found = RedisLocks.open(url, is_stale=stale_by(runs))
        try:
            yield found, Repositories(database), runs
        finally:
            await found.close()
