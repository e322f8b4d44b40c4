"""`reposync index`: the versions of each repository's index. `reposync locks`: the locks of running syncs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from reposync import operations
from reposync.cli.commands import Group
from reposync.cli.completion import repository_names
from reposync.cli.output import NO_REPOSITORY, Line, Result, short
from reposync.cli.performing import Performer, performs
from reposync.cli.tables import table, wide_option
from reposync.words import ago, duration, escape_unprintable, until

if TYPE_CHECKING:
    from reposync.app.index_overview import BuildProgress, CollectionChange, IndexOverview, VersionOverview


index = Group("index")


@index.command()
@click.argument("name", required=False, shell_complete=repository_names)
@wide_option
@performs
def status(perform: Performer, name: str | None) -> Result:
    """The versions of each index (of the repository NAME), and the progress of a change of the embedding model."""
    if name is not None:
        overview = perform(operations.index.repository_index, name=name)
        return Result(overview, _lines([overview], []))
    page = perform.all_pages(operations.index.indexes)
    return Result(page, _lines(page.items, page.collections))


def _lines(overviews: list[IndexOverview], changes: list[CollectionChange]) -> Iterator[Line]:
    if not overviews:
        yield NO_REPOSITORY
        return
    rows = [
        _row("" if number else overview.repository, version)
        for overview in overviews
        for number, version in enumerate(overview.versions)
    ]
    nothing = {"version": None, "state": "nothing yet"}
    rows += [{"repository": overview.repository, **nothing} for overview in overviews if not overview.versions]
    yield table(rows, "repository", "state", "files", "failed", "chunks", "since", "version", "commit", "model")
    yield from _notes(overviews)
    yield from filter(None, map(change_words, changes))


def _row(repository: str, version: VersionOverview) -> dict[str, Any]:
    since = ago(version.live_at or version.created_at)
    if version.state == "retired":
        when = until(version.removed_after)
        since = f"{ago(version.retired_at)}, removed {'by the next run' if when in ('now', '-') else when}"
    return {
        **{"repository": repository, "version": version.number, "state": version.state},
        "model": model_words(version.provider, version.model),
        "chunks of": f"{version.chunk_size}/{version.chunk_overlap}" if version.chunk_size else None,
        "commit": short(version.partial_commit or version.commit),
        **{"files": version.files, "failed": version.failed, "chunks": version.chunks},
        "since": since,
        "in": version.physical,
    }


def model_words(provider: str | None, model: str | None) -> str:
    """`openai: text-embedding-3-small`; `none`; `?` if an older version did not record it."""
    if provider is None:
        return "?"
    return provider if model in (None, provider) else f"{provider}: {escape_unprintable(str(model))}"


def _notes(overviews: list[IndexOverview]) -> Iterator[str]:
    for overview in overviews:
        name = escape_unprintable(overview.repository)
        if overview.meaning_indexed is not None:
            yield f"{name}: searched by words only, {overview.meaning_indexed:.0%} of meaning indexed"
        if overview.progress is not None:
            yield f"{name}: {progress_words(overview.progress)}"


def progress_words(progress: BuildProgress) -> str:
    """`120 of about 300 files built, 410 of about 900 chunks, 12.5 files/s, about 24 s left (run ...)`."""
    words = (
        f"{progress.files_done:,} of about {progress.files_total:,} files built, "
        f"{progress.chunks_done:,} of about {progress.chunks_total:,} chunks"
    )
    if progress.run is None:
        return f"{words}; no run is in progress"
    rate = f", {progress.files_per_second:.1f} files/s" if progress.files_per_second else ""
    left = f", about {duration(progress.eta_seconds)} left" if progress.eta_seconds else ""
    return f"{words}{rate}{left} (run {progress.run})"


def change_words(change: CollectionChange) -> str | None:
    """None if every repository is on the configured model."""
    if not change.is_under_way:
        return None
    counts: dict[str, Any] = {state: number for state, number in change.repositories.items() if number}
    others = ", ".join(f"{number:,} {state}" for state, number in counts.items() if state != "done")
    return (
        f"{escape_unprintable(change.collection)}: {change.repositories['done']:,} of {change.total:,} repositories on "
        f"{model_words(change.provider, change.model)}{f' ({others})' if others else ''}, {change.chunks:,} chunks on "
        f"it, {change.chunks_former:,} on another model"
    )


locks = Group("locks")


@locks.command("list")
@wide_option
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
    if not document.items:
        return Result(document, ["No repository is locked."])
    return Result(document, [table(list(map(_lock_row, document.items)), "repository", "state", "pod", "run")])


@locks.command()
@click.argument("name", shell_complete=repository_names)
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


def _lock_row(lock: operations.index.Lock) -> dict[str, Any]:
    return {
        "repository": lock.repository,
        "state": lock.state,
        **{"pod": lock.pod, "holder": lock.holder, "run": lock.run_id, "attempt": lock.attempt},
        "lock ends in": duration(lock.ttl_seconds and round(lock.ttl_seconds)),
    }
