"""`reposync index`: the versions of each repository's index, and what a person may do with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from reposync.cli.completion import repository_names
from reposync.cli.group import Group
from reposync.cli.output import ago, duration, json_option, print_json, short, table_console, until, visible
from reposync.cli.startup import run_async, settings

if TYPE_CHECKING:
    from rich.text import Text

    from reposync.app.index_overview import (
        BuildProgress,
        CollectionChange,
        IndexOverview,
        VersionOverview,
    )

STYLES = {"live": "green", "building": "cyan", "retired": "dim"}
FAILED = "red"
ENGINE_SECONDS = 30.0
"""The embedded engine may have to start first."""


@click.group(cls=Group)
def index() -> None:
    """The versions of each repository's index: status, rollback, pause and resume of changes."""


@index.command()
@click.argument("name", required=False, shell_complete=repository_names)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """The versions of each index (of the repository NAME), and how far a change of the embedding model has got."""
    found, changes = run_async(_status(name))
    if as_json and name is not None:
        print_json(found[0].as_json())
    elif as_json:
        collections = [each.as_json() for each in changes]
        print_json({"items": [each.as_json() for each in found], "collections": collections})
    elif not found:
        click.echo("No repository yet. `reposync sync .` adds the one you are in.")
    else:
        _print_table(found)
        for line in [*_notes(found), *(words for each in changes if (words := change_words(each)))]:
            click.echo(line)


@index.command()
@click.argument("name", shell_complete=repository_names)
@json_option
def rollback(name: str, as_json: bool) -> None:
    """Make the version of the index of NAME live again that was live before, at once.

    The version that it replaces is not built again until the settings change or `reposync index resume NAME`.
    """
    found = run_async(_roll_back(name))
    if as_json:
        print_json(found.as_json())
        return
    assert found.live is not None  # noqa: S101 - it was just made so
    click.echo(f"{visible(name)}: version {found.live.number} is live, at {short(found.live.commit)}")
    click.echo(f"  `reposync index resume {visible(name)}` builds what is configured again.", err=True)


@index.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=repository_names)
@json_option
def pause(names: tuple[str, ...], as_json: bool) -> None:
    """Build no new version of the index of NAME (of all registered repositories where none is given).

    Syncs go on: live versions follow their commits with the settings that they were made with.
    """
    _print_names(run_async(_set_hold(names, paused=True)), "its live version stays whatever is configured", as_json)


@index.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=repository_names)
@json_option
def resume(names: tuple[str, ...], as_json: bool) -> None:
    """Let the next sync of NAME (of all repositories where none is given) build what is configured."""
    _print_names(run_async(_set_hold(names, paused=False)), "the next sync builds what is configured", as_json)


def _print_names(found: list[IndexOverview], what: str, as_json: bool) -> None:
    if as_json:
        print_json([each.as_json() for each in found])
        return
    for each in found:
        click.echo(f"{visible(each.repository)}: {what}")
    if not found:
        click.echo("No repository yet.")


async def _status(name: str | None) -> tuple[list[IndexOverview], list[CollectionChange]]:
    from reposync.app.application import open_application
    from reposync.app.index_overview import collection_changes, index_overview, index_overviews, with_names

    async with open_application(settings(), with_engine=True) as app:
        found = [await index_overview(app, name)] if name is not None else await index_overviews(app)
        changes = [
            each for each in await collection_changes(app) if each.collection in {one.collection for one in found}
        ]
        return found, await with_names(app, changes, ENGINE_SECONDS)


async def _roll_back(name: str) -> IndexOverview:
    from reposync.app.application import open_application
    from reposync.app.index_overview import roll_back

    async with open_application(settings()) as app:
        return await roll_back(app, name)


async def _set_hold(names: tuple[str, ...], *, paused: bool) -> list[IndexOverview]:
    from reposync.app.application import open_application
    from reposync.app.index_overview import hold, index_overviews, release

    async with open_application(settings()) as app:
        return await index_overviews(app, await (hold if paused else release)(app, names))


