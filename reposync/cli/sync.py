"""`reposync sync`, with `--plan`."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from reposync.cli.commands import current_user, prints, run_with_app
from reposync.cli.output import Result, open_display, say, short, summary
from reposync.words import escape_unprintable

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.app.command_runs import CommandRun
    from reposync.catalog.targets import SyncTarget
    from reposync.store.run import Run
    from reposync.sync.sync_run import Preview

NAMED_FAILURES = 5
INTERRUPTED_FULL = (
    "Files that were read again stay. `reposync sync` does not read the rest again; `reposync sync --full` starts over."
)


@click.command()
@click.argument("targets", nargs=-1, metavar="[NAME|PATH|URL]...")
@click.option("--full", is_flag=True, help="Read every file and check every point; known text is not embedded again.")
@click.option("--plan", "plan_only", is_flag=True, help="Show what would change: files, chunks, characters. No writes.")
@click.option("--allow-mass-delete", is_flag=True, help="Let this run delete more than half of the indexed files.")
@prints
def sync(targets: tuple[str, ...], full: bool, plan_only: bool, allow_mass_delete: bool) -> Result:
    """Bring the index to the head commit of each target (default: all registered repositories).

    A target is a registered name, a path inside a git repository, or an https URL of one.
    """
    if plan_only:
        return run_with_app(lambda app: _plan(app, targets, full=full), with_engine=True)
    try:
        return run_with_app(lambda app: _sync(app, targets, full=full, approved=allow_mass_delete), with_engine=True)
    except KeyboardInterrupt:
        if full:
            click.echo(INTERRUPTED_FULL, err=True)
        raise


async def _targets(app: Application, words: tuple[str, ...]) -> list[SyncTarget]:
    """Raises UsageError if nothing is named and nothing is registered."""
    from reposync.errors import RepoSyncError, UsageError

    if words:
        return [await app.catalog.find(word) for word in words]
    targets = []
    for row in await app.repositories.list():
        if not row.is_active or row.by_hand:
            continue
        try:
            targets.append(app.catalog.of_row(row))
        except RepoSyncError as error:
            _warn(row.name, f"left out: {error}")
    if not targets:
        remedy = "Try `reposync sync .` in a git repository, or `reposync apply` a file repositories.yaml."
        if app.catalog.unapplied is not None:
            remedy = f"{app.catalog.unapplied} was not applied yet: run `reposync apply`."
        raise UsageError("Nothing is registered, and no target was named.", remedy=remedy)
    return targets


async def _discover_groups(app: Application, *, approved: bool) -> bool:
    """Register the projects of the configured groups, and report what needs attention; whether all succeeded. A group
    that fails does not stop the others."""
    from reposync.catalog.groups import Discovery
    from reposync.errors import RepoSyncError

    registry, all_ok = app.configuration.registry, True
    discovery = Discovery(app.database)
    for group in registry.groups:
        try:
            report = await discovery.discover(registry, group, approved=approved)
        except RepoSyncError as error:
            problem: str | None = str(error)
        else:
            problem = report.problem
            for former, name in report.renamed:
                _warn(name, f"renamed, with its project: it was {former}")
            for name, path in report.kept_names:
                _warn(name, f"is project {path}, whose name a different repository has")
            for name, reason in report.paused:
                _warn(name, f"paused: {reason}")
        if problem:
            _warn(f"group {group.group}", problem)
            all_ok = False
    return all_ok


def _warn(about: str, text: str) -> None:
    click.echo(f"{escape_unprintable(about)}: {escape_unprintable(text)}", err=True)


async def _sync(app: Application, words: tuple[str, ...], *, full: bool, approved: bool) -> Result:
    """Fails if a run was not completed, or without some files."""
    from reposync.api.documents import run_documents
    from reposync.app.command_runs import request_run
    from reposync.garbage import collect_as_usual

    collect_as_usual()
    async with contextlib.AsyncExitStack() as unfinished:
        all_ok = True
        if not words and app.configuration.registry.groups:
            all_ok = await _discover_groups(app, approved=approved)
        targets = await _targets(app, words)

        async def request(target: SyncTarget) -> CommandRun:
            requested = await request_run(app, target, full=full, approved=approved, asked_by=current_user())
            unfinished.push_async_callback(requested.interrupt)
            return requested

        # Workers execute several runs at a time. Without workers, request each run when its turn comes, so that an
        # interrupt leaves nothing in the queue.
        queued = [await request(target) for target in targets] if await app.workers.alive() else []
        runs = []
        for number, target in enumerate(targets):
            requested = queued[number] if queued else await request(target)
            with open_display(requested.repository) as display:
                run = await requested.ended(display, partial(_warn, requested.repository))
            runs.append(run)
            say(summary(run), *await _problem_lines(app, run))
        all_ok = all_ok and all(run.status == "completed" and not run.files_failed for run in runs)
        return Result(run_documents(app.history, runs), [], failed=not all_ok)


async def _problem_lines(app: Application, run: Run) -> list[str]:
    """The first failed files, and the number of files by reason."""
    counts = await app.history.count_problems(run.id)
    failed = await app.history.problems(run.id, NAMED_FAILURES, reason="failed") if "failed" in counts else []
    lines = [f"  failed: {escape_unprintable(each.path)}  {escape_unprintable(each.detail)}" for each in failed]
    reasons = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in sorted(counts.items()))
    title = "failed or skipped" if failed else "skipped"
    return [*lines, f"  {title}: {reasons} (reposync runs show {run.id})"] if counts else []


async def _plan(app: Application, words: tuple[str, ...], *, full: bool) -> Result:
    """One plan for each target, without any write."""
    from reposync.sync.progress import RunProgress

    plans = []
    for target in await _targets(app, words):
        with open_display(target.name) as display:
            plans.append(await app.preview(target, full=full, progress=RunProgress(), watch=display))
    return Result([asdict(plan) for plan in plans], map(_plan_text, plans))


def _plan_text(plan: Preview) -> str:
    lines = [f"{escape_unprintable(plan.repository)}: {short(plan.commit_before)} -> {short(plan.commit)}"]
    if not (plan.files_to_read or plan.files_to_delete or plan.files_to_skip):
        lines.append("  nothing to do")
    else:
        lines += [
            f"  files   {plan.files_to_store:,} to store, {plan.files_to_delete:,} to delete, "
            f"{plan.files_to_skip:,} to skip, {plan.files_renamed:,} renamed, {plan.files_unchanged:,} unchanged",
            f"  chunks  {plan.chunks:,}, of which {plan.chunks_to_embed:,} to embed "
            f"({plan.characters_to_embed:,} characters)",
        ]
    lines += [f"  {text}" for text in (plan.index_notice, plan.blocked) if text]
    return "\n".join(lines)
