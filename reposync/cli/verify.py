"""`reposync verify`: prove that the index matches the recorded commits, and repair it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from reposync import operations
from reposync.cli.completion import repository_names
from reposync.cli.output import Result, say, short
from reposync.cli.performing import Performer, performs
from reposync.cli.sync import target_of
from reposync.errors import FAILED, NOT_FOUND, RepoSyncError, VectorIndexError
from reposync.garbage import collect_as_usual
from reposync.words import escape_unprintable

LONGEST_WAIT_SECONDS = 86_400.0


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=repository_names)
@click.option("--repair", is_flag=True, help="Repair what differs, by a run that the history shows.")
@click.option("--source", is_flag=True, help="Also read the recorded commit again and compare its files.")
@click.option(
    "--remove-unknown", is_flag=True, help="With --repair: remove points of repositories that were never synced here."
)
@click.option(
    "--limit",
    type=click.IntRange(0, 10_000),
    default=20,
    show_default=True,
    help="Maximum number of differences of each repository.",
)
@performs
def verify(
    perform: Performer, names: tuple[str, ...], repair: bool, source: bool, remove_unknown: bool, limit: int
) -> Result:
    """Prove that the index holds precisely the indexed files of the recorded commit, for each repository NAME (default:
    all). The exit code is 0 if it does, 1 if not, and 3 if nothing is registered.

    Every point is read and compared with the manifest. If a sync is running, verify waits for it.
    """
    if remove_unknown and not repair:
        raise click.UsageError("--remove-unknown requires --repair.")
    collect_as_usual()
    if names:
        words = [target_of(perform, word) for word in names]
        chosen = perform(operations.syncs.targets, {"target": words}).items
    else:
        page = perform.all_pages(operations.repositories.list_repositories)
        chosen = [repository.name for repository in page.items]
    if not chosen:
        say("Nothing is registered, so nothing was verified.")
    options = {"source": source, "limit": limit, "timeout": LONGEST_WAIT_SECONDS}
    verdicts = [_verify_one(perform, name, options, repair=repair) for name in chosen]
    leftovers, trouble = [], None
    if not names:
        try:
            leftovers = _leftovers(perform, repair=repair, remove_unknown=remove_unknown)
        except VectorIndexError as error:
            trouble = str(error)
            say(escape_unprintable(trouble))
    exact = trouble is None and all(verdict["exact"] for verdict in verdicts)
    exact = exact and all(left["run"] and left["run"].status == "completed" for left in leftovers)
    document = {"exact": exact, "repositories": verdicts, "leftovers": leftovers, "trouble": trouble}
    # In a pipeline, a verification of nothing must not read as a proof.
    code = FAILED if not exact else 0 if chosen or leftovers else NOT_FOUND
    return Result(document, [], exit_code=code)


def _verify_one(perform: Performer, name: str, options: dict[str, Any], *, repair: bool) -> dict[str, Any]:
    """The verdict as JSON; after a repair the one that follows it, with the first one under `repair`."""
    syncs = operations.syncs
    verdict, shown = perform(syncs.verify, options, name=name), escape_unprintable(name)
    say(*_verdict_lines(verdict))
    if verdict.exact or not repair:
        return {**asdict(verdict), "repair": None}
    repaired: dict[str, Any] = {"run": None, "trouble": None, "found": verdict}
    try:
        run = perform.follow(perform.request(syncs.repair, {"full": verdict.needs_full}, name=name)).summary
    except RepoSyncError as error:
        repaired["trouble"] = str(error)
        say(f"{shown}: not repaired: {escape_unprintable(str(error))}")
    else:
        repaired["run"] = run
        say(f"{shown}: repaired by run {run.id}, {run.status}{_why(run)}")
        verdict = perform(syncs.verify, options, name=name)
        say(*_verdict_lines(verdict))
    return {**asdict(verdict), "repair": repaired}


def _leftovers(perform: Performer, *, repair: bool, remove_unknown: bool) -> list[dict[str, Any]]:
    """Points of no registered repository, as JSON, each with the run that removed it."""
    documents = []
    runs: dict[str, operations.runs.Run | None] = {}
    for left in perform(operations.syncs.leftovers).items:
        identity, run, trouble = left.repository_id, None, None
        if repair and identity is not None and (left.known or remove_unknown):
            if identity not in runs:
                options = {"unknown": remove_unknown}
                removed = perform(operations.syncs.remove_leftovers, options, repository_id=identity)
                runs[identity] = removed.run
            run = runs[identity]
            if run is None:
                trouble = "It is registered again, or a run of it is in progress."
        say(_leftover_line(left, run, trouble))
        documents.append({**asdict(left), "run": run, "trouble": trouble})
    return documents


def _leftover_line(left: operations.syncs.Leftover, run: operations.runs.Run | None, trouble: str | None) -> str:
    where = f"collection {left.collection}: {left.points:,} points"
    if left.repository_id is None:
        return f"{where} without a repository. They were not written by reposync and are kept."
    name, identity = escape_unprintable(repr(left.repository)), escape_unprintable(left.repository_id)
    head = f"{where} of {name}, which is not registered (id {identity})"
    if run is not None:
        return f"{head}. Removed by run {run.id}, {run.status}{_why(run)}"
    if trouble is not None or left.known:
        return f"{head}. {trouble or '--repair removes them.'}"
    return (
        f"{head}, and was never synced here. A different installation may use the same collection; if none does, "
        "--repair --remove-unknown removes them."
    )


def _why(run: operations.runs.Run) -> str:
    return f": {escape_unprintable(run.error_message)}" if run.error_message else ""


def _verdict_lines(verdict: operations.syncs.Verdict) -> Iterator[str]:
    name = escape_unprintable(verdict.repository)
    if verdict.trouble is not None:
        yield f"{name}: could not be verified: {escape_unprintable(verdict.trouble)}"
        return
    size = f"{verdict.files:,} files, {verdict.points:,} points"
    at = f" at {short(verdict.commit)}" if verdict.commit else ""
    if verdict.exact:
        yield f"{name}: exact{at}: {size}" if verdict.note is None else f"{name}: {verdict.note}"
        return
    counts = [f"{number:,} {kind.replace('_', ' ')}" for kind, number in verdict.counts.items()]
    counts += [f"{verdict.failed:,} failed"] if verdict.failed else []
    yield f"{name}: NOT exact{at}: {', '.join(counts)} ({size})"
    if verdict.note is not None:
        yield f"  {verdict.note}"
    for difference in verdict.differences:
        number = f" ({difference.points:,})" if difference.points > 1 else ""
        place = f"{escape_unprintable(difference.path)}  " if difference.path is not None else ""
        yield f"  {difference.kind:<11}{place}{escape_unprintable(difference.what)}{number}"
    if verdict.differences_left_out:
        yield f"  ... and {verdict.differences_left_out:,} more (--limit)"
