"""`reposync verify`: proof that the index holds what it should, and its repair."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.completion import repository_names
from reposync.cli.output import json_option, print_json, run_json, short, visible
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.app.verification import Verdict, Verification
    from reposync.config.settings import Settings
    from reposync.runs.removal import OrphanedPoints
    from reposync.store.runs import Run


@dataclass(frozen=True)
class Wishes:
    repair: bool
    source: bool
    remove_unknown: bool
    limit: int
    quiet: bool


@dataclass
class Finding:
    """Of one repository: as it was found, and where it was repaired, by which run and how it is now."""

    verdict: Verdict
    run: Run | None = None
    afterwards: Verdict | None = None
    trouble: str | None = None

    @property
    def exact(self) -> bool:
        return (self.afterwards or self.verdict).exact


@dataclass
class Remains:
    """A leftover, and the run that removed it."""

    leftover: OrphanedPoints
    run: Run | None = None
    trouble: str | None = None

    @property
    def is_gone(self) -> bool:
        return self.run is not None and self.run.status == "completed"


@dataclass
class Findings:
    repositories: list[Finding] = field(default_factory=list)
    leftovers: list[Remains] = field(default_factory=list)
    trouble: str | None = None

    @property
    def exact(self) -> bool:
        whole = all(each.exact for each in self.repositories) and all(each.is_gone for each in self.leftovers)
        return whole and self.trouble is None


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=repository_names)
@click.option("--repair", is_flag=True, help="Mend what is wrong, by a run that the history shows.")
@click.option("--source", is_flag=True, help="Ask the source too: is the manifest the tree of the recorded commit?")
@click.option(
    "--remove-unknown", is_flag=True, help="With --repair: remove points of repositories that nobody here ever knew."
)
@click.option(
    "--limit", type=click.IntRange(0, 10_000), default=20, show_default=True, help="At most so many differences each."
)
@json_option
def verify(names: tuple[str, ...], repair: bool, source: bool, remove_unknown: bool, limit: int, as_json: bool) -> None:
    """Prove that the index holds precisely the indexed files of the recorded commit, for each repository NAME (for all
    where none is given). The exit code is 0 where it does, and 1 otherwise.

    Every point is read and compared with the manifest. A sync that goes on beside it is waited for.
    """
    if remove_unknown and not repair:
        raise click.UsageError("--remove-unknown goes with --repair.")
    wishes = Wishes(repair, source, remove_unknown, limit, quiet=as_json)
    findings = run_async(_verify(settings(), names, wishes))
    if as_json:
        print_json(_document(findings, limit))
    if not findings.exact:
        sys.exit(1)


async def _verify(told: Settings, names: tuple[str, ...], wishes: Wishes) -> Findings:
    from reposync.app.application import open_application
    from reposync.app.verification import Verification
    from reposync.errors import VectorIndexError

    findings = Findings()
    async with open_application(told, with_engine=True) as app:
        verification = Verification(app, against_source=wishes.source, tell=lambda line: click.echo(line, err=True))
        chosen = await verification.names(names)
        for name in chosen:
            finding = await _one(verification, name, wishes)
            findings.repositories.append(finding)
        if names:
            return findings
        if not chosen and not wishes.quiet:
            click.echo("Nothing is registered.")
        try:
            await _leftovers(app, findings, wishes)
        except VectorIndexError as error:
            findings.trouble = str(error)
            if not wishes.quiet:
                click.echo(visible(findings.trouble))
    return findings


async def _one(verification: Verification, name: str, wishes: Wishes) -> Finding:
    from reposync.cli.person import person
    from reposync.cli.progress_display import open_display
    from reposync.errors import RepoSyncError

    finding = Finding(await verification.verify(name))
    _print(_lines(finding.verdict, wishes.limit), wishes)
    if finding.exact or not wishes.repair:
        return finding
    try:
        with open_display(name) as watch:
            finding.run = await verification.repair(name, watch, asked_by=person())
    except RepoSyncError as error:
        finding.trouble = str(error)
        _print([f"{visible(name)}: not repaired: {visible(finding.trouble)}"], wishes)
        return finding
    run = finding.run
    why = f": {visible(run.error_message)}" if run.error_message else ""
    _print([f"{visible(name)}: repaired by run {run.id}, {run.status}{why}"], wishes)
    finding.afterwards = await verification.verify(name)
    _print(_lines(finding.afterwards, wishes.limit), wishes)
    return finding


async def _leftovers(app: Application, findings: Findings, wishes: Wishes) -> None:
    from reposync.runs.removal import find_orphaned_points, remove_orphaned_points

    findings.leftovers = [Remains(each) for each in await find_orphaned_points(app)]
    runs: dict[str, Run | None] = {}
    for each in findings.leftovers:
        left = each.leftover
        if wishes.repair and left.repository_id is not None and (left.known or wishes.remove_unknown):
            if left.repository_id not in runs:
                runs[left.repository_id] = await remove_orphaned_points(
                    app, left.repository_id, left.repository or left.repository_id
                )
            each.run = runs[left.repository_id]
            if each.run is None:
                each.trouble = "It is registered again, or a run of it is under way."
        _print([_leftover_line(each)], wishes)


def _leftover_line(remains: Remains) -> str:
    left = remains.leftover
    where = f"collection {left.collection}: {left.points:,} points"
    if left.repository_id is None:
        return f"{where} that name no repository. Something else than reposync wrote them; they stay."
    head = f"{where} of {visible(repr(left.repository))}, which is not registered (id {visible(left.repository_id)})"
    if remains.run is not None:
        why = f": {visible(remains.run.error_message or '')}" if remains.run.status != "completed" else ""
        return f"{head}. Removed by run {remains.run.id}, {remains.run.status}{why}"
    if remains.trouble is not None:
        return f"{head}. {remains.trouble}"
    if left.known:
        return f"{head}. --repair removes them."
    return (
        f"{head}, and was never synced here. Another installation may keep it in the same collection; if none does, "
        "--repair --remove-unknown removes them."
    )


def _lines(verdict: Verdict, limit: int) -> Iterator[str]:
    name = visible(verdict.repository)
    if verdict.trouble is not None:
        yield f"{name}: could not be verified: {visible(verdict.trouble)}"
        return
    size = f"{verdict.files:,} files, {verdict.points:,} points"
    at = f" at {short(verdict.commit)}" if verdict.commit else ""
    if verdict.exact:
        yield f"{name}: exact{at}: {size}" if verdict.note is None else f"{name}: {verdict.note}"
        return
    told = [f"{number:,} {kind.value.replace('_', ' ')}" for kind, number in verdict.counts.items()]
    told += [f"{verdict.failed:,} failed"] if verdict.failed else []
    yield f"{name}: NOT exact{at}: {', '.join(told)} ({size})"
    if verdict.note is not None:
        yield f"  {verdict.note}"
    for each in verdict.differences[:limit]:
        number = f" ({each.points:,})" if each.points > 1 else ""
        place = f"{visible(each.path)}  " if each.path is not None else ""
        yield f"  {each.kind.value:<11}{place}{visible(each.what)}{number}"
    if (rest := len(verdict.differences) - limit) > 0:
        yield f"  ... and {rest:,} more (--limit)"


def _print(lines: Iterator[str] | list[str], wishes: Wishes) -> None:
    if not wishes.quiet:
        for line in lines:
            click.echo(line)


def _document(findings: Findings, limit: int) -> dict[str, Any]:
    return {
        "exact": findings.exact,
        "repositories": [_finding_json(each, limit) for each in findings.repositories],
        "leftovers": [
            {
                "collection": each.leftover.collection,
                "repository_id": each.leftover.repository_id,
                "repository": each.leftover.repository,
                "points": each.leftover.points,
                "known": each.leftover.known,
                "run": run_json(each.run) if each.run is not None else None,
                "trouble": each.trouble,
            }
            for each in findings.leftovers
        ],
        "trouble": findings.trouble,
    }


def _finding_json(finding: Finding, limit: int) -> dict[str, Any]:
    repair = None
    if finding.run is not None or finding.trouble is not None:
        repair = {
            "run": run_json(finding.run) if finding.run is not None else None,
            "trouble": finding.trouble,
            "found": _verdict_json(finding.verdict, limit),
        }
    return {**_verdict_json(finding.afterwards or finding.verdict, limit), "repair": repair}


def _verdict_json(verdict: Verdict, limit: int) -> dict[str, Any]:
    return {
        "repository": verdict.repository,
        "exact": verdict.exact,
        "collection": verdict.collection,
        "commit": verdict.commit,
        "files": verdict.files,
        "chunks": verdict.chunks,
        "points": verdict.points,
        "failed": verdict.failed,
        "counts": {kind.value: number for kind, number in verdict.counts.items()},
        "differences": [
            {"kind": each.kind.value, "path": each.path, "what": each.what, "points": each.points}
            for each in verdict.differences[:limit]
        ],
        "differences_left_out": max(0, len(verdict.differences) - limit),
        "note": verdict.note,
        "trouble": verdict.trouble,
    }
