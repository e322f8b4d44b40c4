"""`reposync locks`: the locks of running syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reposync import operations
from reposync.cli.commands import Group
from reposync.cli.output import Result, performs, table
from reposync.words import duration, escape_unprintable

if TYPE_CHECKING:
    from reposync.cli.performing import Performer


locks = Group("locks")


@locks.command("list")
@performs
def list_(perform: Performer) -> Result:
    """The locks in Redis, and the running syncs without one.

    \b
    held      by the worker that executes the run
    stale     its holder has lost the run; the next run replaces it
    foreign   not written by this installation; the next run waits for it
    database  only the run's row guards it: there is no Redis, or it is unreachable
    """
    document = perform(operations.index.locks)
    rows = table(list(map(_row, document.items)), fold=("repository", "pod", "holder", "run")) if document.items else ""
    return Result(document, [rows or "No repository is locked."])


@locks.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Release it whoever holds it, and request its run to stop.")
@performs
def release(perform: Performer, name: str, force: bool) -> Result:
    """Remove the stale lock of the repository NAME.

    This is seldom needed: a run replaces the lock of a dead one. A lock of a different installation on a shared Redis
    is removed with --force only.
    """
    released = perform(operations.index.release, {"force": force}, repository=name)
    return Result(released, [_sentence(released)])


def _sentence(lock: operations.index.Release) -> str:
    result = f"the lock of {escape_unprintable(lock.holder)} was removed" if lock.released else "no lock in Redis"
    text = f"{escape_unprintable(lock.repository)}: {result}"
    if lock.cancel_requested:
        return f"{text}; run {lock.run_id} was requested to stop."
    return f"{text}."


def _row(lock: operations.index.Lock) -> dict[str, Any]:
    return {
        "repository": lock.repository,
        "state": lock.state,
        **{"pod": lock.pod, "holder": lock.holder, "run": lock.run_id, "attempt": lock.attempt},
        "lock ends in": duration(lock.ttl_seconds and round(lock.ttl_seconds)),
    }
