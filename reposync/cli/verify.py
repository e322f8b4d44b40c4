"""`reposync verify`: prove that the index matches the recorded commits, and repair it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import current_user, prints, run_with_app
from reposync.cli.output import Result, open_display, say, short
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.app.verification import OrphanedPoints, Verdict, Verification
    from reposync.store.run import Run

VERDICT_KEYS = ("repository", "exact", "collection", "commit", "files", "chunks", "points", "failed", "note", "trouble")
LEFTOVER_KEYS = ("collection", "repository_id", "repository", "points", "known")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
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
@prints
def verify(names: tuple[str, ...], repair: bool, source: bool, remove_unknown: bool, limit: int) -> Result:
    """Prove that the index holds precisely the indexed files of the recorded commit, for each repository NAME (default:
    all). The exit code is 0 if it does, and 1 otherwise.

    Every point is read and compared with the manifest. If a sync is running, verify waits for it.
    """
    if remove_unknown and not repair:
        raise click.UsageError("--remove-unknown requires --repair.")

    async def act(app: Application) -> Result:
        from reposync.app.verification import Verification
        from reposync.errors import VectorIndexError
        from reposync.garbage import collect_as_usual

        collect_as_usual()
        verification = Verification(app, against_source=source, report=lambda line: click.echo(line, err=True))
        chosen = await verification.names(names)
        if not chosen:
            say("Nothing is registered.")
        repositories = [await _verify_one(verification, name, limit, repair=repair) for name in chosen]
        leftovers, trouble = [], None
        if not names:
            try:
                leftovers = await _leftovers(app, repair=repair, remove_unknown=remove_unknown)
            except VectorIndexError as error:
                trouble = str(error)
                say(escape_unprintable(trouble))
        exact = trouble is None and all(each["exact"] for each in repositories)
        exact = exact and all(each["run"] and each["run"]["status"] == "completed" for each in leftovers)
        document = {"exact": exact, "repositories": repositories, "leftovers": leftovers, "trouble": trouble}
        return Result(document, [], failed=not exact)

    return run_with_app(act, with_engine=True)


async def _verify_one(verification: Verification, name: str, limit: int, *, repair: bool) -> dict[str, Any]:
    """The verdict as JSON; after a repair the one that follows it, with the first one under `repair`."""
    from reposync.errors import RepoSyncError

    verdict, shown = await verification.verify(name), escape_unprintable(name)
    say(*_verdict_lines(verdict, limit))
    if verdict.exact or not repair:
        return {**_verdict_json(verdict, limit), "repair": None}
    repaired: dict[str, Any] = {"run": None, "trouble": None, "found": _verdict_json(verdict, limit)}
    try:
        with open_display(name) as display:
            run = await verification.repair(name, display, full=verdict.needs_full, asked_by=current_user())
    except RepoSyncError as error:
        repaired["trouble"] = str(error)
        say(f"{shown}: not repaired: {escape_unprintable(str(error))}")
    else:
        repaired["run"] = run.document
        say(f"{shown}: repaired by run {run.id}, {run.status}{_why(run)}")
        verdict = await verification.verify(name)
        say(*_verdict_lines(verdict, limit))
    return {**_verdict_json(verdict, limit), "repair": repaired}


async def _leftovers(app: Application, *, repair: bool, remove_unknown: bool) -> list[dict[str, Any]]:
    """Points of no registered repository, as JSON, each with the run that removed it."""
    from reposync.app.verification import find_orphaned_points, remove_orphaned_points

    documents = []
    runs: dict[str, Run | None] = {}
    for left in await find_orphaned_points(app):
        identity, run, trouble = left.repository_id, None, None
        if repair and identity is not None and (left.known or remove_unknown):
            if identity not in runs:
                runs[identity] = await remove_orphaned_points(app, identity, left.repository or identity)
            run = runs[identity]
            if run is None:
                trouble = "It is registered again, or a run of it is in progress."
        say(_leftover_line(left, run, trouble))
        document = {key: getattr(left, key) for key in LEFTOVER_KEYS}
        documents.append(document | {"run": None if run is None else run.document, "trouble": trouble})
    return documents


def _leftover_line(left: OrphanedPoints, run: Run | None, trouble: str | None) -> str:
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


def _why(run: Run) -> str:
    return f": {escape_unprintable(run.error_message)}" if run.error_message else ""


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
    counts = [f"{number:,} {kind.replace('_', ' ')}" for kind, number in verdict.counts.items()]
    counts += [f"{verdict.failed:,} failed"] if verdict.failed else []
    yield f"{name}: NOT exact{at}: {', '.join(counts)} ({size})"
    if verdict.note is not None:
        yield f"  {verdict.note}"
    for each in verdict.differences[:limit]:
        number = f" ({each.points:,})" if each.points > 1 else ""
        place = f"{escape_unprintable(each.path)}  " if each.path is not None else ""
        yield f"  {each.kind:<11}{place}{escape_unprintable(each.what)}{number}"
    if (rest := len(verdict.differences) - limit) > 0:
        yield f"  ... and {rest:,} more (--limit)"


def _verdict_json(verdict: Verdict, limit: int) -> dict[str, Any]:
    return {
        **{key: getattr(verdict, key) for key in VERDICT_KEYS},
        "counts": dict(verdict.counts),
        "differences": list(map(asdict, verdict.differences[:limit])),
        "differences_left_out": max(0, len(verdict.differences) - limit),
    }
