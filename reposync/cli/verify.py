"""`reposync verify`: prove that the index matches the recorded commits, and repair it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.commands import json_option, repository_names
from reposync.cli.output import print_json, short
from reposync.cli.startup import current_user, run_with_app
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.app.verification import OrphanedPoints, Verdict, Verification
    from reposync.store.run import Run


@dataclass(frozen=True)
class Options:
    repair: bool
    source: bool
    remove_unknown: bool
    limit: int
    quiet: bool

    def print(self, lines: Iterable[str]) -> None:
        if not self.quiet:
            for line in lines:
                click.echo(line)


@dataclass
class RepositoryReport:
    """The verdict about one repository and, if it was repaired, the run and the verdict after it."""

    verdict: Verdict
    run: Run | None = None
    afterwards: Verdict | None = None
    trouble: str | None = None

    @property
    def exact(self) -> bool:
        return (self.afterwards or self.verdict).exact


@dataclass
class LeftoverReport:
    """A leftover, and the run that removed it."""

    leftover: OrphanedPoints
    run: Run | None = None
    trouble: str | None = None

    @property
    def is_gone(self) -> bool:
        return self.run is not None and self.run.status == "completed"


@dataclass
class Report:
    repositories: list[RepositoryReport] = field(default_factory=list)
    leftovers: list[LeftoverReport] = field(default_factory=list)
    trouble: str | None = None

    @property
    def exact(self) -> bool:
        all_exact = all(each.exact for each in self.repositories) and all(each.is_gone for each in self.leftovers)
        return all_exact and self.trouble is None


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
    report = run_with_app(lambda app: _verify(app, names, options), with_engine=True)
    if as_json:
        print_json(_document(report, limit))
    if not report.exact:
        sys.exit(1)


async def _verify(app: Application, names: tuple[str, ...], options: Options) -> Report:
    from reposync.app.verification import Verification
    from reposync.errors import VectorIndexError

    report = Report()
    verification = Verification(app, against_source=options.source, report=lambda line: click.echo(line, err=True))
    chosen = await verification.names(names)
    for name in chosen:
        report.repositories.append(await _verify_one(verification, name, options))
    if names:
        return report
    if not chosen:
        options.print(["Nothing is registered."])
    try:
        await _verify_leftovers(app, report, options)
    except VectorIndexError as error:
        report.trouble = str(error)
        options.print([escape_unprintable(report.trouble)])
    return report


async def _verify_one(verification: Verification, name: str, options: Options) -> RepositoryReport:
    from reposync.cli.progress_display import open_display
    from reposync.errors import RepoSyncError

    report = RepositoryReport(await verification.verify(name))
    options.print(_verdict_lines(report.verdict, options.limit))
    if report.exact or not options.repair:
        return report
    try:
        with open_display(name) as display:
            report.run = await verification.repair(name, display, asked_by=current_user())
    except RepoSyncError as error:
        report.trouble = str(error)
        options.print([f"{escape_unprintable(name)}: not repaired: {escape_unprintable(report.trouble)}"])
        return report
    run = report.run
    why = f": {escape_unprintable(run.error_message)}" if run.error_message else ""
    options.print([f"{escape_unprintable(name)}: repaired by run {run.id}, {run.status}{why}"])
    report.afterwards = await verification.verify(name)
    options.print(_verdict_lines(report.afterwards, options.limit))
    return report


async def _verify_leftovers(app: Application, report: Report, options: Options) -> None:
    from reposync.app.verification import find_orphaned_points, remove_orphaned_points

    report.leftovers = [LeftoverReport(each) for each in await find_orphaned_points(app)]
    runs: dict[str, Run | None] = {}
    for each in report.leftovers:
        left = each.leftover
        if options.repair and left.repository_id is not None and (left.known or options.remove_unknown):
            if left.repository_id not in runs:
                runs[left.repository_id] = await remove_orphaned_points(
                    app, left.repository_id, left.repository or left.repository_id
                )
            each.run = runs[left.repository_id]
            if each.run is None:
                each.trouble = "It is registered again, or a run of it is in progress."
        options.print([_leftover_line(each)])


def _leftover_line(report: LeftoverReport) -> str:
    left, run = report.leftover, report.run
    where = f"collection {left.collection}: {left.points:,} points"
    if left.repository_id is None:
        return f"{where} without a repository. They were not written by reposync and are kept."
    name, identity = escape_unprintable(repr(left.repository)), escape_unprintable(left.repository_id)
    head = f"{where} of {name}, which is not registered (id {identity})"
    if run is not None:
        why = f": {escape_unprintable(run.error_message or '')}" if run.status != "completed" else ""
        return f"{head}. Removed by run {run.id}, {run.status}{why}"
    if report.trouble is not None:
        return f"{head}. {report.trouble}"
    if left.known:
        return f"{head}. --repair removes them."
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


def _document(report: Report, limit: int) -> dict[str, Any]:
    leftover_keys = ("collection", "repository_id", "repository", "points", "known")
    return {
        "exact": report.exact,
        "repositories": [_repository_json(each, limit) for each in report.repositories],
        "leftovers": [
            {key: getattr(each.leftover, key) for key in leftover_keys}
            | {"run": each.run.document if each.run is not None else None, "trouble": each.trouble}
            for each in report.leftovers
        ],
        "trouble": report.trouble,
    }


def _repository_json(report: RepositoryReport, limit: int) -> dict[str, Any]:
    repair = None
    if report.run is not None or report.trouble is not None:
        repair = {
            "run": report.run.document if report.run is not None else None,
            "trouble": report.trouble,
            "found": _verdict_json(report.verdict, limit),
        }
    return {**_verdict_json(report.afterwards or report.verdict, limit), "repair": repair}


def _verdict_json(verdict: Verdict, limit: int) -> dict[str, Any]:
    return {
        **{
            key: getattr(verdict, key)
            for key in ("repository", "exact", "collection", "commit", "files", "chunks", "points", "failed")
        },
        "counts": {kind.value: number for kind, number in verdict.counts.items()},
        "differences": [
            {"kind": each.kind.value, "path": each.path, "what": each.what, "points": each.points}
            for each in verdict.differences[:limit]
        ],
        "differences_left_out": max(0, len(verdict.differences) - limit),
        "note": verdict.note,
        "trouble": verdict.trouble,
    }