# For people -----------------------------------------------------------------------------------------------------------


def _print_table(found: list[IndexOverview]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("repository", overflow="fold")
    for title in ("version", "state"):
        table.add_column(title, no_wrap=True)
    table.add_column("model", overflow="fold")
    table.add_column("chunks of", justify="right", no_wrap=True)
    table.add_column("commit", no_wrap=True)
    table.add_column("files", justify="right", no_wrap=True)
    table.add_column("chunks", justify="right", no_wrap=True)
    table.add_column("since", no_wrap=True)
    table.add_column("in", overflow="fold")
    for each in found:
        for number, version in enumerate(each.versions):
            table.add_row(Text(visible(each.repository) if not number else ""), *_cells(version))
        if not each.versions:
            table.add_row(Text(visible(each.repository)), "-", "nothing yet", *["-"] * 6, each.collection)
    table_console().print(table)


def _cells(version: VersionOverview) -> Iterator[Text | str]:
    from rich.text import Text

    yield str(version.number)
    yield Text(version.state, STYLES.get(version.state, ""))
    yield Text(model_words(version.provider, version.model))
    yield "-" if version.chunk_size is None else f"{version.chunk_size}/{version.chunk_overlap}"
    yield short(version.partial_commit or version.commit)
    failed = f" ({version.failed:,} failed)" if version.failed else ""
    yield Text(f"{version.files:,}").append(failed, FAILED)
    yield f"{version.chunks:,}"
    if version.state == "retired":
        yield f"{ago(version.retired_at)}, removed {_removal(version)}"
    else:
        yield ago(version.live_at or version.created_at)
    yield Text(visible(version.physical))


def _removal(version: VersionOverview) -> str:
    told = until(version.removed_after)
    return "by the next run" if told in ("now", "-") else told


def model_words(provider: str | None, model: str | None) -> str:
    """`openai: text-embedding-3-small`; `none`; `?` if an older program did not record it."""
    if provider is None:
        return "?"
    return provider if model in (None, provider) else f"{provider}: {visible(str(model))}"


def _notes(found: list[IndexOverview]) -> Iterator[str]:
    for each in found:
        if each.hold is not None:
            how = "until the settings change" if each.hold.until_settings_change else "whatever is configured"
            yield (
                f"{visible(each.repository)}: held ({visible(each.hold.reason)}), {how}; "
                f"`reposync index resume {visible(each.repository)}` ends it"
            )
        if each.progress is not None:
            yield f"{visible(each.repository)}: {progress_words(each.progress)}"


def progress_words(far: BuildProgress) -> str:
    """`120 of about 300 files built, 410 of about 900 chunks, 12.5 files/s, about 24 s left (run ...)`."""
    words = (
        f"{far.files_done:,} of about {far.files_total:,} files built, "
        f"{far.chunks_done:,} of about {far.chunks_total:,} chunks"
    )
    if far.run is None:
        return f"{words}; no run is under way"
    rate = f", {far.files_per_second:.1f} files/s" if far.files_per_second else ""
    left = f", about {duration(far.eta_seconds)} left" if far.eta_seconds else ""
    return f"{words}{rate}{left} (run {far.run})"


def change_words(change: CollectionChange) -> str | None:
    """None if every repository is on the configured model, and the name of the collection leads to it."""
    if not change.is_under_way and change.moved is not False:
        return None
    counts: dict[str, Any] = {state: number for state, number in change.repositories.items() if number}
    others = ", ".join(f"{number:,} {state}" for state, number in counts.items() if state != "done")
    words = (
        f"{visible(change.collection)}: {change.repositories['done']:,} of {change.total:,} repositories on "
        f"{model_words(change.provider, change.model)}{f' ({others})' if others else ''}, {change.chunks:,} chunks on "
        f"it, {change.chunks_former:,} on another model"
    )
    if change.leads_to is None:
        return words
    return f"{words}; the name leads to {visible(change.leads_to)}" + (" (moved)" if change.moved else "")
