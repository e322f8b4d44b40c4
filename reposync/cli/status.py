"""`reposync status`: one screen."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from reposync import operations
from reposync.cli.output import Code, Line, Result
from reposync.cli.performing import Performer, performs
from reposync.cli.remote import server_option
from reposync.cli.terminal import cells, cut, width_of
from reposync.errors import FAILED
from reposync.words import ago, escape_unprintable, next_attempt

if TYPE_CHECKING:
    from reposync.operations.runs import Run
    from reposync.operations.status import NameGroup, RunGroup, Status

LISTED_RUNS = 2
"""The number of runs that are listed of each kind: with the sentences above them, eight kinds are 24 lines."""
_LISTED_NAMES = 20
_TITLE_CHARS = 16
_COLORS = {"blocked": "yellow", "failed": "red", "incomplete": "yellow", "running": "cyan"}


@click.command()
@click.option("--check", is_flag=True, help="Exit with 1 unless everything is current.")
@server_option
@performs
def status(perform: Performer, check: bool) -> Result:
    """Whether everything is current; what is blocked, failed, runs or waits, with the next command for each.

    A repository is current if it is synced, on time, at the newest head that is known, and completely indexed, and if
    its newest run neither failed nor is blocked. Paused ones do not count.
    """
    found = perform(operations.status.status, {"limit": _LISTED_NAMES})
    code = FAILED if check and not found.is_current else 0
    return Result(found, screen(found), exit_code=code)


def screen(found: Status) -> Iterator[Line]:
    """At most 24 lines of the terminal's width."""
    if not found.registered:
        yield "Nothing is registered yet."
        yield from _next("init", "sync .")
        return
    yield _verdict(found)
    yield _figures(found)
    for title, group, commands in _groups(found):
        yield from _group(title, group, commands)


def _verdict(found: Status) -> str:
    if found.is_current:
        return click.style("Everything is current.", fg="green", bold=True)
    return click.style(f"Not current: {found.active - found.current:,} of {found.active:,}.", fg="yellow", bold=True)


def _figures(found: Status) -> str:
    counts = {"active": found.active, "paused": found.paused, "not in the registry": found.inactive}
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in counts.items() if number)
    noun = "repository" if found.registered == 1 else "repositories"
    workers = f"{found.workers:,} {'worker' if found.workers == 1 else 'workers'}" if found.workers else "no worker"
    return f"{found.registered:,} {noun}: {kinds}. {workers[0].upper()}{workers[1:]}."


def _groups(found: Status) -> Iterator[tuple[str, RunGroup | NameGroup, list[str]]]:
    """What there is, the most urgent first, with what to do about it."""
    serve = [] if found.workers else ["serve"]
    runs = {
        "blocked": (found.blocked, "runs show", "history --status blocked"),
        "failed": (found.failed, "runs show", "history --status failed"),
        "running": (found.running, "runs watch", "history --status running"),
    }
    for title in ("blocked", "failed"):
        group, of_one, of_many = runs[title]
        is_one = group.count == 1 and len(group.items) == 1
        yield title, group, [f"{of_one} {group.items[0].id[:8]}" if is_one else of_many]
    yield "incomplete", found.incomplete, [_sync(found.incomplete)]
    for title, names in (("never synced", found.new), ("behind", found.behind), ("late", found.late)):
        yield title, names, serve or ["history" if names.count > 1 else _sync(names)]
    group, of_one, of_many = runs["running"]
    yield "running", group, [f"{of_one} {group.items[0].id[:8]}" if group.items else of_many]
    yield "waiting", found.waiting, serve or ["history --status queued"]


def _sync(group: NameGroup) -> str:
    return f"sync {shlex.quote(group.items[0])}" if group.count == 1 else "sync"


def _group(title: str, group: RunGroup | NameGroup, commands: list[str]) -> Iterator[Line]:
    if not group.count:
        return
    width = width_of(sys.stdout)
    room = None if width is None else width - _TITLE_CHARS
    head = click.style(f"{f'{title} {group.count:,}':<{_TITLE_CHARS}}", fg=_COLORS.get(title))
    for number, line in enumerate(_items(group, room)):
        yield Code(f"{head if not number else ' ' * _TITLE_CHARS}{line}")
    yield from _next(*commands)


def _items(group: RunGroup | NameGroup, room: int | None) -> Iterator[str]:
    shown = group.items[:LISTED_RUNS]
    for run in (each for each in shown if not isinstance(each, str)):
        text = f"{escape_unprintable(run.repository)}: {_about(run)}"
        yield text if room is None else cut(text, room)
    names = [escape_unprintable(each) for each in group.items if isinstance(each, str)]
    if names:
        yield _listed(names, group.count, room)


def _listed(names: list[str], count: int, room: int | None) -> str:
    """As many names as fit, and how many more there are."""
    for number in range(len(names), 0, -1):
        more = f" and {count - number:,} more" if count > number else ""
        text = ", ".join(names[:number]) + more
        if room is None or number == 1 or cells(text) <= room:
            return text if room is None else cut(text, room)
    return ""


def _about(run: Run) -> str:
    if run.status == "running":
        return _progress(run)
    if run.is_waiting:
        when = f", {next_attempt(run.next_attempt_at)}" if run.next_attempt_at else ""
        return f"{run.status} {ago(run.queued_at)}{when}"
    return escape_unprintable(run.error_message or run.error_code or str(run.status))


def _progress(run: Run) -> str:
    progress = run.progress or {}
    done, total = progress.get("files_done") or 0, progress.get("files_total") or 0
    share = f" {100 * done / total:.0f}%, {done:,} of {total:,} files" if total else ""
    return f"{progress.get('phase', 'started')}{share}, began {ago(run.started_at)}"


def _next(*commands: str) -> Iterator[Line]:
    yield Code(
        f"{'':{_TITLE_CHARS}}{click.style('Next: ', dim=True)}{', or '.join(f'reposync {each}' for each in commands)}"
    )
