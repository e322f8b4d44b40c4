"""`reposync verify`: prove that the index matches the recorded commits, and repair it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from reposync.cli.commands import current_user, json_option, repository_names, run_with_app
from reposync.cli.output import open_display, print_json, short
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.app.verification import OrphanedPoints, Verdict, Verification
    from reposync.store.run import Run


VERDICT_KEYS = ("repository", "exact", "collection", "commit", "files", "chunks", "points", "failed")


class Options(NamedTuple):
    repair: bool
    source: bool
    remove_unknown: bool
    limit: int
    quiet: bool

    def print(self, *lines: str) -> None:
        if not self.quiet:
            for line in lines:
                click.echo(line)


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=repository_names)
@click.option("--repair", is_flag=True, help="Repair what differs, by a run that the history shows.")
@click.option("--source", is_flag=True, help="Also compare the manifest with the tree of the recorded commit.")
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
@json_option
def verify(names: tuple[str, ...], repair: bool, source: bool, remove_unknown: bool, limit: int, as_json: bool) -> None:
    """Prove that the index holds precisely the indexed files of the recorded commit, for each repository NAME (default:
    all). The exit code is 0 if it does, and 1 otherwise.

    Every point is read and compared with the manifest. If a sync is running, verify waits for it.
    """
    if remove_unknown and not repair:
        raise click.UsageError("--remove-unknown requires --repair.")
    options = Options(repair, source, remove_unknown, limit, quiet=as_json)
    document = run_with_app(lambda app: _verify(app, names, options), with_engine=True)
    if as_json:
        print_json(document)
    if not document["exact"]:
        sys.exit(1)


async def _verify(app: Application, names: tuple[str, ...], options: Options) -> dict[str, Any]:
    from reposync.app.verification import Verification
    from reposync.errors import VectorIndexError

    verification = Verification(app, against_source=options.source, report=lambda line: click.echo(line, err=True))
    chosen = await verification.names(names)
    repositories = [await _verify_one(verification, name, options) for name in chosen]
    exact, leftovers, trouble = all(each["exact"] for each in repositories), [], None
    if not chosen:
        options.print("Nothing is registered.")
    try:
        leftovers = [] if names else await _remove_leftovers(app, options)
    except VectorIndexError as error:
        exact, trouble = False, str(error)
        options.print(escape_unprintable(trouble))
    return {
        "exact": exact and all(each["run"] and each["run"]["status"] == "completed" for each in leftovers),
        "repositories": repositories,
        "leftovers": leftovers,
        "trouble": trouble,
    }


async def _verify_one(verification: Verification, name: str, options: Options) -> dict[str, Any]:
    """The verdict as JSON; after a repair the one that follows it, with the first one under `repair`."""
    from reposync.errors import RepoSyncError

    verdict, shown = await verification.verify(name), escape_unprintable(name)
    options.print(*_verdict_lines(verdict, options.limit))
    if verdict.exact or not options.repair:
        return {**_verdict_json(verdict, options.limit), "repair": None}
    repair: dict[str, Any] = {"run": None, "trouble": None, "found": _verdict_json(verdict, options.limit)}
    try:
        with open_display(name) as display:
            run = await verification.repair(name, display, asked_by=current_user())
    except RepoSyncError as error:
        repair["trouble"] = str(error)
        options.print(f"{shown}: not repaired: {escape_unprintable(str(error))}")
    else:
        repair["run"] = run.document
        why = f": {escape_unprintable(run.error_message)}" if run.error_message else ""
        options.print(f"{shown}: repaired by run {run.id}, {run.status}{why}")
        verdict = await verification.verify(name)
        options.print(*_verdict_lines(verdict, options.limit))
    return {**_verdict_json(verdict, options.limit), "repair": repair}


async def _remove_leftovers(app: Application, options: Options) -> list[dict[str, Any]]:
    """Points of no registered repository, as JSON, each with the run that removed it."""
    from reposync.app.verification import find_orphaned_points, remove_orphaned_points

    documents = []
    runs: dict[str, Run | None] = {}
    for left in await find_orphaned_points(app):
        identity, run, trouble = left.repository_id, None, None
        if options.repair and identity is not None and (left.known or options.remove_unknown):
            if identity not in runs:
                runs[identity] = await remove_orphaned_points(app, identity, left.repository or identity)
            run = runs[identity]
            if run is None:
                trouble = "It is registered again, or a run of it is in progress."
        options.print(_leftover_line(left, run, trouble))
        keys = ("collection", "repository_id", "repository", "points", "known")
        document = {key: getattr(left, key) for key in keys}
        documents.append(document | {"run": None if run is None else run.document, "trouble": trouble})
    return documents


def _leftover_line(left: OrphanedPoints, run: Run | None, trouble: str | None) -> str:
    where = f"collection {left.collection}: {left.points:,} points"
    if left.repository_id is None:
        return f"{where} without a repository. They were not written by reposync and are kept."
    name, identity = escape_unprintable(repr(left.repository)), escape_unprintable(left.repository_id)
    head = f"{where} of {name}, which is not registered (id {identity})"
    if run is not None:
        why = f": {escape_unprintable(run.error_message or '')}" if run.status != "completed" else ""
        return f"{head}. Removed by run {run.id}, {run.status}{why}"
    if trouble is not None or left.known:
        return f"{head}. {trouble or '--repair removes them.'}"
    return (
        f"{head}, and was never synced here. A different installation may use the same collection; if none does, "
        "--repair --remove-unknown removes them."
    )


def _verdict_lines(verdict: Verdict, limit: int) -> Iterator[str]:
    name = escape_unprintable(verdict.repository)
    if verdict.trouble is not None:
        yield f"{name}: could not be verified: {escape_unprintable(verdict.trouble)}"
        return
    size = f"{verdict.files:,} files, {verdict.points:,} points"
    at = f" at {short(verdict.commit)}" if verdict.commit else ""
    if verdict.exact:
        yield f"{name}: exact{at}: {size}" if verdict.note is None else f"{name}: {verdict.note}"
        return
    counts = [f"{number:,} {kind.value.replace('_', ' ')}" for kind, number in verdict.counts.items()]
    counts += [f"{verdict.failed:,} failed"] if verdict.failed else []
    yield f"{name}: NOT exact{at}: {', '.join(counts)} ({size})"
    if verdict.note is not None:
        yield f"  {verdict.note}"
    for each in verdict.differences[:limit]:
        number = f" ({each.points:,})" if each.points > 1 else ""
        place = f"{escape_unprintable(each.path)}  " if each.path is not None else ""
        yield f"  {each.kind.value:<11}{place}{escape_unprintable(each.what)}{number}"
    if (rest := len(verdict.differences) - limit) > 0:
        yield f"  ... and {rest:,} more (--limit)"


def _verdict_json(verdict: Verdict, limit: int) -> dict[str, Any]:
    return {
        **{key: getattr(verdict, key) for key in VERDICT_KEYS},
        "counts": {kind.value: number for kind, number in verdict.counts.items()},
        "differences": [
            {"kind": each.kind.value, "path": each.path, "what": each.what, "points": each.points}
            for each in verdict.differences[:limit]
        ],
        "differences_left_out": max(0, len(verdict.differences) - limit),
        "note": verdict.note,
        "trouble": verdict.trouble,
    }
