"""`reposync sync`."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.completion import repository_names_or_folders
from reposync.cli.output import duration, json_option, print_json, short, visible
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from reposync.app.application import Application
    from reposync.catalog.targets import Target
    from reposync.config.settings import Settings
    from reposync.runs.command_runs import CommandRun
    from reposync.store.runs import Run

FAILED = "failed"
"""The reason of a file that could not be read or embedded (`Skip.FAILED`)."""
NAMED_FAILURES = 5
INTERRUPTED_FULL = (
    "What was read anew stays. `reposync sync` does not read the rest anew; `reposync sync --full` begins again."
)


@click.command()
@click.argument("targets", nargs=-1, metavar="[NAME|PATH|URL]...", shell_complete=repository_names_or_folders)
@click.option("--full", is_flag=True, help="Read every file and check every point; known text is not embedded again.")
@click.option("--plan", "plan_only", is_flag=True, help="Show what would change: files, chunks, characters. No writes.")
@click.option("--allow-mass-delete", is_flag=True, help="Let this run delete more than half of the indexed files.")
@json_option
def sync(targets: tuple[str, ...], full: bool, plan_only: bool, allow_mass_delete: bool, as_json: bool) -> None:
    """Bring the index to the head commit of each target (of all registered repositories where none is given).

    A target is a registered name, a path inside a git repository, or an https URL of one.
    """
    told = settings()
    if plan_only:
        from reposync.cli.plan import show_plans

        run_async(show_plans(told, targets, full=full, as_json=as_json))
        return
    try:
        documents, well = run_async(_sync(told, targets, full=full, approved=allow_mass_delete, quiet=as_json))
    except KeyboardInterrupt:
        if full:
            click.echo(INTERRUPTED_FULL, err=True)
        raise
    if as_json:
        print_json(documents)
    if not well:
        sys.exit(1)


async def targets_of(app: Application, words: tuple[str, ...]) -> list[Target]:
    """Raises UsageError where nothing is named and nothing is registered."""
    from reposync.errors import RepoSyncError, UsageError
    from reposync.store.repository import is_registered

    if words:
        return [await app.catalog.find(word) for word in words]
    targets = []
    for row in await app.repositories.list():
        if not row.is_active or not is_registered(row):
            continue
        try:
            targets.append(app.catalog.of_row(row))
        except RepoSyncError as error:
            click.echo(f"{visible(row.name)}: left out: {visible(str(error))}", err=True)
    if not targets:
        unapplied = app.catalog.unapplied
        raise UsageError(
            "Nothing is registered, and no target was named.",
            remedy=f"{unapplied} was not applied yet: `reposync apply` does so."
            if unapplied is not None
            else "Try `reposync sync .` in a git repository, or `reposync apply` a file repositories.yaml.",
        )
    return targets


async def look_through_groups(app: Application, *, approved: bool) -> bool:
    """Find the projects of the configured groups, and say what needs a person; whether all went well. One group that
    fails is no reason not to sync the others."""
    from reposync.catalog.groups import Discovery
    from reposync.errors import RepoSyncError

    registry, well = app.configuration.registry, True
    discovery = Discovery(app.database, app.index, app.presence.name, redact=app.secrets.redact)
    for group in registry.groups:
        try:
            report = await discovery.discover(registry, group, approved=approved)
        except RepoSyncError as error:
            click.echo(f"group {group.group}: {visible(str(error))}", err=True)
            well = False
            continue
        for name, reason in report.paused:
            click.echo(f"{visible(name)}: paused: {visible(reason)}", err=True)
        if report.problem:
            click.echo(f"group {group.group}: {visible(report.problem)}", err=True)
            well = False
    return well


async def _sync(
    told: Settings, words: tuple[str, ...], *, full: bool, approved: bool, quiet: bool
) -> tuple[list[dict[str, Any]], bool]:
    from reposync.api.documents import run_documents
    from reposync.app.application import open_application
    from reposync.cli.person import person

    async with open_application(told, with_engine=True) as app, contextlib.AsyncExitStack() as unfinished:
        runs = []
        well = True
        if not words and app.configuration.registry.groups:
            well = await look_through_groups(app, approved=approved)
        targets = await targets_of(app, words)

        async def ask(target: Target) -> CommandRun:
            asked = await app.request_run(target, full=full, approved=approved, asked_by=person())
            unfinished.push_async_callback(asked.withdraw)
            return asked

        # Workers execute several at a time. Without any, what comes after an interrupt was not asked for yet.
        queued = [await ask(target) for target in targets] if await app.live_workers() else []
        for number, target in enumerate(targets):
            run = await _seen_through(queued[number] if queued else await ask(target))
            runs.append(run)
            if not quiet:
                click.secho(summary(run), fg=summary_colour(run))
                for line in await _problems(app, run):
                    click.echo(line)
        well = well and all(run.status == "completed" and not run.files_failed for run in runs)
        return await run_documents(app.runs, runs), well


async def _seen_through(asked: CommandRun) -> Run:
    from reposync.cli.progress_display import open_display

    with open_display(asked.repository) as watch:
        return await asked.ended(
            watch, lambda what: click.echo(f"{visible(asked.repository)}: {visible(what)}", err=True)
        )


def summary(run: Run) -> str:
    """`payments-api: completed at 1a2b3c4d5e: 12 files stored, 3 deleted, ... in 4 s`, `completed with 3 files failed
    at ...` if some could not be read, and why if it was not completed."""
    head = f"{visible(run.repository)}: {run.status}"
    if run.status != "completed":
        return f"{head}: {visible(run.error_message or run.error_code or 'no reason was given')}"
    if run.files_failed:
        head += f" with {run.files_failed:,} {'file' if run.files_failed == 1 else 'files'} failed"
    figures: list[Any] = [
        (run.files_processed, "file stored" if run.files_processed == 1 else "files stored"),
        (run.files_deleted, "deleted"),
        (run.files_skipped, "skipped"),
        (run.chunks_embedded, "chunk embedded" if run.chunks_embedded == 1 else "chunks embedded"),
        (run.chunks_reused, "reused"),
    ]
    told = ", ".join(f"{number:,} {what}" for number, what in figures if number) or "nothing to do"
    notice = f"\n  {visible(run.error_message)}" if run.error_message else ""
    return f"{head} at {short(run.commit_after)}: {told}, in {duration(run.duration_seconds)}{notice}"


def summary_colour(run: Run) -> str | None:
    """On a terminal: what needs a look is red."""
    return "red" if run.files_failed or run.status == "failed" else None


async def _problems(app: Application, run: Run) -> list[str]:
    """How many files were skipped for which reason; failures are named, they want a look."""
    counts = await app.runs.count_problems(run.id)
    lines = []
    if failed := counts.pop(FAILED, 0):
        problems = await app.runs.problems(run.id, NAMED_FAILURES, reason=FAILED)
        lines += [f"  failed: {visible(each.path)}  {visible(each.detail)}" for each in problems]
        if failed > len(problems):
            lines.append(f"  ... and {failed - len(problems):,} more (reposync runs show {run.id})")
    if counts:
        told = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in sorted(counts.items()))
        lines.append(f"  skipped: {told} (reposync runs show {run.id})")
    return lines
